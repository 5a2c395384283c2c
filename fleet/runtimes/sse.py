"""Server-sent events, as far as completions use them: the data of each, from bytes in any pieces."""

from __future__ import annotations

from collections.abc import Iterator

LINE_LIMIT = 1024 * 1024      # bytes of one line; the rest of a longer one is dropped


class DataLines:
    """Cuts a stream into the values of its `data:` lines. Comments, names and empty data are left out.

    Completions put one line of data in an event, so lines are not joined.
    """

    def __init__(self, limit: int = LINE_LIMIT) -> None:
        self._part = bytearray()
        self._limit = limit

    def feed(self, piece: bytes) -> Iterator[str]:
        """The data that `piece` completes."""
        *ends, rest = piece.split(b"\n")
        for end in ends:
            self._take(end)
            line = bytes(self._part)
            self._part.clear()
            if data := _data(line):
                yield data
        self._take(rest)

    def end(self) -> Iterator[str]:
        """The data of a last line that has no line break."""
        line = bytes(self._part)
        self._part.clear()
        if data := _data(line):
            yield data

    def _take(self, piece: bytes) -> None:
        self._part += piece[:max(0, self._limit - len(self._part))]


def _data(line: bytes) -> str:
    if not line.startswith(b"data:"):
        return ""
    return line[5:].strip().decode("utf-8", "replace")
