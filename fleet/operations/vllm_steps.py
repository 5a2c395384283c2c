"""Steps of a bring-up over vLLM: wait for Ray, follow the load of every stage, see what is served."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, replace

from fleet.errors import FleetError, OperationFailed
from fleet.facts import head_facts
from fleet.operations.deaths import LOST, raise_if_dead, seen_record
from fleet.operations.hands import Hands, node_of
from fleet.operations.head_steps import Life
from fleet.operations.plan import Report, Step
from fleet.operations.vllm_arrange import VllmArrangement
from fleet.runtimes.head_answers import HeadHealth
from fleet.runtimes.vllm_health import DEAD, VllmClient

RAY_WITHIN = 120.0       # seconds for one node of a Ray cluster to start
RAY_STARTED = "Ray runtime started"      # what `ray start` says, on the first node and on those that join
LOOK_EVERY = 0.4
LOG_STEP = 64 * 1024
SMOKE_PATIENCE = 3.0     # times the time after which a load is given up: the first token compiles kernels


class RayStarted(Step):
    """Wait until one node of the Ray cluster says that it has started."""

    def __init__(self, hands: Hands, node: str, service: str) -> None:
        self.title = f"Wait for Ray on {node}"
        self.node = node
        self._hands, self._service = hands, service

    async def do(self, report: Report) -> None:
        deadline = self._hands.clock() + RAY_WITHIN
        while True:
            log = (await self._hands.supervisor(self.node).read_log(self._service, limit=LOG_STEP)).text
            if RAY_STARTED in log:
                await self._hands.reread(self.node)
                return
            await raise_if_dead(self._hands, self.node, self._service)
            if self._hands.clock() > deadline:
                raise OperationFailed(f"Ray on {self.node} has not started within {RAY_WITHIN:.0f} s.",
                                      "See its log; the other nodes must reach the first one's ports.", code="ray")
            await asyncio.sleep(LOOK_EVERY)


class FollowStages(Step):
    """Follow all processes until the head answers. A load that moves may take as long as it takes."""

    def __init__(self, hands: Hands, arrangement: VllmArrangement) -> None:
        stages = len(arrangement.pipeline.stages)
        self.title = f"Load {arrangement.model.name} over {stages} node{'s' if stages != 1 else ''}"
        self.node = arrangement.head_node
        self._hands, self._arrangement = hands, arrangement
        self._services = [*((node, spec.id) for node, spec in arrangement.stage_specs),
                          (arrangement.head_node, arrangement.head_service)]

    async def do(self, report: Report) -> None:
        life = Life(self._hands.clock())
        async with client_of(self._hands, self._arrangement) as client:
            while True:
                health = await client.health()
                if health is HeadHealth.READY:
                    await raise_if_any_dead(self._hands, self._services, ask=True)
                    return
                if client.health_detail == DEAD:
                    raise OperationFailed(f"The engine of vLLM on {self.node} has died while it loaded.",
                                          "See the logs of the head and of the stages.", code="engine-dead")
                await raise_if_any_dead(self._hands, self._services, ask=False)
                size = sum([await self._log_size(node, service) for node, service in self._services])
                report(client.health_detail)
                still = life.still_for(self._hands.clock(), size, *self._used())
                if still > self._hands.stalled_after:
                    raise OperationFailed(
                        f"vLLM on {self.node} has not moved for {self._hands.stalled_after:.0f} s: no log line, no "
                        "processor time, no memory on any of its nodes.",
                        "See the logs; a stage that cannot reach the head's address, or another interface than the "
                        "one that is pinned, does this.", code="stalled")
                await asyncio.sleep(LOOK_EVERY)

    async def _log_size(self, node: str, service: str) -> int:
        return (await self._hands.supervisor(node).read_log(service, limit=1)).size

    def _used(self) -> tuple[float, int]:
        """Seconds of processor time and bytes of memory of all processes, as the last probes saw them."""
        seconds, memory = 0.0, 0
        for name in dict.fromkeys(node for node, _ in self._services):
            reading = node_of(self._hands, name).reading
            if reading is None:
                continue
            own = {record.pid for record in reading.services if (name, record.id) in self._services}
            for process in reading.processes:
                if process.pid in own or process.parent in own or (process.argv and process.argv[0].startswith("VLLM")):
                    seconds += process.cpu_seconds or 0.0
                    memory += process.rss
        return seconds, memory


class SeeServed(Step):
    """See that it serves the model under its name, and note which processes do."""

    title = "See what is served"

    def __init__(self, hands: Hands, arrangement: VllmArrangement) -> None:
        self.node = arrangement.head_node
        self._hands, self._arrangement = hands, arrangement

    async def do(self, report: Report) -> None:
        arrangement = self._arrangement
        async with client_of(self._hands, arrangement) as client:
            names = await client.models()
        if arrangement.model.name not in names:
            raise OperationFailed(f"What answers on {self.node}, port {arrangement.request.port}, serves "
                                  f"{', '.join(names[:4]) or 'nothing'}, not {arrangement.model.name}.",
                                  "Another server may have taken the port; see the head's log.", code="other-model")
        for node in dict.fromkeys(node for node, _ in arrangement.stage_specs):
            await self._hands.reread(node)
        refs = []
        for worker in head_facts(arrangement.head_spec.facts).workers:
            record = seen_record(self._hands, worker.node, worker.service)
            refs.append(asdict(replace(worker, pid=record.pid if record else 0)))
        await self._hands.supervisor(self.node).annotate(arrangement.head_service, {"workers": refs})
        await self._hands.reread(self.node)
        report(f"{arrangement.model.name}, {len(arrangement.pipeline.stages)} x {arrangement.pipeline.tensor} ranks")


class FirstToken(Step):
    """One token, through every stage."""

    title = "Ask for one token"

    def __init__(self, hands: Hands, arrangement: VllmArrangement) -> None:
        self.node = arrangement.head_node
        self._hands, self._arrangement = hands, arrangement

    async def do(self, report: Report) -> None:
        arrangement = self._arrangement
        services = [*((node, spec.id) for node, spec in arrangement.stage_specs),
                    (arrangement.head_node, arrangement.head_service)]
        async with client_of(self._hands, arrangement) as client:
            try:
                count = await client.one_token(arrangement.model.name,
                                               timeout=self._hands.stalled_after * SMOKE_PATIENCE)
            except FleetError as error:
                await raise_if_any_dead(self._hands, services, ask=True)
                raise OperationFailed(f"vLLM answers, but gives no token: {error.what}", error.remedy) from error
        report(f"{count} written")


async def raise_if_any_dead(hands: Hands, services: Sequence[tuple[str, str]], *, ask: bool) -> None:
    """A rank that ends leaves the others waiting: then that one is what to speak of.

    With `ask` the nodes are asked for their pid files now; without, what the last probes saw has to do.

    Raises:
        FleetError: one has ended, or its node is lost.
    """
    for name, service in services:
        node = node_of(hands, name)
        if node.state in LOST:
            raise OperationFailed(f"{name}, which {service} is on, was lost meanwhile: it is {node.state.value}.",
                                  "Bring it back, or leave it out.", code="node-lost")
        seen = seen_record(hands, name, service)
        if ask or seen is None or not seen.alive:
            await raise_if_dead(hands, name, service)


def client_of(hands: Hands, arrangement: VllmArrangement) -> VllmClient:
    """A client of the arrangement's head, through its node's transport."""
    request = arrangement.request
    return VllmClient(hands.transport(arrangement.head_node), request.host, request.port,
                      api_key_file=request.api_key_file)
