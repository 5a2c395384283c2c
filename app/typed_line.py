"""Lines that a person types, beside an event loop: with readline's editing, and ctrl+c that stops an answer."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")


class TypedLines:
    """Within the block, ctrl+c stops what `interruptible` runs, and at the prompt it leaves."""

    def __init__(self) -> None:
        self._running: asyncio.Task[Any] | None = None
        self._prompting: asyncio.Future[str | None] | None = None
        self._terminal: list[Any] | None = None

    async def __aenter__(self) -> TypedLines:
        import termios
        from contextlib import suppress

        with suppress(ImportError):
            import readline  # noqa: F401 (gives input() its editing and history)
        with suppress(termios.error):
            self._terminal = termios.tcgetattr(sys.stdin.fileno())
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self._interrupt)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)
        if self._terminal is not None:
            import termios

            termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, self._terminal)

    async def ask(self, prompt: str) -> str | None:
        """One line; None when the person leaves (ctrl+d, ctrl+c).

        `input` blocks for as long as a person thinks, so it runs in a thread of its own that dies with the
        process: the loop goes on watching the fleet meanwhile.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[str | None] = loop.create_future()
        self._prompting = future

        def settle(line: str | None) -> None:
            if not future.done():
                future.set_result(line)

        def read() -> None:
            try:
                line: str | None = input(prompt)
            except (EOFError, OSError, UnicodeDecodeError):
                line = None
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, line)

        threading.Thread(target=read, name="typed line", daemon=True).start()
        try:
            return await future
        finally:
            self._prompting = None

    async def interruptible(self, work: Coroutine[Any, Any, T]) -> T | None:
        """What `work` gives; None when ctrl+c stopped it."""
        task = self._running = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task})
            return None if task.cancelled() else task.result()
        finally:
            self._running = None
            task.cancel()

    def _interrupt(self) -> None:
        if self._running is not None:
            self._running.cancel()
        elif self._prompting is not None and not self._prompting.done():
            self._prompting.set_result(None)
