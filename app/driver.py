"""A terminal driver that knows how much it has written and how much still waits.

Textual hands its output to a thread through a queue of 30 writes and blocks the event loop when
that is full; on a link of 30 kB/s the loop then stands still for seconds, and the engine's own
connections with it. Whoever repaints on a clock asks `backlog` first and skips a turn.
"""

from __future__ import annotations

from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver


class MeteredDriver(LinuxDriver):
    """LinuxDriver (it serves macOS too) that counts."""

    bytes_out = 0              # written since the start, as UTF-8

    def write(self, data: str) -> None:
        """Write to the terminal; counted."""
        self.bytes_out += len(data) if data.isascii() else len(data.encode("utf-8", "replace"))
        super().write(data)

    @property
    def backlog(self) -> int:
        """Writes that the terminal has not taken yet. 0 before the start and after the end."""
        # No public way to ask: tests/unit/test_terminal_bytes.py notices when Textual moves it.
        thread = self._writer_thread
        return thread._queue.qsize() if thread is not None else 0


def backlog_of(driver: Driver | None) -> int:
    """Writes that wait in a driver; 0 for one that does not count."""
    return driver.backlog if isinstance(driver, MeteredDriver) else 0
