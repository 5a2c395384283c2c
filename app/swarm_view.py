"""A pull, check or seeder of this process while it runs: bars on a terminal, lines elsewhere, JSON lines."""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING

from app.output import put
from app.present.units import duration, size
from fleet.node.progress import Banned, Note, PeerChange, Progress, as_line
from fleet.text import visible

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

STEPS = 10       # lines of a whole pull where there is no terminal


class View:
    """Takes the records of fleet/node/progress.py, from any thread."""

    def __init__(self, *, json: bool) -> None:
        self._json = json
        self._terminal = not json and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._lock = threading.Lock()
        self._bars: RichProgress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._said: tuple[str, int] = ("", -1)

    def __enter__(self) -> View:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the bars as they are; what comes now are lines."""
        with self._lock:
            if self._bars is not None:
                self._bars.stop()
                self._bars = None

    def __call__(self, record: object) -> None:
        """Show it."""
        with self._lock:
            if self._json:
                put(as_line(record))
            elif isinstance(record, Progress):
                self._progress(record.phase, record.name, record.done, record.bytes, _about(record))
            elif isinstance(record, Banned):
                self._put(f"{record.url} {record.why}: it is asked no more")
            elif isinstance(record, PeerChange):
                self._put(f"{record.url} {record.state}{f': {record.why}' if record.why else ''}")
            elif isinstance(record, Note):
                self._put(record.what)
            elif isinstance(record, dict):
                self._event(record)

    def hashing(self, name: str, done: int, total: int) -> None:
        """A manifest in the making."""
        self({"event": "progress", "phase": "hashing", "name": name, "done": done, "bytes": total})

    def say(self, line: str) -> None:
        """A line for a person; nothing with JSON."""
        if not self._json:
            with self._lock:
                self._put(line)

    def _event(self, record: dict) -> None:
        match record.get("event"):
            case "progress":
                self._progress(str(record["phase"]), str(record.get("name", "")), int(record["done"]),
                               int(record["bytes"]), "")
            case "sent":
                self._progress("sending", "", int(record["bytes"]), 0, f"{size(int(record['up']))}/s")
            case "note":
                self._put(str(record["what"]))
            case "wrong":
                some = ", ".join(map(str, record["pieces"][:20]))
                more = " ..." if record["count"] > 20 else ""
                self._put(f"wrong or missing: {record['count']} pieces ({some}{more})")

    def _put(self, line: str) -> None:
        line = visible(line, limit=1_000)
        if self._bars is not None:
            self._bars.console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            put(line)

    def _progress(self, phase: str, name: str, done: int, total: int, about: str) -> None:
        if self._terminal:
            self._draw(phase, name, done, total, about)
            return
        step = phase, STEPS * done // total if total else done >> 30
        if step != self._said:
            self._said = step
            share = f"{100 * done // total}%" if total else size(done)
            self._put("  ".join(part for part in (f"{phase} {name}".rstrip(), share, about) if part))

    def _draw(self, phase: str, name: str, done: int, total: int, about: str) -> None:
        from rich.console import Console
        from rich.markup import escape
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bars

        if self._bars is None:
            self._bars = Bars(TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[share]}"),
                              TextColumn("{task.fields[about]}"), console=Console(file=sys.stdout),
                              auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
            self._bars.start()
        words = escape(visible(f"{phase} {name}".rstrip(), limit=60))
        share = f"{100 * done // total}%" if total else size(done)
        key = name or phase
        if key not in self._tasks:
            self._tasks[key] = self._bars.add_task(words, total=total or None, share=share, about="")
        self._bars.update(self._tasks[key], description=words, completed=done, total=total or None, share=share,
                          about=escape(about))
        self._bars.refresh()


def _about(record: Progress) -> str:
    parts = [f"{record.have} of {record.pieces} pieces"]
    if record.down:
        parts.append(f"{size(int(record.down))}/s")
    if record.up:
        parts.append(f"sends {size(int(record.up))}/s")
    if record.eta is not None:
        parts.append(f"{duration(record.eta)} left")
    up = sum(peer.state == "up" for peer in record.peers)
    if record.peers:
        parts.append(f"{up} of {len(record.peers)} peers")
    return ", ".join(parts)
