"""A bounded view of a file that comes in pieces from somewhere else."""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable
from operator import length_hint

from fleet.errors import ModelFileError

Read = Callable[[int, int], Awaitable[bytes]]    # offset, length -> bytes; fewer at the end of the file

CHUNK = 512 * 1024                # bytes a read where nobody knows what comes: a small model's whole header
LONGEST_READ = 4 * 1024 * 1024    # in a long list of strings: 20 round trips become 8
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

    async def skip_strings(self, count: int, what: str, feed: Callable[[bytes | memoryview], object] | None = None,
                           ) -> None:
        """Go over `count` strings, each a 64-bit length and its bytes; `feed` is given all of these as they come.

        The inner loop is the cost of a header (512 000 strings, 70 ns each), so it looks at nothing but lengths: that
        the piece is over, `unpack` says.
        """
        unpack, left = _U64.unpack_from, count
        while left:
            buffer, at, before = self._buffer, self._at, left
            begun, begun_position, steps = at, self.position, iter(range(left))
            try:
                for _ in steps:
                    at += 8 + unpack(buffer, at)[0]
                left = 0
            except (struct.error, OverflowError):
                left = length_hint(steps) + 1        # the one whose length is not in this piece is still to go
            self._at = min(at, len(buffer))
            if feed is not None:
                with memoryview(buffer) as view:
                    feed(view[begun:self._at])
            if at > len(buffer):
                await self._pass(at - len(buffer), what, feed)
            if left:
                walked = self.position - begun_position
                await self._fill(8, what, ahead=left * walked // max(1, before - left))

    async def _pass(self, count: int, what: str, feed: Callable[[bytes], object] | None) -> None:
        """Go on by `count` bytes, and through them where somebody wants them."""
        if feed is None or count > self.left:
            self.skip(count, what)
            return
        while count:
            piece = await self.take(min(count, CHUNK), what)
            feed(piece)
            count -= len(piece)

    async def _fill(self, count: int, what: str, ahead: int = 0) -> None:
        """Have at least `count` bytes at hand; `ahead` is how many will be wanted next, as far as can be told."""
        if count > self.left:
            raise self.ends_in(what)
        rest = self._buffer[self._at:]
        wanted = min(max(count, CHUNK, min(ahead, LONGEST_READ)), self.left) - len(rest)
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
