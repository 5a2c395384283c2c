"""Recordings that were made: read, put together into one file, and turned into Snapshots again."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fleet.model import Snapshot
from fleet.reduce import reduce
from fleet.telemetry.codec import LONGEST_LINE, Recorded, RecordingBroken, decode

MAGIC = b"\x1f\x8b"


@dataclass(slots=True)
class Recording:
    """Lines of one or several files. `damaged` counts those that could not be read; it is whole after a pass."""

    paths: tuple[Path, ...]
    damaged: int = 0

    def __iter__(self) -> Iterator[Recorded]:
        self.damaged = 0
        for path in self.paths:
            for line in _lines(path):
                try:
                    yield decode(line)
                except RecordingBroken:
                    self.damaged += 1        # a machine that lost its power wrote half a line


def snapshots(recording: Iterable[Recorded]) -> Iterator[tuple[float, Snapshot]]:
    """The Snapshot after every line, with the time in seconds since the epoch."""
    latest = Snapshot()
    for recorded in recording:
        latest = recorded.item if isinstance(recorded.item, Snapshot) else reduce(latest, recorded.item)
        yield recorded.at_epoch, latest


def export(paths: Iterable[Path], target: Path) -> int:
    """Put segments together into one compressed file that only its owner can read; gives the count of lines.

    Raises:
        RecordingBroken: the file is there already, or cannot be written.
    """
    count = 0
    new = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(handle, "wb") as raw, gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as file:
            for path in paths:
                for line in _lines(path):
                    file.write(line if line.endswith(b"\n") else line + b"\n")
                    count += 1
        os.link(new, target)             # unlike a rename it refuses to write over another file
    except OSError as error:
        raise RecordingBroken(f"{target} cannot be written: {error.strerror or error}.",
                              "Name another file.") from error
    finally:
        new.unlink(missing_ok=True)
    return count


def _lines(path: Path) -> Iterator[bytes]:
    """The lines of a file, compressed or not.

    Raises:
        RecordingBroken: it cannot be read, or is none of ours.
    """
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == MAGIC
            raw.seek(0)
            with gzip.GzipFile(fileobj=raw) if packed else raw as file:
                while line := file.readline(LONGEST_LINE):
                    yield line
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise RecordingBroken(f"{path} cannot be read: {why}.", "Name a recording, or an exported one.") from error
