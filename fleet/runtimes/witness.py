"""What probes cannot tell: what a head says over HTTP and in its log, and why a service ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

from fleet.config.schema import FleetConfig
from fleet.errors import FleetError, ServiceError
from fleet.facts import head_facts
from fleet.judge import Evidence, HeadEvidence, Key, key_of
from fleet.model import Placement, Problem, ServiceKind, ServiceRecord, ServiceState, Snapshot
from fleet.nodes.supervisor import Supervisor
from fleet.nodes.transport import Transport
from fleet.runtimes.death import cause_of_death
from fleet.runtimes.head_http import HeadClient, HeadHealth
from fleet.runtimes.head_log import HeadLog, judge_placement, real_shares
from fleet.runtimes.vllm_health import DEAD, VllmClient

LOG_STEP = 256 * 1024
LOG_STEPS = 64            # at most: that is as much as a log may hold
LOAD_LOOK = 0.5           # seconds between two looks at a head that loads
LOG_TAIL = 8192
STUCK_AFTER = 20.0        # seconds without an HTTP answer from a head that was ready: a long prefill still answers

STATES = {HeadHealth.STARTING: ServiceState.STARTING, HeadHealth.LOADING: ServiceState.LOADING,
          HeadHealth.READY: ServiceState.READY, HeadHealth.DOWN: ServiceState.STARTING}


class Witness:
    """Follows every live head and looks into the log of every service that ended. Its evidence is judged by others."""

    def __init__(self, context: WitnessContext, on_news: Callable[[str], None]) -> None:
        self._context = context
        self._on_news = on_news
        self._heads: dict[Key, HeadEvidence] = {}
        self._deaths: dict[Key, Problem] = {}
        self._tasks: dict[Key, asyncio.Task[None]] = {}      # that follow heads
        self._looked: dict[Key, asyncio.Event] = {}          # set when the head was looked at once
        self._autopsies: dict[Key, tuple[int | None, asyncio.Task[None]]] = {}   # with the exit status known then

    @property
    def evidence(self) -> Evidence:
        """All that is known now."""
        return Evidence(self._heads, self._deaths)

    def look(self, name: str) -> None:
        """A node was read: follow the heads that live there, find out about what ended."""
        node = self._context.snapshot().nodes.get(name)
        if node is None or node.reading is None:
            return
        for record in node.reading.services:
            key = key_of(name, record)
            lives = record.alive and not record.stopping
            if record.kind is ServiceKind.COORDINATOR and lives and self._is_over(self._tasks.get(key)):
                self._looked[key] = asyncio.Event()
                self._tasks[key] = asyncio.ensure_future(self._follow(key, record, self._looked[key]))
            if not record.alive and not record.stopping:
                status, task = self._autopsies.get(key, (None, None))
                # the exit status can come a moment after the end: what is known by then counts
                if task is None or (status is None and record.exit_status is not None):
                    self._autopsies[key] = record.exit_status, asyncio.ensure_future(self._autopsy(key, record))
        self._drop(name, {key_of(name, record): record for record in node.reading.services})

    def forget(self, name: str) -> None:
        """A node is no longer part of the fleet."""
        self._drop(name, {})

    async def looked(self) -> None:
        """Wait until every head that is followed by now was looked at once, whatever came of it."""
        for event in tuple(self._looked.values()):
            await event.wait()

    async def close(self) -> None:
        """Stop following."""
        tasks = [*self._tasks.values(), *(task for _, task in self._autopsies.values())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @staticmethod
    def _is_over(task: asyncio.Task[None] | None) -> bool:
        """Whether nobody follows; what a follower stumbled over is looked at, so that asyncio does not complain."""
        if task is None or not task.done():
            return task is None
        if not task.cancelled():
            task.exception()
        return True

    def _drop(self, name: str, records: Mapping[Key, ServiceRecord]) -> None:
        """Stop following heads that ended, and drop what is known of services that are gone."""
        for key in [key for key in self._tasks if key[0] == name]:
            record = records.get(key)
            if record is None or not record.alive:
                self._tasks.pop(key).cancel()
                self._heads.pop(key, None)
                self._looked.pop(key).set()
        for key in [key for key in self._autopsies if key[0] == name and key not in records]:
            self._autopsies.pop(key)[1].cancel()
            self._deaths.pop(key, None)

    async def _autopsy(self, key: Key, record: ServiceRecord) -> None:
        """Why a service ended, by its exit status and the end of its log."""
        try:
            tail = (await self._context.supervisor(key[0]).read_log(record.id, limit=LOG_TAIL)).text
        except FleetError:
            tail = ""
        problem = cause_of_death(record.kind, record.exit_status, tail)
        self._deaths[key] = replace(problem, what=f"{record.id} on {key[0]} ended: {problem.what}")
        self._on_news(key[0])

    async def _follow(self, key: Key, record: ServiceRecord, looked: asyncio.Event) -> None:
        """Follow one head for as long as it lives."""
        head = _Head(self._context, key, record)
        try:
            while True:
                evidence = await head.look()
                if evidence is not None and evidence != self._heads.get(key):
                    self._heads[key] = evidence
                    self._on_news(key[0])
                looked.set()
                ready = evidence is not None and evidence.state in (ServiceState.READY, ServiceState.BUSY)
                await asyncio.sleep(self._context.config.refresh if ready else LOAD_LOOK)
        finally:
            looked.set()
            await head.close()


class WitnessContext(Protocol):
    """What the witness needs of the engine."""

    config: FleetConfig
    clock: Callable[[], float]

    def snapshot(self) -> Snapshot:
        """The newest Snapshot."""
        ...

    def transport(self, node: str) -> Transport:
        """A connected transport, or a `NodeError`."""
        ...

    def supervisor(self, node: str) -> Supervisor:
        """Who reads logs there, or a `NodeError`."""
        ...


class _Head:
    """One head: its log since it began, its answers."""

    def __init__(self, context: WitnessContext, key: Key, record: ServiceRecord) -> None:
        self._context = context
        self._node = key[0]
        self._record = record
        self._log = HeadLog()
        self._offset = 0
        self._read_to_the_end = False
        self._answered_at: float | None = None
        self._last: HeadEvidence | None = None
        self._vllm = head_facts(record.facts).runtime == "vllm"
        self._counted: tuple[float, float] | None = None     # tokens, seconds that they took (vLLM: the clock then)
        self._told: tuple[float, float] = (0.0, 0.0)         # the same, by llama.cpp's own clock
        self._speed: float | None = None
        self._kept: tuple[Transport, HeadClient] | None = None

    async def look(self) -> HeadEvidence | None:
        """Look once; None while its node cannot be reached."""
        now = self._context.clock()
        try:
            await self._read_log()
            client = await self._client()
            health = await client.health()
            if health is HeadHealth.READY and self._answered_at is None:
                self._answered_at = now
                for _ in range(LOG_STEPS):     # what it said between the reading and its answer counts too
                    await self._read_log()
        except FleetError:
            return None
        try:
            busy, total = await self._slots(client) if health is HeadHealth.READY else (None, None)
        except FleetError:
            busy, total = None, None      # it answers, and tells us nothing of its slots: a key that we do not have
        state = STATES[health]
        if health is HeadHealth.READY:
            self._answered_at = now
            state = ServiceState.BUSY if total and busy == total else ServiceState.READY
        elif self._answered_at is not None and now - self._answered_at > STUCK_AFTER:
            state = ServiceState.STUCK
        elif self._answered_at is not None and self._last is not None:
            state = self._last.state      # silent for a moment: busy, not dead
        dead = self._vllm and health is HeadHealth.LOADING    # it opens its port when it has loaded: 503 is no loading
        if dead:
            state = ServiceState.STUCK
        since = self._last.since if self._last is not None and self._last.state is state else now
        loading = state in (ServiceState.STARTING, ServiceState.LOADING)
        self._last = HeadEvidence(
            state, since, DEAD if dead else str(self._log.phase) if loading and not self._vllm else "",
            self._log.progress if loading else None,
            busy, total, self._speed, self._placement(), self._told)
        return self._last

    async def _client(self) -> HeadClient:
        """One client for as long as the connection to the node is the same one."""
        transport = self._context.transport(self._node)
        if self._kept is None or self._kept[0] is not transport:
            await self.close()
            kind = VllmClient if self._vllm else HeadClient
            self._kept = transport, kind(transport, self._record.bind, self._record.port,
                                         api_key_file=head_facts(self._facts()).api_key_file)
        return self._kept[1]

    async def close(self) -> None:
        """Let go of the connections to the head."""
        if self._kept is not None:
            await self._kept[1].close()
            self._kept = None

    async def _read_log(self) -> None:
        """Until it is loaded, and then once more to the end; what comes after tells nothing of the placement."""
        if self._read_to_the_end:
            return
        try:
            chunk = await self._context.supervisor(self._node).read_log(self._record.id, self._offset, LOG_STEP)
        except ServiceError:
            return                        # one that was adopted may have no log
        if chunk.rotated:
            self._log = HeadLog()
        self._log.feed(chunk.text)
        self._offset = chunk.offset
        # it had answered before this was read: all that it said of its load is here
        self._read_to_the_end = self._answered_at is not None and chunk.offset >= chunk.size

    def _facts(self) -> Mapping[str, object]:
        """As last read: those of an adopted head are written a moment after its pid file."""
        node = self._context.snapshot().nodes.get(self._node)
        records = node.reading.services if node and node.reading else ()
        same = next((r for r in records if (r.id, r.pid) == (self._record.id, self._record.pid)), self._record)
        return same.facts

    def _placement(self) -> Placement:
        facts = head_facts(self._facts())
        if not self._read_to_the_end or self._vllm:
            return Placement(facts.planned)   # half a log would show half a placement
        real = real_shares(self._log, {worker.endpoint: worker.node for worker in facts.workers}, self._node)
        return judge_placement(facts.planned, real) if real else Placement(facts.planned)

    async def _slots(self, client: HeadClient) -> tuple[int | None, int | None]:
        if isinstance(client, VllmClient):
            return await self._requests(client)
        slots = await client.slots()
        metrics = await client.metrics()
        counted = metrics.tokens_predicted_total, metrics.tokens_predicted_seconds_total
        if None not in counted:
            if self._counted is not None and counted[1] > self._counted[1]:
                self._speed = (counted[0] - self._counted[0]) / (counted[1] - self._counted[1])
            self._counted = self._told = counted
        return sum(slot.is_processing for slot in slots), len(slots)

    async def _requests(self, client: VllmClient) -> tuple[int | None, int | None]:
        """vLLM has no slots: what runs is told, and the speed is of all requests together."""
        now, counters = self._context.clock(), await client.counters()
        if counters.generated_tokens is not None:
            if self._counted is not None and counters.running and now > self._counted[1]:
                self._speed = (counters.generated_tokens - self._counted[0]) / (now - self._counted[1])
            self._counted = counters.generated_tokens, now
        return counters.running, None
