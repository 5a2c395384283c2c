"""Steps for `rpc: tunnel`: a relay on this machine that joins the head's loopback with a worker's."""

from __future__ import annotations

import asyncio
import hashlib
import sys
from collections.abc import Mapping

from fleet.errors import PlanRefused, StartFailed
from fleet.model import Node, ServiceKind
from fleet.nodes.connect import target_of
from fleet.nodes.supervisor import ServiceSpec
from fleet.operations.arrangement import Arrangement, Seat
from fleet.operations.deaths import LOG_TAIL, raise_if_dead
from fleet.operations.hands import Hands, node_of, record_of
from fleet.operations.plan import Report, Step
from fleet.operations.services import stop_quietly
from fleet.relay import READY, RelayPlan
from fleet.text import visible

READY_WITHIN = 30.0      # seconds for two sign-ins through hops, and one try more
LOOK_EVERY = 0.2


def local_node(hands: Hands) -> str:
    """The name of this machine, where relays run.

    Raises:
        PlanRefused: it is not part of the fleet.
    """
    here = next((node.name for node in hands.snapshot().nodes.values() if node.local), None)
    if here is None:
        raise PlanRefused("A tunnel is relayed by this machine, but this machine is not watched.",
                          "Let it be part of the fleet: `address: local`.")
    return here


class Relay(Step):
    """Start a relay on this machine, unless the same one runs."""

    def __init__(self, hands: Hands, title: str, id: str, plan: RelayPlan, facts: Mapping[str, object]) -> None:
        self.node = local_node(hands)
        self.title = title
        self._hands, self._id, self._plan, self._facts = hands, id, plan, facts
        self._digest = hashlib.sha256(plan.to_json().encode()).hexdigest()

    async def check(self) -> str | None:
        record = record_of(node_of(self._hands, self.node), self._id)
        same = record is not None and record.alive and record.facts.get("plan") == self._digest
        return "runs already" if same else None

    async def do(self, report: Report) -> None:
        supervisor = self._hands.supervisor(self.node)
        await supervisor.stop(self._id, on_phase=report)
        await supervisor.forget(self._id)
        path = await supervisor.write_secret(self._id, self._plan.to_json().encode())
        here = self._plan.head is None
        record = await supervisor.start(ServiceSpec(
            id=self._id, kind=ServiceKind.RELAY, argv=(sys.executable, "-m", "fleet.relay", path),
            port=self._plan.listen_port if here else 0, bind="127.0.0.1", fleet=self._hands.config.fleet,
            facts={**self._facts, "plan": self._digest}, log_limit=self._hands.config.log_limit))
        report(f"pid {record.pid}")
        await self._ready()
        await self._hands.reread(self.node, quick=True)

    async def _ready(self) -> None:
        """Wait until it listens. What it cannot do stands in its log, and it tries again."""
        supervisor, last = self._hands.supervisor(self.node), ""
        try:
            async with asyncio.timeout(READY_WITHIN):
                while True:
                    await raise_if_dead(self._hands, self.node, self._id)
                    lines = (await supervisor.read_log(self._id, limit=LOG_TAIL)).text.split("\n")
                    if any(line.startswith(READY) for line in lines):
                        return
                    last = next((line for line in reversed(lines) if line), last)
                    await asyncio.sleep(LOOK_EVERY)
        except TimeoutError as error:
            raise StartFailed(f"{self._id} on {self.node} has made no way within {READY_WITHIN:.0f} s"
                              f"{f': {visible(last, limit=300)}' if last else '.'}",
                              "It signs in by agent or by keys without a passphrase; nobody can be asked there.",
                              code="no-way") from error

    async def undo(self, report: Report) -> None:
        await stop_quietly(self._hands, self.node, self._id, report)
        await self._hands.supervisor(self.node).remove_secret(self._id)


class StartRelay(Relay):
    """The relay of one worker."""

    def __init__(self, hands: Hands, arrangement: Arrangement, seat: Seat) -> None:
        worker = seat.choice
        plan = RelayPlan(_target(hands, arrangement.choice.head), _target(hands, worker.node), seat.dial_port,
                         worker.config.port)
        super().__init__(hands, f"Tunnel to the worker on {worker.node.name}, port {worker.config.port}, through "
                         f"{local_node(hands)}", f"relay-{seat.dial_port}", plan, {})


def _target(hands: Hands, node: Node):
    return None if node.local else target_of(hands, node)
