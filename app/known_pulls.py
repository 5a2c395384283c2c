"""Pulls of this machine that run or can go on: one small file each in the user's state folder."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from app.crash import state_home
from fleet.node import bitfield as notes
from fleet.node.files import read_bounded, replace_file
from fleet.node.manifest import SUFFIX, Manifest, load_manifest
from fleet.node.trouble import SwarmError

MOST = 64
BIGGEST = 16_384


@dataclass(frozen=True, slots=True)
class KnownPull:
    """`have` of `pieces` are finished on disk; `running`: by process `pid`, which serves them at `url`."""

    name: str
    manifest: str
    folder: str
    pieces: int
    have: int
    size: int
    running: bool
    pid: int = 0
    url: str = ""


class KnownPulls:
    """The register."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or state_home() / "swarm"

    @contextmanager
    def entered(self, manifest: Manifest, folder: Path, url: str) -> Iterator[None]:
        """Known for the length of the block, and after it for as long as the model is not whole."""
        where = os.path.abspath(folder)
        path = self._folder / f"{hashlib.sha256(f'{manifest.id} {where}'.encode()).hexdigest()[:24]}.json"
        content = {"manifest": manifest.id, "name": manifest.name, "folder": where, "pid": os.getpid(),
                   "started": _started(os.getpid()), "url": url}
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            replace_file(path, json.dumps(content).encode())
        except (OSError, SwarmError):
            path = None     # a pull that `status` does not know is better than none
        try:
            yield
        finally:
            if path is not None and all(os.path.exists(os.path.join(where, entry.name)) for entry in manifest.files):
                path.unlink(missing_ok=True)

    def all(self) -> list[KnownPull]:
        """Those whose data is still there; entries of others are taken away."""
        found = []
        try:
            paths = sorted(self._folder.glob("*.json"))[:MOST]
        except OSError:
            return []
        for path in paths:
            known = _read(path)
            if known is None:
                path.unlink(missing_ok=True)
            else:
                found.append(known)
        return found


def _read(path: Path) -> KnownPull | None:
    try:
        said = json.loads(read_bounded(path, BIGGEST))
        folder, name = Path(str(said["folder"])), str(said["name"])
        manifest = load_manifest(folder / (name + SUFFIX))
        if manifest.id != said["manifest"] or not any((folder / (entry.name + ".part")).exists()
                                                      for entry in manifest.files):
            return None
        note = notes.load_bitfield(folder / (name + notes.SUFFIX), manifest.id, manifest.count)
        pid = said["pid"] if isinstance(said["pid"], int) else 0
        running = pid > 1 and bool(said["started"]) and _started(pid) == said["started"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError, SwarmError):
        return None
    return KnownPull(manifest.name, manifest.id, str(folder), manifest.count, len(note.have) if note else 0,
                     manifest.total_size, running, pid if running else 0, str(said.get("url", "")) if running else "")


def _started(pid: int) -> str:
    """What tells a process from a later one of the same number; "" when it is gone or the system does not say."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
