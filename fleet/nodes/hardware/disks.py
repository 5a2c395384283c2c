"""File systems of the model folders and the state folder, from `df -Pk`."""

from __future__ import annotations

import re

from fleet.model import Disk
from fleet.nodes.hardware.figures import KIB, MIB, whole

FULL = 64 * MIB          # free bytes below which nothing useful can be written
_MOST = 64
_ROW = re.compile(r"\s([0-9]{1,18})\s+(-?[0-9]{1,18})\s+(-?[0-9]{1,18})\s+(?:-?[0-9]{1,6}%|-)\s+/")


def read_disks(df: str, folders: list[str], writable: frozenset[str]) -> tuple[Disk, ...]:
    """A record a folder. `df` has one row for each of `folders`, in their order; where the number of
    rows differs (a file system that does not answer) sizes are unknown."""
    rows = [match for line in df.split("\n")[:_MOST] if (match := _ROW.search(line))]
    known = len(rows) == len(folders)
    disks = []
    for place, folder in enumerate(folders[:_MOST]):
        total = whole(rows[place][1]) if known else None
        free = whole(rows[place][3].replace("-", "0", 1)) if known else None
        disks.append(Disk(folder, total * KIB if total else None, free * KIB if free is not None and total else None,
                          folder in writable))
    return tuple(disks)
