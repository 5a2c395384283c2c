"""An answer that a session makes, in the place of a connection to an upstream.

The proxy reads it as it reads what an upstream sends: head and parts, with the same errors, cut off in the same way.
So everything that is true of an answer there (held, repaired, counted, cancelled, ended well) is true of this one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine

from fleet.proxy.wire import BUFFERED, Head, WireError

_LOG = logging.getLogger(__name__)
Spawn = Callable[[Coroutine[object, object, None]], None]


class Spoken:
    """What `proxy.wire.Connection` is to its reader; `work` writes it with `begin`, `write` and `end`."""

    requests = 0
    reusable = False
    transport = None

    def __init__(self, work: Callable[[Spoken], Coroutine[object, object, None]], spawn: Spawn) -> None:
        self.closed = False
        self._loop = asyncio.get_running_loop()
        self.moved_at = self._loop.time()
        self._work = work
        self._spawn = spawn
        self._task: asyncio.Task[None] | None = None
        self._head: Head | None = None
        self._parts: deque[bytes] = deque()
        self._size = 0
        self._done = False
        self._problem: WireError | None = None
        self._moved = asyncio.Event()              # for the reader
        self._taken = asyncio.Event()              # for the writer

    # --- the reader's side, as a Connection has it -------------------------------------------------

    async def send(self, method: str, head: bytes, body: bytes) -> None:
        """Begin. What the request says has been read already."""
        self.requests += 1
        self._spawn(self._run())

    async def head(self) -> Head:
        """The start of the answer. Raises WireError."""
        while self._head is None:
            await self._wait()
        return self._head

    async def part(self) -> bytes:
        """What has come, b"" at the end. Raises WireError."""
        while not self._parts:
            if self._done:
                return b""
            await self._wait()
        data = b"".join(self._parts)
        self._parts.clear()
        self._size = 0
        self._taken.set()
        return data

    async def parts(self) -> AsyncIterator[bytes]:
        """All parts."""
        while data := await self.part():
            yield data

    @property
    def begun(self) -> bool:
        """The head is there."""
        return self._head is not None

    @property
    def ended(self) -> bool:
        """All is there, and taken."""
        return self._done and not self._parts

    @property
    def waits_for_client(self) -> bool:
        """Nothing more is made because the client does not keep up."""
        return self._size > BUFFERED

    def abort(self, error: WireError | None = None) -> None:
        """End it at once, and what it asks of target and drafters."""
        if error is not None and self._problem is None:
            self._problem = error
        self.closed = True
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        self._moved.set()

    async def _wait(self) -> None:
        if self._problem is not None:
            raise self._problem
        self._moved.clear()
        await self._moved.wait()

    # --- the writer's side ---------------------------------------------------------------------------

    def begin(self, head: Head) -> None:
        """The answer begins."""
        self._head = head
        self._move()

    async def write(self, data: bytes) -> None:
        """A part; waits while the reader does not keep up."""
        if data:
            self._parts.append(data)
            self._size += len(data)
            self._move()
        while self.waits_for_client:
            self._taken.clear()
            await self._taken.wait()

    def move(self) -> None:
        """Something has happened upstream: it does not stand still."""
        self.moved_at = self._loop.time()

    def _move(self) -> None:
        self.move()
        self._moved.set()

    async def _run(self) -> None:
        self._task = asyncio.current_task()
        if self.closed:
            return
        try:
            await self._work(self)
        except* WireError as group:
            self._problem = self._problem or _first(group)
        except* Exception as group:                # of ours: it ends this answer, and neither the proxy nor the others
            _LOG.error("an answer broke off", exc_info=group)
            self._problem = self._problem or WireError("dropped", "The answer failed within the proxy.", started=True)
        finally:
            self._done = self._problem is None and not self.closed
            if not self._done and self._problem is None:
                self._problem = WireError("dropped", "The answer was broken off.", started=True)
            self._task = None
            self._move()


def _first(group: BaseExceptionGroup[WireError]) -> WireError:
    """The error itself, out of the groups that it went through."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, WireError)
    return error
