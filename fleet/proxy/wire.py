"""The HTTP/1.1 client of the hot path: one asyncio protocol a connection.

Own code, because it is measured (CONTRIBUTING.md): a general client costs more for one part of a stream than all the
rest of the proxy. What an upstream sends is not trusted: its head is bounded, its lengths are checked, and reading
stops while the client does not keep up.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import cast

from fleet.proxy.exchange import Headers

HEAD_LIMIT = 64 * 1024          # bytes of a status line and headers
CHUNK_LINE_LIMIT = 256          # bytes of a chunk's length and its extensions
TRAILER_LIMIT = 16 * 1024
MOST_INTERIM = 32               # answers of 1xx before the one that counts
BUFFERED = 256 * 1024           # bytes that wait for the client until reading stops
_DIGITS = frozenset(b"0123456789")
_HEX = frozenset(b"0123456789abcdefABCDEF")


class WireError(Exception):
    """The upstream, or the way to it, failed. `code` is a stable word, `started` whether any byte had come."""

    def __init__(self, code: str, message: str, *, started: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.started = started


@dataclass(slots=True)
class Head:
    """The start of an answer."""

    status: int
    headers: Headers = field(default_factory=list)
    keep_alive: bool = True
    length: int | None = None           # bytes; None = chunked or until the connection ends
    chunked: bool = False

    def get(self, name: bytes) -> bytes:
        """One header, b"" where it is not there."""
        return next((value for key, value in self.headers if key == name), b"")


class Connection(asyncio.Protocol):
    """One connection to an upstream, one request at a time."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.closed = False
        self.requests = 0
        self.moved_at = 0.0              # event loop's clock: when something was sent or came
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray()
        self._waiter: asyncio.Future[None] | None = None
        self._parts: deque[bytes] = deque()
        self._size = 0
        self._paused = False
        self._writable: asyncio.Future[None] | None = None
        self._problem: WireError | None = None
        self._head: Head | None = None
        self._interim = 0                # answers that only announce another one
        self._method = ""
        self._left = 0                   # bytes of the chunk or body that are still to come
        self._state = "idle"             # idle, head, length, size, chunk, chunk-end, trailer, eof, done

    # --- asyncio.Protocol --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)      # uvloop's is none by class

    def data_received(self, data: bytes) -> None:
        self.moved_at = self._loop.time()
        if self._state == "length" and len(data) <= self._left and not self._buffer:    # the usual case, no copy
            self._left -= len(data)
            self._part(data)
            if not self._left:
                self._state = "done"
        else:
            self._buffer += data
            try:
                self._parse()
            except WireError as error:
                self.abort(error)
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if self._state == "eof" and self._problem is None:      # that is how its end is told; we did not end it
            self._state = "done"
        elif self._state != "done" and self._problem is None:
            started = self._state != "head" or bool(self._buffer)
            self._problem = WireError("dropped", "The connection to the upstream broke off.", started=started)
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._wake()

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    # --- one exchange --------------------------------------------------------------------------------

    async def send(self, method: str, head: bytes, body: bytes) -> None:
        """Send a request; its answer is read with `head` and `parts`."""
        assert self.transport is not None
        self.requests += 1
        self.moved_at = self._loop.time()
        self._state, self._head, self._method, self._interim = "head", None, method, 0
        self._parts.clear()
        self._size = 0
        if len(body) <= 64 * 1024:
            self.transport.write(head + body)
        else:
            self.transport.write(head)
            self.transport.write(body)
        if self._writable is not None:
            await self._writable

    async def head(self) -> Head:
        """The start of the answer; 1xx ones are passed over. Raises WireError."""
        while self._head is None:
            await self._wait()
        return self._head

    async def parts(self) -> AsyncIterator[bytes]:
        """The body as it comes, several reads of the socket in one where the client is slow. Raises WireError."""
        while True:
            if self._parts:
                yield self._take()
            elif self._state == "done":
                return
            else:
                await self._wait()

    async def part(self) -> bytes:
        """What has come of the body, b"" at its end. Raises WireError."""
        while not self._parts:
            if self._state == "done":
                return b""
            await self._wait()
        return self._take()

    @property
    def begun(self) -> bool:
        """The head of the answer is there."""
        return self._head is not None

    @property
    def ended(self) -> bool:
        """The answer is all there, and all of it was taken."""
        return self._state == "done" and not self._parts

    @property
    def waits_for_client(self) -> bool:
        """Nothing is read because the client does not keep up."""
        return self._paused

    @property
    def reusable(self) -> bool:
        """Whether another request may be sent."""
        return (self._state in ("done", "idle") and not self.closed and not self._buffer and self._head is not None
                and self._head.keep_alive)

    def abort(self, error: WireError | None = None) -> None:
        """End the connection at once; who reads gets `error`."""
        if error is not None and self._problem is None:
            self._problem = error
        self.closed = True
        if self.transport is not None:
            self.transport.abort()
        self._wake()

    def _take(self) -> bytes:
        data = self._parts.popleft() if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        self._size = 0
        if self._paused and self.transport is not None and not self.closed:
            self._paused = False
            self.transport.resume_reading()
        return data

    async def _wait(self) -> None:
        if self._problem is not None:
            raise self._problem
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # --- reading -------------------------------------------------------------------------------------

    def _part(self, data: bytes) -> None:
        self._parts.append(data)
        self._size += len(data)
        if self._size > BUFFERED and not self._paused and self.transport is not None:
            self._paused = True
            self.transport.pause_reading()

    def _parse(self) -> None:
        buffer = self._buffer
        while True:
            match self._state:
                case "head":
                    if not self._read_head():
                        return
                case "length" | "chunk":
                    if not buffer:
                        return
                    data = bytes(buffer[:self._left])
                    del buffer[:len(data)]
                    self._left -= len(data)
                    self._part(data)
                    if self._left:
                        return
                    self._state = "done" if self._state == "length" else "chunk-end"
                case "size":
                    if not self._read_chunk_size():
                        return
                case "chunk-end":
                    if len(buffer) < 2:
                        return
                    if buffer[:2] != b"\r\n":
                        raise WireError("garbage", "The upstream sent a chunk of the wrong length.", started=True)
                    del buffer[:2]
                    self._state = "size"
                case "trailer":
                    if not self._read_trailer():
                        return
                case "eof":
                    if buffer:
                        self._part(bytes(buffer))
                        buffer.clear()
                    return
                case _:                      # more than was announced: nobody asked for it
                    if buffer:
                        self.closed = True
                        buffer.clear()
                        assert self.transport is not None
                        self.transport.abort()
                    return

    def _read_head(self) -> bool:
        buffer = self._buffer
        end = buffer.find(b"\r\n\r\n", 0, HEAD_LIMIT)
        if end < 0:
            if len(buffer) >= HEAD_LIMIT:
                raise WireError("headers", f"The upstream sent more than {HEAD_LIMIT >> 10} KiB of headers.")
            if len(buffer) >= 5 and not buffer.startswith(b"HTTP/"):
                raise WireError("garbage", "What listens there does not speak HTTP.")
            return False
        raw = bytes(buffer[:end])
        del buffer[:end + 4]
        head = read_head(raw, self._method)
        if 100 <= head.status < 200:
            if head.status == 101:
                raise WireError("garbage", "The upstream switched to a protocol that nobody asked for.")
            self._interim += 1
            if self._interim > MOST_INTERIM:
                raise WireError("garbage", "The upstream announced an answer again and again.")
            return True
        self._head = head
        if head.chunked:
            self._state = "size"
        elif head.length is not None:
            self._left = head.length
            self._state = "length" if head.length else "done"
        else:
            self._state = "eof"
        return True

    def _read_chunk_size(self) -> bool:
        buffer = self._buffer
        end = buffer.find(b"\r\n", 0, CHUNK_LINE_LIMIT)
        if end < 0:
            if len(buffer) >= CHUNK_LINE_LIMIT:
                raise WireError("garbage", "The upstream sent a chunk without a length.", started=True)
            return False
        digits = bytes(buffer[:end]).split(b";", 1)[0].strip()
        if not digits or len(digits) > 15 or not _HEX.issuperset(digits):
            raise WireError("garbage", "The upstream sent a chunk without a length.", started=True)
        del buffer[:end + 2]
        self._left = int(digits, 16)
        self._state = "chunk" if self._left else "trailer"
        return True

    def _read_trailer(self) -> bool:
        buffer = self._buffer
        if buffer.startswith(b"\r\n"):
            del buffer[:2]
            self._state = "done"
            return True
        end = buffer.find(b"\r\n\r\n", 0, TRAILER_LIMIT)
        if end < 0:
            if len(buffer) >= TRAILER_LIMIT:
                raise WireError("garbage", "The upstream sent endless trailers.", started=True)
            return False
        del buffer[:end + 4]
        self._state = "done"
        return True


def read_head(raw: bytes, method: str) -> Head:
    """A status line and headers, without the empty line. Raises WireError where they are no HTTP/1."""
    lines = raw.split(b"\r\n")
    words = lines[0].split(b" ", 2)
    if len(words) < 2 or words[0] not in (b"HTTP/1.1", b"HTTP/1.0") or len(words[1]) != 3 or not words[1].isdigit():
        raise WireError("garbage", "What listens there does not speak HTTP/1.1.")
    head = Head(int(words[1]), keep_alive=words[0] == b"HTTP/1.1")
    lengths: set[bytes] = set()
    for line in lines[1:]:
        name, colon, value = line.partition(b":")
        if not colon or not name or name != name.strip() or b"\n" in line or b"\r" in line or b"\0" in line:
            raise WireError("garbage", "The upstream sent a header that is none.")
        name, value = name.lower(), value.strip()
        head.headers.append((name, value))
        if name == b"content-length":
            lengths.update(part.strip() for part in value.split(b","))
        elif name == b"transfer-encoding":
            if value.lower() != b"chunked":
                raise WireError("garbage", "The upstream sent an encoding that nobody asked for.")
            head.chunked = True
        elif name == b"connection":
            words = [word.strip() for word in value.lower().split(b",")]
            head.keep_alive = b"close" not in words and (head.keep_alive or b"keep-alive" in words)
    if method == "HEAD" or head.status in (204, 304) or 100 <= head.status < 200:
        head.length, head.chunked = 0, False
    elif head.chunked:
        if lengths:
            raise WireError("garbage", "The upstream sent two lengths for one answer.")
    elif lengths:
        only = lengths.pop()
        if lengths or not only or len(only) > 18 or not _DIGITS.issuperset(only):
            raise WireError("garbage", "The upstream sent a length that is none.")
        head.length = int(only)
    else:
        head.keep_alive = False
    return head
