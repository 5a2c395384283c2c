"""The flight recorder: everything that happened to the fleet, on disk, below a cap, for a bug report or a replay.

Events are taken as the engine makes them and written once a second by a thread, so nothing ever waits for the disk. A
recording is a row of segments; each begins with a whole Snapshot, so each can be replayed by itself and the oldest
can go when the cap is reached. What a probe reads changes at every probe: of each node it is kept every 20 seconds,
and at once when its services have changed.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fleet.errors import FleetError
from fleet.events import Event, NodeRead, OperationChanged, ProxiesSeen, SwarmChanged
from fleet.model import Snapshot
from fleet.telemetry.codec import encode

SUFFIX = ".flight"
CAP = 64 * 1024 * 1024          # bytes of all recordings in the folder
SEGMENTS = 8                    # that a cap is divided into
WRITE_EVERY = 1.0               # seconds
READ_EVERY = 20.0               # seconds between two kept readings of a node that tell nothing new
SEEN_EVERY = 5.0                # seconds between two kept readings of proxies, or of one swarm that moves on
STEP_EVERY = 1.0                # seconds between two kept looks at a step under way
MOST_WAITING = 20_000           # events: a disk that hangs must not fill the memory


class Recorder:
    """Writes what it is told into `folder`. `run` has to run."""

    def __init__(self, folder: Path, fleet: str, *, cap: int = CAP, epoch: Callable[[], float] = time.time) -> None:
        self.problem = ""               # why nothing is written; "" = all is well
        self.lost = 0                   # events that were not written
        self._folder, self._cap, self._epoch = folder, cap, epoch
        self._base = f"{file_name(fleet)}-{time.strftime('%Y%m%dT%H%M%S', time.gmtime(epoch()))}-{os.getpid()}"
        self._waiting: list[tuple[float, Event | Snapshot]] = []
        self._kept: dict[str, tuple[float, object]] = {}     # when, and what of it matters, by what it is of
        self._latest = Snapshot()
        self._number = 0
        self._size = 0
        self._path: Path | None = None

    def take(self, event: Event, after: Snapshot) -> None:
        """An event that has just come in, and the Snapshot after it."""
        self._latest = after
        if not self._is_worth(event):
            return
        if len(self._waiting) >= MOST_WAITING:
            self.lost += 1
            return
        self._waiting.append((self._epoch(), event))

    async def run(self) -> None:
        """Write until cancelled, and what is left then."""
        try:
            while True:
                await asyncio.sleep(WRITE_EVERY)
                await asyncio.to_thread(self.write)
        finally:
            self.write()

    def write(self) -> None:
        """Write what waits. A disk that takes nothing costs the recording, never the fleet."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        try:
            if self._path is None or self._size > self._cap // SEGMENTS:
                self._begin()
            assert self._path is not None
            lines = b"".join(encode(at, item) for at, item in waiting)
            with self._path.open("ab") as file:
                file.write(lines)
            self._size += len(lines)
            self.problem = ""
        except OSError as error:
            self.lost += len(waiting)
            self.problem = f"The flight recorder cannot write to {self._folder}: {error.strerror or error}."
            self._path = None

    def _is_worth(self, event: Event) -> bool:
        matter: object
        match event:
            case NodeRead(at=at, name=name, reading=reading):
                matter = frozenset((r.id, r.pid, r.alive, r.exit_status) for r in reading.services)
                return self._news(f"node {name}", at, matter, READ_EVERY)
            case ProxiesSeen(at=at, proxies=proxies):
                return self._news("proxies", at, tuple((p.url, p.problem) for p in proxies), SEEN_EVERY)
            case SwarmChanged(at=at, swarm=swarm):
                matter = (swarm.ended, tuple((peer.node, peer.state) for peer in swarm.peers), swarm.bans)
                return self._news(f"swarm {swarm.id}", at, matter, SEEN_EVERY)
            case OperationChanged(at=at, operation=operation):     # a step that loads tells its progress all the time
                matter = (operation.state, tuple(step.state for step in operation.steps))
                return self._news(f"operation {operation.id}", at, matter, STEP_EVERY)
        return True

    def _news(self, of: str, at: float, matter: object, every: float) -> bool:
        then = self._kept.get(of)
        if then is not None and then[1] == matter and at - then[0] < every:
            return False
        self._kept[of] = (at, matter)
        return True

    def _begin(self) -> None:
        """The next segment, and room for it."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._make_room()
        path = self._folder / f"{self._base}-{self._number:04d}{SUFFIX}"
        self._number += 1
        first = encode(self._epoch(), self._latest)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(first)
        self._path, self._size = path, len(first)

    def _make_room(self) -> None:
        """Remove the oldest segments until one more fits below the cap."""
        found = segments(self._folder)
        sizes = {path: path.stat().st_size for path in found}
        room = self._cap - self._cap // SEGMENTS
        for path in found:
            if sum(sizes.values()) <= room:
                return
            path.unlink(missing_ok=True)
            del sizes[path]


def file_name(fleet: str) -> str:
    """A fleet's name as part of a file's name."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", fleet)[:40].lstrip(".-") or "fleet"


def segments(folder: Path) -> list[Path]:
    """All segments in a folder, oldest first."""
    found = []
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(SUFFIX) and entry.is_file(follow_symlinks=False):
                found.append((entry.stat(follow_symlinks=False).st_mtime_ns, entry.name))
    return [folder / name for _, name in sorted(found)]


def check_folder(folder: Path) -> None:
    """Raises FleetError where there is no recording."""
    if not segments(folder):
        raise FleetError(f"Nothing was recorded in {folder} yet.",
                         "A cockpit and `quarterdeck --no-ui` record while they run.", code="no-recording")
