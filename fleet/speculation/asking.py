"""Questions of a session to a target or a drafter: JSON over the proxy's own client, each with its time limit.

Cancelling a question ends its connection at once, which is how a llama-server learns that nobody wants the answer.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fleet.proxy.pool import Pool, place_of
from fleet.proxy.sse import SseSplitter, parse_event
from fleet.proxy.wire import Connection, WireError
from fleet.runtimes.head_answers import error_message, mapping, text

ANSWER_LIMIT = 64 * 1024 * 1024      # bytes of one answer


class Refused(Exception):
    """The server answered, and not with what was asked for. `status` of HTTP, `message` and `kind` its own words."""

    def __init__(self, status: int, message: str, kind: str = "server_error") -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind


class Asker:
    """One server that is asked. It shares the connections of `pool`."""

    def __init__(self, pool: Pool, key: str = "") -> None:
        self.pool = pool
        self._key = key

    @classmethod
    def at(cls, url: str, key: str = "", *, connect_timeout: float = 2.0) -> Asker:
        """With connections of its own. Raises ConfigError where `url` is none."""
        return cls(Pool(place_of(url), connect_timeout=connect_timeout, most_idle=4), key)

    def close(self) -> None:
        """End its connections, also those that are still to come back."""
        self.pool.most_idle = 0
        self.pool.close()

    async def get(self, path: str, timeout: float) -> object:
        """The JSON at `path`. Raises WireError and Refused."""
        return await self._whole("GET", path, b"", timeout)

    async def post(self, path: str, said: object, timeout: float) -> object:
        """What a server answers to `said`, which bytes are already as JSON. Raises WireError and Refused."""
        body = said if isinstance(said, bytes) else json.dumps(said, separators=(",", ":")).encode()
        return await self._whole("POST", path, body, timeout)

    async def text(self, path: str, timeout: float) -> str:
        """What is at `path`. Raises WireError and Refused."""
        async with self._asked("GET", path, b"", timeout) as (connection, status, _):
            answer = await _body(connection)
        if status != 200:
            raise _refused(status, answer)
        return answer.decode("utf-8", "replace")

    async def status(self, path: str, timeout: float) -> int:
        """The status of a GET, whatever comes with it. Raises WireError."""
        async with self._asked("GET", path, b"", timeout) as (connection, status, _):
            await _body(connection)
            return status

    async def stream(self, path: str, said: object, timeout: float) -> AsyncIterator[object]:
        """The events of an answer, each as JSON; `timeout` holds for each of them. Raises WireError and Refused."""
        body = json.dumps(said, separators=(",", ":")).encode()
        async with self._asked("POST", path, body, timeout) as (connection, status, limit):
            if status != 200:
                raise _refused(status, await _body(connection))
            splitter = SseSplitter()
            while True:
                limit.reschedule(asyncio.get_running_loop().time() + timeout)
                part = await connection.part()
                limit.reschedule(None)                    # what its reader does with it is not the server's time
                for block in splitter.feed(part):
                    event = parse_event(block)
                    if event.error is not None:
                        raise Refused(500, event.error[:500])
                    if event.data and event.data != "[DONE]":
                        yield _json(event.data.encode("utf-8", "replace"))
                if splitter.overflowed:
                    raise WireError("garbage", "The server sent an event that is too long.", started=True)
                if not part:
                    return

    async def _whole(self, method: str, path: str, body: bytes, timeout: float) -> object:
        async with self._asked(method, path, body, timeout) as (connection, status, _):
            answer = await _body(connection)
        if status != 200:
            raise _refused(status, answer)
        return _json(answer)

    @asynccontextmanager
    async def _asked(self, method: str, path: str, body: bytes, timeout: float
                     ) -> AsyncIterator[tuple[Connection, int, asyncio.Timeout]]:
        """A connection whose answer has begun. An idle one that was closed in that very moment is replaced, once."""
        place = self.pool.place
        head = (f"{method} {place.prefix}{path} HTTP/1.1\r\nhost: {place.host_header}\r\naccept-encoding: identity\r\n"
                + (f"authorization: Bearer {self._key}\r\n" if self._key else "")
                + f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n").encode("latin-1")
        connection: Connection | None = None
        try:
            async with asyncio.timeout(timeout) as limit:
                for fresh in (False, True):
                    connection = await self.pool.get(fresh=fresh)
                    reused = connection.requests > 0
                    try:
                        await connection.send(method, head, body)
                        status = (await connection.head()).status
                        break
                    except WireError as error:
                        if not reused or error.started or error.code != "dropped":
                            raise
                        self.pool.drop(connection)
                assert connection is not None
                yield connection, status, limit
        except TimeoutError as error:
            raise WireError("silent", f"{place.host_header} gave no answer to {path} within {timeout:g} s.") from error
        finally:
            if connection is not None:
                self.pool.put(connection)                 # dropped, and with it what runs there, unless it has ended


async def _body(connection: Connection) -> bytes:
    answer = bytearray()
    while part := await connection.part():
        answer += part
        if len(answer) > ANSWER_LIMIT:
            raise WireError("garbage", f"The server answered with more than {ANSWER_LIMIT >> 20} MiB.", started=True)
    return bytes(answer)


def _json(answer: bytes) -> object:
    try:
        return json.loads(answer)
    except (ValueError, RecursionError) as error:
        raise WireError("garbage", "The server answered with something that is no JSON.", started=True) from error


def _refused(status: int, answer: bytes) -> Refused:
    try:
        error = json.loads(answer)
    except (ValueError, RecursionError):
        error = None
    kind = text(mapping(mapping(error).get("error")).get("type"))[:100]
    return Refused(status, error_message(error) or f"HTTP {status}", kind or "server_error")
