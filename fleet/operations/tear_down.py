"""Taking everything down: every service of this fleet that can be reached, and a word on what cannot."""

from __future__ import annotations

import asyncio

from fleet.errors import FleetError, OperationFailed
from fleet.facts import head_facts
from fleet.model import ServiceKind, ServiceRecord
from fleet.operations.hands import Hands
from fleet.operations.plan import Plan, Report, Step
from fleet.operations.proxy_clear import clear_proxy
from fleet.operations.services import StopRecorded
from fleet.operations.slot_keys import key_of

STOP_TIMEOUT = 30.0    # seconds: TERM, 3 s, TERM, 3 s, KILL, and a slow link


def plan_tear_down(hands: Hands) -> Plan:
    """End every service of this fleet: heads first, since a worker that dies under its head takes it along."""
    order = (ServiceKind.PROXY, ServiceKind.COORDINATOR, ServiceKind.STAGE, ServiceKind.RELAY, ServiceKind.WORKER,
             ServiceKind.SEEDER)
    found = [(node.name, record) for node in hands.snapshot().nodes.values() if node.reading
             for record in node.reading.services if record.fleet in ("", hands.config.fleet)]
    unseen = _workers_unseen(hands, [record for _, record in found])
    if not found:
        lost = _unseen(hands)
        title = "Nothing of ours runs where it can be seen" if lost else "Nothing of ours runs"
        return Plan("down", title, remarks=lost)
    found.sort(key=lambda pair: order.index(pair[1].kind))
    stops = tuple(StopIfReachable(hands, node, record) for node, record in found)
    title = f"Tear down {len(stops)} service{'s' if len(stops) != 1 else ''}"
    return Plan("down", title, (*stops, NothingLeft(stops, unseen)), remarks=_unseen(hands))


class StopIfReachable(StopRecorded):
    """One stop of a tear-down: a node that is lost meanwhile does not keep the others up."""

    undo = Step.undo
    left_behind = ""

    async def do(self, report: Report) -> None:
        try:
            async with asyncio.timeout(STOP_TIMEOUT):
                await super().do(report)
                if self.record.kind in (ServiceKind.RELAY, ServiceKind.SEEDER):
                    await self._hands.supervisor(self.node).remove_secret(self.record.id)
                if key_of(self.record.facts):
                    await self._hands.supervisor(self.node).keep_slots()
                if self.record.kind is ServiceKind.PROXY:
                    await clear_proxy(self._hands, self.node, self.record.id)
        except (FleetError, TimeoutError) as error:
            self.left_behind = (error.what if isinstance(error, FleetError)
                                else f"no answer within {STOP_TIMEOUT:.0f} s")
            report(f"left behind: {self.left_behind}")


class NothingLeft(Step):
    """Says at the end what could not be ended, so that a tear-down that was not whole is no success."""

    title = "See that nothing is left"

    def __init__(self, stops: tuple[StopIfReachable, ...], unseen: tuple[str, ...] = ()) -> None:
        self._stops, self._unseen = stops, unseen

    async def do(self, report: Report) -> None:
        left = [f"{stop.record.id} on {stop.node} ({stop.left_behind.rstrip('.')})" for stop in self._stops
                if stop.left_behind]
        left += self._unseen
        if left:
            raise OperationFailed(f"Not ended: {'; '.join(left)}.",
                                  "Run `quarterdeck down` again when it can be reached.")


def _unseen(hands: Hands) -> tuple[str, ...]:
    """Nodes whose services cannot be seen now, and so are not ended."""
    return tuple(f"{node.name} is {node.state.value}: what may run there is not ended."
                 for node in hands.snapshot().nodes.values() if node.configured and node.reading is None)


def _workers_unseen(hands: Hands, records: list[ServiceRecord]) -> tuple[str, ...]:
    """Workers that heads are known to use, on nodes that were never read: they run, and cannot be ended now."""
    nodes = hands.snapshot().nodes
    found = {(worker.node, worker.service): nodes[worker.node]
             for record in records if record.kind is ServiceKind.COORDINATOR
             for worker in head_facts(record.facts).workers
             if worker.service and worker.node in nodes and nodes[worker.node].reading is None}
    return tuple(f"{service} on {name} ({name} is {node.state.value})" for (name, service), node in found.items())
