"""Headers of files on nodes, each read once for as long as the file does not change."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from fleet.errors import ModelFileError
from fleet.models.gguf import read_header
from fleet.models.header import GgufHeader, combined
from fleet.models.shards import shard_paths
from fleet.nodes.transport import Transport

READ_TIMEOUT = 30.0       # seconds, for at most 4 MiB
LOOK_TIMEOUT = 10.0
KEPT = 64                 # headers; one of 1000 tensors takes 0.4 MB
PIECE = 1024 * 1024       # bytes: what an SSH transport reads in one go
AT_ONCE = 2               # files of one model read side by side: a node has eight sessions for everything
# GNU and busybox know -c, macOS and BSD -f; where neither answers the size alone must do, and nothing is remembered.
_LOOK = """[ -f "$1" ] && [ -r "$1" ] || exit 3
stat -L -c '%s %Y' "$1" 2>/dev/null || stat -L -f '%z %m' "$1" 2>/dev/null || { wc -c <"$1" && echo 0; }"""

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class FileKey:
    """A file as it was at one time. A changed file has another key."""

    node: str
    path: str
    size: int
    mtime: int            # seconds since the epoch; 0 = not known


class Headers:
    """Reads headers, and remembers the newest of them."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._headers: OrderedDict[FileKey, GgufHeader] = OrderedDict()
        self._locks: dict[FileKey, asyncio.Lock] = {}

    def known(self, key: FileKey) -> GgufHeader | None:
        """The header of a file, if it was read before."""
        return self._headers.get(key)

    def fingerprints(self) -> dict[FileKey, str]:
        """The quick fingerprint of every file that is remembered."""
        return {key: header.fingerprint for key, header in self._headers.items()}

    async def header_of(self, transport: Transport, path: str, size: int, mtime: int) -> GgufHeader:
        """The header of one file, of which size and modification time are known.

        Raises:
            ModelFileError: it is no GGUF, or damaged.
            FleetError: it cannot be read, or the node does not answer.
        """
        key = FileKey(transport.name, path, size, mtime)
        lock = self._locks.setdefault(key, asyncio.Lock())     # who asks meanwhile waits for the same answer
        try:
            async with lock:
                if (header := self._headers.get(key)) is None:
                    header = await _read(transport, path, size)
                self._remember(key, header)
                return header
        finally:
            if not lock.locked():
                self._locks.pop(key, None)

    async def model_of(self, transport: Transport, path: str) -> GgufHeader:
        """The header of a model by the path of its first file, all of its files together.

        Raises:
            ModelFileError: a file is not there, is no GGUF, or does not belong to the others.
            FleetError: it cannot be read, or the node does not answer.
        """
        first = await self._look_and_read(transport, path)
        if first.split_count == 1:
            return first
        turns = asyncio.Semaphore(AT_ONCE)

        async def one(part: str) -> GgufHeader:
            async with turns:
                return await self._look_and_read(transport, part)

        return combined((first, *await _all([one(part) for part in shard_paths(path, first.split_count)[1:]])))

    async def _look_and_read(self, transport: Transport, path: str) -> GgufHeader:
        found = await transport.run(_LOOK, (path,), timeout=LOOK_TIMEOUT)
        words = found.text.split()
        if found.status != 0 or len(words) != 2 or not all(word.isascii() and word.isdigit() for word in words):
            raise ModelFileError(f"{path} is not on {transport.name}, or cannot be read there.",
                                 f"Copy it to {transport.name}, or correct the path of the model.", code="no-file")
        return await self.header_of(transport, path, int(words[0]), int(words[1]))

    def _remember(self, key: FileKey, header: GgufHeader) -> None:
        if not key.mtime:
            return
        self._headers[key] = header
        self._headers.move_to_end(key)
        while len(self._headers) > self._kept:
            self._headers.popitem(last=False)


async def _read(transport: Transport, path: str, size: int) -> GgufHeader:
    async def piece(offset: int, length: int) -> bytes:
        return await transport.read_file(path, offset, length, timeout=READ_TIMEOUT)

    async def read(offset: int, length: int) -> bytes:
        """Long reads go in pieces side by side: a round trip for all of them instead of one each."""
        starts = range(offset, offset + length, PIECE)
        pieces = await _all([piece(start, min(PIECE, offset + length - start)) for start in starts])
        whole = next((number for number, data in enumerate(pieces) if len(data) < PIECE), len(pieces))
        return b"".join(pieces[:whole + 1])      # what lies behind a short piece does not follow on it

    return await read_header(read, size, name=f"{path} on {transport.name}")


async def _all(looks: Sequence[Coroutine[Any, Any, Found]]) -> list[Found]:
    """Wait for all; the first that goes wrong is raised by itself and ends the others."""
    if len(looks) == 1:
        return [await looks[0]]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(look) for look in looks]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]
