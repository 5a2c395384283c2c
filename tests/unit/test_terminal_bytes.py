"""What the Fleet screen writes to a real terminal: nothing while nothing changes, little when much does.

Counted over frames by the driver itself, in a pseudo terminal; no clock is part of a verdict.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
import threading
from pathlib import Path

import pytest
from example_fleets import normal, stale
from scripted_engine import ScriptedEngine

from app.bridge import Bridge
from app.driver import MeteredDriver, backlog_of
from app.messages import SnapshotChanged

BUDGET = 10_000                # bytes for a frame in which all of thirty nodes change: 10 kB/s at 1 Hz
HERE = Path(__file__).parent


def run_in_terminal(report: Path, columns: int, lines: int, script: str = "byte_meter.py",
                    **environ: str) -> tuple[dict[str, object], int]:
    """What the script measured, and the bytes that came out of the terminal's other end."""
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    unwanted = ("TEXTUAL", "SSH", "TMUX", "NO_COLOR", "COLORTERM")
    clean = {key: value for key, value in os.environ.items() if not key.startswith(unwanted)}
    process = subprocess.Popen(
        [sys.executable, str(HERE / script), str(report)], stdin=inner, stdout=inner, stderr=inner,
        env={**clean, "TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": str(lines), **environ})
    os.close(inner)
    read = 0

    def drain() -> None:
        nonlocal read
        try:
            while chunk := os.read(outer, 65_536):
                read += len(chunk)
        except OSError:
            return              # the other end is closed: the program has ended

    reader = threading.Thread(target=drain)
    reader.start()
    try:
        assert process.wait(timeout=100) == 0
    finally:
        process.kill()
        reader.join(timeout=5)
        os.close(outer)
    return json.loads(report.read_text(encoding="utf-8")), read


@pytest.mark.parametrize(("columns", "lines", "colours"), [(120, 40, ""), (120, 60, "truecolor"), (80, 24, "")])
def test_the_fleet_screen_stays_within_its_bytes(tmp_path: Path, columns: int, lines: int, colours: str) -> None:
    measured, read = run_in_terminal(tmp_path / "report.json", columns, lines, COLORTERM=colours)
    assert measured["idle"] == 0
    assert measured["filter open"] == 0
    frames, single = measured["all"], measured["one"]
    assert isinstance(frames, list) and isinstance(single, list)
    assert 0 < max(frames) <= BUDGET, frames
    assert 0 < max(single) <= BUDGET // 5, single
    assert isinstance(measured["first"], int)
    assert read >= measured["first"], "the driver counts what really goes out"


def test_the_driver_knows_its_writer_thread() -> None:
    import inspect

    from textual.drivers._writer_thread import WriterThread
    from textual.drivers.linux_driver import LinuxDriver
    assert "self._queue" in inspect.getsource(WriterThread.__init__)
    assert "self._writer_thread" in inspect.getsource(LinuxDriver.__init__)
    assert issubclass(MeteredDriver, LinuxDriver) and backlog_of(None) == 0


async def test_the_bridge_waits_while_the_terminal_lags_and_then_shows_the_newest() -> None:
    engine = ScriptedEngine(normal())
    backlog, posted, came = 3, [], asyncio.Event()

    def post(message: object) -> None:
        assert isinstance(message, SnapshotChanged)
        posted.append(message)
        came.set()

    bridge = Bridge(engine, post, rate=1000.0, backlog=lambda: backlog)
    task = asyncio.create_task(bridge.run())
    for _ in range(5):
        await asyncio.sleep(0)
    engine.become(stale())
    newest = engine.latest
    assert posted == []
    backlog = 0
    await came.wait()
    assert posted[0].snapshot is newest
    task.cancel()


async def test_a_newer_snapshot_replaces_one_that_nobody_has_seen() -> None:
    first, second = SnapshotChanged(normal(), 1.0), SnapshotChanged(stale(), 2.0)
    assert second.can_replace(first)
