"""A bounded view of a file that comes in pieces from somewhere else."""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable

from fleet.errors import ModelFileError

Read = Callable[[int, int], Awaitable[bytes]]    # offset, length -> bytes; fewer at the end of the file

CHUNK = 512 * 1024                # bytes a read: few round trips, and short ones on a slow link
READ_LIMIT = 64 * 1024 * 1024     # bytes of header that are read at most; gemma's 262 144 tokens make 6.5 MB

_U64 = struct.Struct("<Q")


class Window:
    """Walks forward through a file, holding one piece of it.

    Skipping costs nothing; strings are walked over within a piece, without a read for each.
    """

    def __init__(self, read: Read, size: int, name: str) -> None:
        self.name = name                 # of the file, for sentences
        self.size = size                 # bytes of the file
        self._read = read
        self._buffer = b""
        self._start = 0                  # where in the file the piece begins
        self._at = 0                     # where in the piece we are
        self._bytes_read = 0

    @property
    def position(self) -> int:
        """Offset in the file."""
        return self._start + self._at

    @property
    def left(self) -> int:
        """Bytes to the end of the file."""
        return self.size - self.position

    async def take(self, count: int, what: str) -> bytes:
        """The next `count` bytes; callers bound `count`.

        Raises:
            ModelFileError: the file ends before.
        """
        if len(self._buffer) - self._at < count:
            await self._fill(count, what)
        taken = self._buffer[self._at:self._at + count]
        self._at += count
        return taken

    def skip(self, count: int, what: str) -> None:
        """Go on by `count` bytes, unread."""
        if count > self.left:
            raise self.ends_in(what)
        self._at += count
        if self._at > len(self._buffer):
            self._start, self._at, self._buffer = self.position, 0, b""

    async def skip_strings(self, count: int, what: str) -> None:
        """Go over `count` strings, each a 64-bit length and its bytes."""
        unpack, buffer, at = _U64.unpack_from, self._buffer, self._at
        for _ in range(count):
            if len(buffer) - at < 8:
                self._at = at
                await self._fill(8, what)
                buffer, at = self._buffer, self._at
            at += 8 + unpack(buffer, at)[0]
            if at > len(buffer):
                self._at = len(buffer)
                self.skip(at - len(buffer), what)
                buffer, at = self._buffer, self._at
        self._at = at

    async def _fill(self, count: int, what: str) -> None:
        """Have at least `count` bytes at hand."""
        if count > self.left:
            raise self.ends_in(what)
        rest = self._buffer[self._at:]
        wanted = min(max(count, CHUNK) - len(rest), self.left - len(rest))
        self._start, self._at = self.position, 0
        piece = await self._read(self._start + len(rest), wanted)
        self._bytes_read += len(piece)
        if self._bytes_read > READ_LIMIT:
            raise ModelFileError(f"The header of {self.name} is over {READ_LIMIT >> 20} MiB: that is no model.",
                                 "Fetch the file again.")
        self._buffer = rest + piece[:wanted]
        if len(self._buffer) < count:
            raise self.ends_in(what)

    def ends_in(self, what: str) -> ModelFileError:
        """The file is over where something should be."""
        return ModelFileError(f"{self.name} is cut off: it ends in {what}.",
                              "The download or copy is incomplete; fetch the file again.", code="truncated")
