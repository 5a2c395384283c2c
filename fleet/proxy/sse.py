"""Server-sent events as bytes: cut into whole events without changing one of them, and read where that is needed.

The cut is the same however the bytes arrive: one at a time, or all at once. Lines may end in LF, CRLF or CR, as the
HTML standard has them. Not for reading completions as a client does: that is `fleet.runtimes.sse`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

EVENT_LIMIT = 16 * 1024 * 1024      # bytes of one event; /v1/responses repeats its whole answer in the last one

# Two line ends in a row. A CR is one by itself only if no LF follows: without the look-ahead the two bytes of a CRLF
# would count as an empty line.
_BLANK_LINE = re.compile(rb"(?:\r\n|\n|\r(?!\n)){2}")
_LINE_END = re.compile(r"\r\n|\n|\r")


@dataclass(frozen=True, slots=True)
class Event:
    """What one block says. `data` and `comment` are None where it has no such line."""

    event: str = ""                  # "" = the stream's default, "message"
    data: str | None = None          # several lines are joined by LF
    comment: str | None = None
    error: str | None = None         # value of an `error:` line, which older llama-servers write in place of data


class SseSplitter:
    """Cuts a stream of bytes into whole events.

    An event whose blank line ends in CR at the end of what has come is kept back until the next byte says whether an
    LF belongs to it.

    Args:
        limit: most bytes of one event. When one is longer, `overflowed` becomes true and nothing more is kept or given
            out: memory stays bounded, and who reads the stream has to end it.
    """

    def __init__(self, limit: int = EVENT_LIMIT) -> None:
        self.overflowed = False
        self._limit = limit
        self._buffer = bytearray()
        self._seen = 0                # bytes of the buffer that hold no blank line

    def feed(self, chunk: bytes) -> list[bytes]:
        """The events that `chunk` completes, each with the blank line that ends it, byte for byte."""
        # What nearly every chunk of a completion is: one event, nothing before it, nothing after it.
        if not self._buffer and chunk[-2:] == b"\n\n" and chunk.find(b"\n\n") == len(chunk) - 2 \
                and b"\r" not in chunk and len(chunk) <= self._limit and not self.overflowed:
            return [bytes(chunk)]
        if self.overflowed or not chunk:
            return []
        buffer = self._buffer
        buffer += chunk
        blocks: list[bytes] = []
        begin, search = 0, max(0, self._seen - 4)
        while found := _BLANK_LINE.search(buffer, search):
            end = found.end()
            if end == len(buffer) and buffer[-1] == 0x0D:
                break
            if end - begin > self._limit:
                break
            blocks.append(bytes(buffer[begin:end]))
            begin = search = end
        del buffer[:begin]
        self._seen = len(buffer)
        if len(buffer) > self._limit:
            self.overflowed = True
            buffer.clear()
        return blocks

    def rest(self) -> bytes:
        """What has come after the last whole event; the stream has ended, so nothing completes it any more."""
        rest = bytes(self._buffer)
        self._buffer.clear()
        self._seen = 0
        return rest


def parse_event(block: bytes) -> Event:
    """What a block from `SseSplitter` (or a rest of one) says. Never raises: bytes that are no UTF-8 are replaced."""
    name = ""
    data: list[str] = []
    comments: list[str] = []
    error: str | None = None
    for line in _LINE_END.split(block.decode("utf-8", "replace").removeprefix("\ufeff")):
        if not line:
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            data.append(value)
        elif field == "event":
            name = value
        elif not field:
            comments.append(value)
        elif field == "error":
            error = value
    return Event(name, "\n".join(data) if data else None, "\n".join(comments) if comments else None, error)
