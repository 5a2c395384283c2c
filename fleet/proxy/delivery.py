"""An upstream's answer on its way to the client: counted, repaired where needed, ended well whatever happens.

A `Delivery` owns the connection and the slot of one request. It gives both back exactly once: at the answer's end, or
when it is closed before.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

from fleet.proxy.answers import repair_answer
from fleet.proxy.exchange import ApiKind, Call, Exchange, ExchangeState, Headers, Problem, RepairSettings
from fleet.proxy.outgoing import answer_headers
from fleet.proxy.repair import StreamRepair
from fleet.proxy.upstream import Upstream
from fleet.proxy.wire import Connection, Head, WireError
from fleet.speculation.spoken import Spoken

KEPT_WHOLE = 8 * 1024 * 1024     # bytes of an answer that is not streamed until it is passed on as it comes
_READ = frozenset((ApiKind.CHAT, ApiKind.COMPLETION, ApiKind.MESSAGES, ApiKind.RESPONSES, ApiKind.EMBEDDINGS,
                   ApiKind.NATIVE))


@dataclass(slots=True, eq=False)
class Delivery:
    """One answer: its head is there, its body comes or is there."""

    call: Call
    exchange: Exchange
    upstream: Upstream
    connection: Connection | Spoken
    head: Head
    give_back: Callable[[], None]                  # the slot
    clock: Callable[[], float]
    repair: RepairSettings
    body: list[bytes] = field(default_factory=list)
    whole: bool = False                            # the body is all there
    closed: bool = False
    last: bool = False                             # the part that was given out last is the last one

    @property
    def is_stream(self) -> bool:
        """Server-sent events, in a form that can be read."""
        return (self.head.status == 200 and self.head.get(b"content-type").lower().startswith(b"text/event-stream")
                and self.head.get(b"content-encoding") in (b"", b"identity"))

    async def read_whole(self) -> None:
        """Read the body up to KEPT_WHOLE bytes. Raises WireError: nothing has gone to the client yet."""
        size = 0
        while part := await self.connection.part():
            self.body.append(part)
            size += len(part)
            if size > KEPT_WHOLE:
                return
        self.whole = True
        self._release()

    def headers(self) -> Headers:
        """For the client; with a length where it is known."""
        headers = answer_headers(self.head.headers)
        if self.whole:
            self._repair_whole()
            headers.append((b"content-length", b"%d" % sum(map(len, self.body))))
        elif self.call.method == "HEAD" or (self.head.length is not None and not self.is_stream):
            headers.append((b"content-length", b"%d" % (self.head.length or 0)))
        return headers

    def _repair_whole(self) -> None:
        if self.call.kind not in _READ or self.head.get(b"content-encoding") not in (b"", b"identity"):
            return
        found = repair_answer(b"".join(self.body), self.repair)
        self.body = [found.body]
        exchange = self.exchange
        exchange.repairs = found.repairs
        self._count(found.usage, found.timings, found.tokens)

    def _count(self, usage: dict[str, int] | None, timings: object, tokens: int) -> None:
        exchange = self.exchange
        exchange.tokens = tokens
        if usage:
            exchange.prompt_tokens = usage["prompt_tokens"]
        if isinstance(timings, dict):
            for key, attribute in (("draft_n", "drafted"), ("draft_n_accepted", "accepted")):
                value = timings.get(key)
                if isinstance(value, int) and 0 <= value < 1 << 40:
                    setattr(exchange, attribute, value)

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The body for the client. A stream always ends well: with an error event where it broke off."""
        exchange = self.exchange
        exchange.state = ExchangeState.ANSWERING
        if self.is_stream and self.call.kind in _READ:
            async for part in self._stream():
                yield part
            return
        for part in self.body:
            self._passes(part)
            yield part
        if not self.whole:
            while part := await self.connection.part():       # WireError cuts the client off, as it must here
                self._passes(part)
                yield part
        self._release()
        self._end(ExchangeState.DONE)

    async def _stream(self) -> AsyncGenerator[bytes, None]:
        exchange, call, connection = self.exchange, self.call, self.connection
        repair = StreamRepair(self.repair, kind=call.kind, client_wants_usage=call.client_wants_usage)
        problem: Problem | None = None
        out = b""
        while True:
            try:
                part = await connection.part()
            except WireError as error:
                problem = problem_of(error, self.upstream.name)
                exchange.problem = problem.code
                if error.code != "cancelled":
                    self.upstream.failures += 1
                    self.upstream.health.failed(error.code, error.message)
                break
            if not part:
                break
            out = repair.feed(part)
            exchange.tokens = repair.tokens
            # Its end goes along with the last part; after an error nothing comes that a client could use, and a
            # server that then says nothing more must not keep one waiting.
            if connection.ended or repair.failed:
                break
            if out:
                self._passes(out)
                yield out
                out = b""
        self._release()
        out += repair.finish(problem)
        self._count(repair.usage, repair.timings, repair.tokens)
        exchange.repairs = repair.repairs
        if out:
            self._passes(out)
        failed = problem is not None or repair.failed
        if failed and not exchange.problem:
            exchange.problem = "upstream_error"
        state = ExchangeState.CANCELLED if exchange.problem == "cancelled" else (
            ExchangeState.FAILED if failed else ExchangeState.DONE)
        self.last = True
        if out:
            yield out
        self._end(state)

    def _passes(self, part: bytes) -> None:
        exchange = self.exchange
        if exchange.first_byte is None:
            exchange.first_byte = self.clock()
        exchange.bytes_out += len(part)

    def _end(self, state: ExchangeState) -> None:
        self.exchange.state = state
        self.closed = True

    def _release(self) -> None:
        """Give the connection and the slot back; once."""
        if self.connection in self.upstream.connections:
            self.upstream.connections.discard(self.connection)
            self.upstream.pool.put(self.connection)
            self.give_back()

    def close(self) -> None:
        """End it, whether it has ended or not: what runs upstream is cut."""
        if not self.closed:
            if self.exchange.state is ExchangeState.ANSWERING or self.exchange.state is ExchangeState.WAITING:
                self.exchange.state = ExchangeState.CANCELLED
            self.closed = True
        self._release()

    async def finish_alone(self) -> None:
        """The client has left and the upstream is known not to take a cut well: read to the end, for nobody."""
        self.closed = True
        self.exchange.state = ExchangeState.CANCELLED
        try:
            async for _ in self.connection.parts():
                pass
        except WireError as error:
            self.upstream.health.failed(error.code, error.message)
        finally:
            self._release()


def problem_of(error: WireError, upstream: str) -> Problem:
    """What a client is told of a failed upstream."""
    if error.code == "cancelled":
        return Problem(499, "cancelled", error.message, "cancelled")
    if error.code in ("silent", "stalled"):
        return Problem(504, "upstream_timeout", f"The server {upstream!r} stopped answering. {error.message}")
    if error.code in ("refused", "unreachable"):
        return Problem(503, "upstream_unavailable", f"The server {upstream!r} cannot be reached. {error.message}",
                       retry_after=5.0)
    code = "upstream_invalid" if error.code in ("garbage", "headers") else "upstream_died"
    return Problem(502, code, f"The server {upstream!r} broke off its answer. {error.message}")
