"""A small file system of its own under a folder, that can be filled to the last byte."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

SIZE = "4m"
BLOCK = 4096


@dataclass
class SmallDisk:
    """What is mounted."""

    folder: Path

    def fill(self) -> None:
        """Take all that is free."""
        try:
            with (self.folder / "filler").open("ab", buffering=0) as file:
                while True:
                    file.write(bytes(BLOCK))
        except OSError:
            return

    def empty(self) -> None:
        """Give it back."""
        (self.folder / "filler").unlink(missing_ok=True)


@contextmanager
def small_disk(folder: Path) -> Iterator[SmallDisk]:
    """Mount one; the test is skipped where that is not allowed."""
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE},mode=0700", "tmpfs", str(folder)],
                          capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"a file system cannot be mounted: {done.stderr.strip()}")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)
