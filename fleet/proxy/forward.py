"""A call on its way to an upstream: admitted, sent, and sent elsewhere while its client has seen no answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine

from fleet.proxy.delivery import Delivery, problem_of
from fleet.proxy.endings import DONE, WITH_DONE, error_event
from fleet.proxy.errors import error_body, error_headers
from fleet.proxy.exchange import (
    Answer,
    ApiKind,
    Call,
    Caller,
    Exchange,
    ExchangeState,
    Problem,
    ProxySettings,
    is_among,
)
from fleet.proxy.hold import Gate, Refused, Wanted
from fleet.proxy.outgoing import request_body, request_head
from fleet.proxy.records import Records
from fleet.proxy.routing import Conversations, Routes, prefix_marks
from fleet.proxy.upstream import Upstream
from fleet.proxy.wire import Connection, Head, WireError
from fleet.runtimes.head_answers import error_message
from fleet.speculation.spoken import Spoken

MOST_DEATHS = 2                 # upstreams that broke off one request: it might be the request that kills them
MOST_LOADING = 50               # answers of "loading" to one request, each after a probe said otherwise
Spawn = Callable[[Coroutine[object, object, None]], None]
Speculate = Callable[[Call, Upstream], Awaitable[Spoken | None]]     # an answer in place of a connection, where it pays


class Forwarder:
    """`Forward` of exchange.py over the gate and the upstreams."""

    def __init__(self, settings: ProxySettings, routes: Routes, gate: Gate, records: Records, *,
                 clock: Callable[[], float], spawn: Spawn, speculate: Speculate | None = None) -> None:
        self.settings = settings
        self.conversations = Conversations(settings.sticky_seconds, clock)
        self._routes = routes
        self._gate = gate
        self._records = records
        self._clock = clock
        self._spawn = spawn
        self._speculate = speculate

    async def __call__(self, call: Call) -> Answer:
        """Send `call`; a refusal is an Answer too. Close the Answer in any case."""
        exchange = self._records.begin(Exchange(
            "", call.kind, call.path, call.model, call.streaming, call.caller.name, call.client,
            bytes_in=len(call.body), body=call.body if self.settings.keep_bodies else b""))
        commenting = _Comments(call, self._keep_alive(call))
        try:
            try:
                delivery = await self._reach(call, exchange)
            finally:
                begun = await commenting.end()
        except Refused as refused:
            return self._refusal(call, exchange, refused.problem, begun)
        except BaseException:
            self._records.end(exchange, ExchangeState.CANCELLED)
            raise
        if begun and not delivery.is_stream:
            delivery.close()
            return self._refusal(call, exchange, _problem_in(delivery), begun)
        answer = self._answer(delivery)
        answer.begun = begun
        return answer

    def models(self, caller: Caller) -> list[dict[str, object]]:
        """What `caller` may ask for, as entries of /v1/models."""
        return [{"id": name, "object": "model", "created": int(self._records.started), "owned_by": "quarterdeck",
                 "upstreams": [up.name for up in ups]}
                for name, ups in self._routes.models().items() if is_among(name, caller.models)]

    # --- reaching an upstream ----------------------------------------------------------------------

    async def _reach(self, call: Call, exchange: Exchange) -> Delivery:
        """The start of an answer, all of it where it is not streamed. Raises Refused."""
        target = self._routes.target(call.model)
        marks: list[bytes] = []
        wanted = Wanted(call.model, exchange, len(call.body))
        if len(target.upstreams) > 1 and call.parsed is not None:
            marks = prefix_marks(call.parsed, target.model)
            wanted.sticky = self.conversations.find(marks)
        light = call.kind is ApiKind.OTHER
        tries = deaths = loading = 0
        while True:
            upstream = self._any(call) if light else await self._gate.admit(wanted, again=tries + loading > 0)
            exchange.upstream = upstream.name
            exchange.state = ExchangeState.WAITING
            try:
                delivery = await self._send(call, exchange, upstream, light)
            except WireError as error:
                problem = problem_of(error, upstream.name)
                exchange.problem = problem.code
                if error.code == "cancelled":
                    raise Refused(problem) from error
                upstream.failures += 1
                upstream.health.failed(error.code, error.message)
                tries += 1
                deaths += error.code not in ("refused", "unreachable")
                if tries > self.settings.retries or deaths >= MOST_DEATHS or error.code in ("silent", "stalled"):
                    raise Refused(problem) from error
                wanted.tried.add(upstream.name)
                exchange.retried += 1
                continue
            if delivery.head.status == 503 and (said := _loading(delivery)):
                upstream.health.loading(said)
                loading += 1
                if loading < MOST_LOADING and not light:
                    continue
            elif delivery.head.status in (502, 503, 504) and tries < self.settings.retries \
                    and any(up.may_take() and up.name not in (upstream.name, *wanted.tried)
                            for up in target.upstreams):
                tries += 1
                wanted.tried.add(upstream.name)
                exchange.retried += 1
                delivery.close()
                continue
            else:
                upstream.health.answered()
            exchange.problem = ""
            if marks:
                self.conversations.remember(marks, upstream.name)
            return delivery

    async def _send(self, call: Call, exchange: Exchange, upstream: Upstream, light: bool) -> Delivery:
        """One try. The slot is given back unless a Delivery is returned that has it. Raises WireError."""
        give_back = (lambda: None) if light else (lambda: self._gate.done(upstream))
        connection: Connection | Spoken | None = None
        delivery: Delivery | None = None
        try:
            body = request_body(call, upstream, self._routes.target(call.model).model, self.settings.repair)
            head = request_head(call, upstream, len(body))
            connection = await self._speculate(call, upstream) if self._speculate is not None else None
            if connection is None:
                connection = await upstream.pool.get()
            reused = connection.requests > 0
            while True:
                try:
                    got = await self._ask(connection, exchange, upstream, call.method, head, body)
                    break
                except WireError as error:
                    # An idle connection that the upstream closed in the very moment: it has read nothing of ours.
                    if not reused or error.started or error.code != "dropped":
                        raise
                    upstream.connections.discard(connection)
                    upstream.pool.put(connection)
                    connection, reused = await upstream.pool.get(fresh=True), False
            delivery = Delivery(call, exchange, upstream, connection, got, give_back, self._clock,
                                self.settings.repair)
            if not delivery.is_stream:
                await delivery.read_whole()
            return delivery
        except BaseException as error:
            upstream.health.end_trial()
            let_finish = (isinstance(error, asyncio.CancelledError) and upstream.settings.let_finish
                          and connection is not None and not connection.closed)
            if let_finish and connection is not None:
                alone = delivery or Delivery(call, exchange, upstream, connection, Head(0), give_back, self._clock,
                                            self.settings.repair)
                self._spawn(_finish_alone(alone))
            elif delivery is not None:
                connection = delivery.connection
                connection.abort()
                delivery.close()
            else:
                if connection is not None:
                    connection.abort()
                    upstream.connections.discard(connection)
                    upstream.pool.put(connection)
                give_back()
            raise

    async def _ask(self, connection: Connection | Spoken, exchange: Exchange, upstream: Upstream, method: str,
                   head: bytes, body: bytes) -> Head:
        upstream.connections.add(connection)
        exchange.cancel = lambda: connection.abort(WireError("cancelled", "The request was cancelled at the proxy."))
        await connection.send(method, head, body)
        return await connection.head()

    def _any(self, call: Call) -> Upstream:
        """An upstream for a question that needs no slot. Raises Refused."""
        able = [up for up in self._routes.target(call.model).upstreams if up.health.available()]
        if not able:
            raise Refused(Problem(503, "upstream_unavailable", "No server answers now.", retry_after=5.0))
        return min(able, key=lambda up: up.running)

    # --- answers -------------------------------------------------------------------------------------

    def _answer(self, delivery: Delivery) -> Answer:
        exchange = delivery.exchange
        exchange.status = delivery.head.status
        headers = delivery.headers()

        async def close() -> None:
            cut = not delivery.closed and not delivery.whole
            if cut and delivery.upstream.settings.let_finish and not delivery.connection.closed:
                self._spawn(delivery.finish_alone())
            else:
                delivery.close()
            delivery.upstream.tokens += exchange.tokens
            ended = exchange.state
            if ended is ExchangeState.DONE and exchange.status >= 400:
                ended = ExchangeState.FAILED
            self._records.end(exchange, ended)

        return Answer(exchange.status, headers, delivery.chunks(), exchange, close, last=lambda: delivery.last)

    def _refusal(self, call: Call, exchange: Exchange, problem: Problem, begun: bool) -> Answer:
        """An error: an answer of its own, or an event where a stream has begun."""
        exchange.status, exchange.problem = 200 if begun else problem.status, problem.code
        body = error_body(problem, call.path)
        if begun:
            body = error_event(call.kind, problem) + (DONE if call.kind in WITH_DONE else b"")

        async def chunks() -> AsyncGenerator[bytes, None]:
            yield body

        async def close() -> None:
            self._records.end(exchange, _state_of(problem, exchange))

        headers = [*error_headers(problem), (b"content-length", b"%d" % len(body))]
        return Answer(exchange.status, headers, chunks(), exchange, close, begun=begun)

    def _keep_alive(self, call: Call) -> float:
        hold = self.settings.hold
        if not call.streaming or call.early is None or hold.keep_alive <= 0:
            return 0.0
        if hold.no_keep_alive_agents:
            agent = next((value for name, value in call.headers if name == b"user-agent"), b"").decode("latin-1")
            if any(part.lower() in agent.lower() for part in hold.no_keep_alive_agents):
                return 0.0
        return hold.keep_alive


class _Comments:
    """Comments to a client whose upstream has not answered, every `wait` seconds; none where that is 0."""

    def __init__(self, call: Call, wait: float) -> None:
        self._early = call.early
        self._wait = wait
        self._task: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(wait, self._begin) if wait else None

    def _begin(self) -> None:
        self._task = asyncio.ensure_future(self._tell())

    async def _tell(self) -> None:
        assert self._early is not None
        while True:
            await self._early()
            await asyncio.sleep(self._wait)

    async def end(self) -> bool:
        """No more of them; whether there were any."""
        if self._timer is not None:
            self._timer.cancel()
        if self._task is None:
            return False
        self._task.cancel()
        await asyncio.wait((self._task,))
        return True


async def _finish_alone(delivery: Delivery) -> None:
    await delivery.finish_alone()


def _state_of(problem: Problem, exchange: Exchange) -> ExchangeState:
    if problem.code == "cancelled":
        return ExchangeState.CANCELLED
    return ExchangeState.FAILED if exchange.upstream else ExchangeState.REFUSED


def _loading(delivery: Delivery) -> str:
    """What a llama-server says while it loads, "" when this is something else."""
    said = error_message(_json(b"".join(delivery.body)))
    return said if "loading" in said.lower() else ""


def _problem_in(delivery: Delivery) -> Problem:
    """An answer that is no stream, where a stream was promised."""
    status = delivery.head.status
    said = error_message(_json(b"".join(delivery.body))) or f"The server answered with HTTP {status} and no stream."
    return Problem(status if status >= 400 else 502, "upstream_error", said)


def _json(body: bytes) -> object:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None
