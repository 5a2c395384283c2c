"""What the proxy remembers: live requests, a ring of the ended ones, sums for metrics, and events for dashboards."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from bisect import bisect_left
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass, field

from fleet.proxy.exchange import Exchange, ExchangeState, RequestRecord

# Seconds; upper ends of the buckets of Prometheus histograms.
FIRST_BYTE_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
PER_TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
MOST_SERIES = 500                # of model and upstream together: names come from clients
SUBSCRIBERS = 64
WAITING_EVENTS = 256             # of one subscriber that does not keep up


class Histogram:
    """Counts by upper end, and a sum."""

    def __init__(self, ends: tuple[float, ...]) -> None:
        self.ends = ends
        self.counts = [0] * (len(ends) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        """One measurement."""
        self.counts[bisect_left(self.ends, value)] += 1
        self.sum += value


@dataclass(slots=True)
class Sums:
    """Of one model on one upstream, since the start."""

    by_state: dict[str, int] = field(default_factory=dict)
    tokens: int = 0
    prompt_tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    retried: int = 0
    held_seconds: float = 0.0
    first_byte: Histogram = field(default_factory=lambda: Histogram(FIRST_BYTE_BUCKETS))
    per_token: Histogram = field(default_factory=lambda: Histogram(PER_TOKEN_BUCKETS))


class Records:
    """Live requests and ended ones."""

    def __init__(self, size: int, clock: Callable[[], float], *, keep_bodies: bool = False,
                 wall: Callable[[], float] = time.time) -> None:
        self.live: dict[str, Exchange] = {}
        self.ring: deque[RequestRecord] = deque(maxlen=max(1, size))
        self.bodies: dict[str, bytes] = {}       # by id, of those in the ring, where settings keep them
        self.sums: dict[tuple[str, str], Sums] = {}
        self.started = wall()
        self.total = 0
        self.quiet = asyncio.Event()             # nothing is live
        self.quiet.set()
        self._clock = clock
        self._wall = wall
        self._keep_bodies = keep_bodies
        self._numbers = itertools.count(1)
        self._prefix = f"{int(self.started) & 0xffffff:06x}"
        self.events = Events(wall)

    def begin(self, exchange: Exchange) -> Exchange:
        """Count a request as live; gives it its id and times."""
        exchange.id = f"{self._prefix}-{next(self._numbers)}"
        exchange.started, exchange.started_wall = self._clock(), self._wall()
        self.live[exchange.id] = exchange
        self.total += 1
        self.quiet.clear()
        return exchange

    def end(self, exchange: Exchange, state: ExchangeState) -> RequestRecord | None:
        """A request has ended; once only."""
        if self.live.pop(exchange.id, None) is None:
            return None
        if not self.live:
            self.quiet.set()
        exchange.state, exchange.ended, exchange.cancel = state, self._clock(), None
        record = record_of(exchange)
        if self._keep_bodies:
            if len(self.ring) == self.ring.maxlen:
                self.bodies.pop(self.ring[0].id, None)
            self.bodies[record.id] = exchange.body
        self.ring.append(record)
        self._add(record)
        if self.events.wanted:
            self.events.tell("request", asdict(record))
        return record

    def drafts(self, upstream: str) -> tuple[int, int]:
        """Tokens that were drafted for answers of an upstream since the start, and those that were right."""
        sums = [sums for (_, name), sums in self.sums.items() if name == upstream]
        return sum(one.drafted for one in sums), sum(one.accepted for one in sums)

    def _add(self, record: RequestRecord) -> None:
        key = (record.model, record.upstream)
        if key not in self.sums and (len(self.sums) >= MOST_SERIES or not record.upstream):
            key = ("", record.upstream)            # what nobody served has a name that anybody could make up
        sums = self.sums.setdefault(key, Sums())
        sums.by_state[record.state] = sums.by_state.get(record.state, 0) + 1
        sums.tokens += record.tokens
        sums.prompt_tokens += record.prompt_tokens
        sums.drafted += record.drafted
        sums.accepted += record.accepted
        sums.retried += record.retried
        sums.held_seconds += record.held
        if record.to_first_byte is not None:
            sums.first_byte.add(record.to_first_byte)
        if record.per_token is not None:
            sums.per_token.add(record.per_token)


def record_of(exchange: Exchange) -> RequestRecord:
    """What is kept of an exchange that has ended."""
    ended = exchange.ended if exchange.ended is not None else exchange.started
    first = None if exchange.first_byte is None else exchange.first_byte - exchange.started
    writing = exchange.streaming and exchange.first_byte is not None and exchange.tokens > 1
    per_token = (ended - exchange.first_byte) / (exchange.tokens - 1) if writing and exchange.first_byte else None
    return RequestRecord(
        exchange.id, str(exchange.kind), exchange.path, exchange.model, exchange.upstream, exchange.caller,
        exchange.client, exchange.streaming, exchange.started_wall, str(exchange.state), exchange.status,
        exchange.held, exchange.retried, ended - exchange.started, first, per_token, exchange.tokens,
        exchange.prompt_tokens, exchange.drafted, exchange.accepted, exchange.bytes_in, exchange.bytes_out,
        exchange.repairs, exchange.problem)


def live_of(exchange: Exchange, now: float) -> dict[str, object]:
    """A live request, as JSON."""
    return {
        "id": exchange.id, "kind": str(exchange.kind), "path": exchange.path, "model": exchange.model,
        "upstream": exchange.upstream, "caller": exchange.caller, "client": exchange.client,
        "streaming": exchange.streaming, "started": exchange.started_wall, "seconds": now - exchange.started,
        "state": str(exchange.state), "held": exchange.held, "retried": exchange.retried, "tokens": exchange.tokens,
        "to_first_byte": None if exchange.first_byte is None else exchange.first_byte - exchange.started,
        "bytes_in": exchange.bytes_in, "bytes_out": exchange.bytes_out,
    }


class Events:
    """What happens, as server-sent events; who does not keep up misses some and is told so."""

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._queues: set[asyncio.Queue[bytes]] = set()

    @property
    def wanted(self) -> bool:
        """Somebody listens."""
        return bool(self._queues)

    def tell(self, kind: str, facts: dict[str, object]) -> None:
        """One event to everybody who listens."""
        if not self._queues:
            return
        block = b"event: %s\ndata: %s\n\n" % (kind.encode(), json.dumps(
            {"at": self._wall(), **facts}, separators=(",", ":")).encode())
        for queue in self._queues:
            if queue.full():
                queue.get_nowait()
                queue.get_nowait()
                queue.put_nowait(b": some events were left out\n\n")
            queue.put_nowait(block)

    async def listen(self, keep_alive: float = 15.0) -> AsyncIterator[bytes]:
        """Blocks of an event stream, comments between them. Raises OverflowError where too many listen."""
        if len(self._queues) >= SUBSCRIBERS:
            raise OverflowError(f"{SUBSCRIBERS} clients listen already")
        queue: asyncio.Queue[bytes] = asyncio.Queue(WAITING_EVENTS)
        self._queues.add(queue)
        try:
            yield b": quarterdeck\n\n"
            while True:
                try:
                    async with asyncio.timeout(keep_alive):
                        block = await queue.get()
                except TimeoutError:
                    block = b": quarterdeck\n\n"
                yield block
        finally:
            self._queues.discard(queue)
