"""Steps on one service: end it, start it as it was, end a process that is not ours, adopt one."""

from __future__ import annotations

import asyncio

from fleet.errors import FleetError, OperationFailed, PlanRefused, ServiceError
from fleet.events import AdoptProcess, EndProcess, RestartService, StartService, StopService
from fleet.model import ServiceKind, ServiceRecord
from fleet.nodes.supervisor import ServiceSpec
from fleet.operations.hands import Hands, node_of
from fleet.operations.plan import Plan, Report, Step

STOP_TIMEOUT = 30.0    # seconds: TERM, 3 s, TERM, 3 s, KILL, and a slow link
WORDS = {ServiceKind.WORKER: "worker", ServiceKind.COORDINATOR: "head", ServiceKind.RELAY: "relay",
         ServiceKind.PROXY: "proxy", ServiceKind.SEEDER: "seeder"}


def find_record(hands: Hands, node: str, service: str) -> ServiceRecord:
    """A service by its node and id.

    Raises:
        PlanRefused: there is none.
    """
    there = hands.snapshot().nodes.get(node)
    if there is None:
        raise PlanRefused(f"No node is called {node}.", "`quarterdeck nodes` lists them.")
    records = there.reading.services if there.reading else ()
    record = next((r for r in records if r.id == service), None)
    if record is None:
        known = ", ".join(r.id for r in records) or "none"
        raise PlanRefused(f"{node} has no service called {service}.", f"Its services: {known}.")
    return record


class StopRecorded(Step):
    """End a service and clean its pid file; its undo starts it again as it was."""

    def __init__(self, hands: Hands, node: str, record: ServiceRecord) -> None:
        self.title = f"Stop {WORDS[record.kind]} on {node}, port {record.port}"
        self.node = node
        self.record = record
        self.spec: ServiceSpec | None = None      # what it was started from, once it is known
        self._hands = hands

    async def do(self, report: Report) -> None:
        supervisor = self._hands.supervisor(self.node)
        try:
            self.spec = await supervisor.spec(self.record.id)
        except ServiceError:
            self.spec = None                      # torn pid file: it can be ended, not started again
        outcome = await supervisor.stop(self.record.id, on_phase=report)
        if outcome.port_free is False:
            report(f"port {self.record.port} is now held by {outcome.port_owner or 'somebody else'}")
        await supervisor.forget(self.record.id)
        await self._hands.reread(self.node)

    async def undo(self, report: Report) -> None:
        if self.record.alive and self.spec is not None:
            report("starting it again")
            await self._hands.supervisor(self.node).start(self.spec, on_note=report)
            await self._hands.reread(self.node)


class StartRecorded(Step):
    """Start a service; its undo ends it."""

    def __init__(self, hands: Hands, node: str, spec: ServiceSpec) -> None:
        self.title = f"Start {WORDS[spec.kind]} on {node}, port {spec.port}"
        self.node = node
        self.spec = spec
        self._hands = hands

    async def do(self, report: Report) -> None:
        record = await self._hands.supervisor(self.node).start(self.spec, on_note=report)
        report(f"pid {record.pid}")
        await self._hands.reread(self.node)

    async def undo(self, report: Report) -> None:
        await stop_quietly(self._hands, self.node, self.spec.id, report)


class StartAgain(Step):
    """Start a service as it was: from its pid file, or from what a stop before it remembered."""

    def __init__(self, hands: Hands, node: str, record: ServiceRecord, after: StopRecorded | None = None) -> None:
        self.title = f"Start {WORDS[record.kind]} on {node}, port {record.port}"
        self.node = node
        self._hands, self._record, self._after = hands, record, after

    async def do(self, report: Report) -> None:
        supervisor = self._hands.supervisor(self.node)
        spec = self._after.spec if self._after else await supervisor.spec(self._record.id)
        if spec is None:
            raise ServiceError(f"How {self._record.id} on {self.node} was started is not known any more.",
                               "Bring the model up again instead.")
        record = await supervisor.start(spec, on_note=report)
        report(f"pid {record.pid}")
        await self._hands.reread(self.node)

    async def undo(self, report: Report) -> None:
        await stop_quietly(self._hands, self.node, self._record.id, report)


async def stop_quietly(hands: Hands, node: str, service: str, report: Report) -> None:
    """End what a failed step may have started, clean up after it, and let the screens know."""
    supervisor = hands.supervisor(node)
    await supervisor.stop(service, on_phase=report)
    await supervisor.forget(service)
    await hands.reread(node)


class EndForeign(Step):
    """End a process that nobody wrote down; there is no way back, so there is no undo."""

    def __init__(self, hands: Hands, node: str, pid: int, start_time: str, what: str) -> None:
        self.title = f"End {what} on {node}, pid {pid}"
        self.node = node
        self._hands, self._pid, self._start_time = hands, pid, start_time

    async def do(self, report: Report) -> None:
        await self._hands.supervisor(self.node).end_process(self._pid, self._start_time)
        await self._hands.reread(self.node)


class Adopt(Step):
    """Write the pid file of a process that somebody else started."""

    def __init__(self, hands: Hands, command: AdoptProcess) -> None:
        self.title = f"Adopt pid {command.pid} on {command.node}"
        self.node = command.node
        self._hands, self._command = hands, command

    async def do(self, report: Report) -> None:
        foreign = next((f for f in node_of(self._hands, self.node).foreign if f.process.pid == self._command.pid
                        and f.process.start_time == self._command.start_time), None)
        if foreign is None or foreign.kind is None or foreign.port is None:
            raise ServiceError(f"pid {self._command.pid} on {self.node} is no llama.cpp server that listens any more.",
                               "Look at the node again.")
        record = await self._hands.supervisor(self.node).adopt(
            foreign.process, foreign.kind, foreign.port, foreign.bind, self._hands.config.fleet)
        report(f"now {record.id}")
        await self._hands.reread(self.node)


def plan_service(hands: Hands, command: StartService | StopService | RestartService) -> Plan:
    """Start, stop or restart one service as it was."""
    record = find_record(hands, command.node, command.service)
    word = WORDS[record.kind]
    stop = StopRecorded(hands, command.node, record)
    remarks = _remarks(hands, command.node, record) if record.alive else ()
    match command:
        case StopService():
            steps: tuple[Step, ...] = (stop,)
            return Plan("stop", f"Stop {word} {record.id} on {command.node}", steps, command.node, remarks)
        case StartService():
            if record.alive:
                return Plan("start", f"{record.id} on {command.node} runs already", (), command.node)
            again: tuple[Step, ...] = (StartAgain(hands, command.node, record),)
            return Plan("start", f"Start {word} {record.id} on {command.node}", again, command.node)
        case RestartService():
            title = f"Restart {word} {record.id} on {command.node}"
            return Plan("restart", title, (stop, StartAgain(hands, command.node, record, stop)), command.node, remarks)
    raise TypeError(f"no such command: {command!r}")


def _remarks(hands: Hands, node: str, record: ServiceRecord) -> tuple[str, ...]:
    deployment = hands.snapshot().deployment
    if (node, record.id) in deployment.workers and deployment.head:
        return (f"{deployment.model} is being served with this worker: the head on {deployment.head} loses it and "
                "its next request fails.",)
    if (node, record.id) == (deployment.head, deployment.head_service):
        return (f"{deployment.model} is served by it: requests that are running end.",)
    return ()


def plan_process(hands: Hands, command: AdoptProcess | EndProcess) -> Plan:
    """Adopt or end a process that is not ours."""
    if isinstance(command, AdoptProcess):
        step: Step = Adopt(hands, command)
        return Plan("adopt", step.title, (step,), command.node)
    node = hands.snapshot().nodes.get(command.node)
    foreign = next((f for f in (node.foreign if node else ()) if f.process.pid == command.pid), None)
    what = foreign.process.argv[0].rpartition("/")[2] if foreign and foreign.process.argv else "process"
    step = EndForeign(hands, command.node, command.pid, command.start_time, what)
    return Plan("end", step.title, (step,), command.node)


def plan_tear_down(hands: Hands) -> Plan:
    """End every service of this fleet: heads first, since a worker that dies under its head takes it along."""
    order = (ServiceKind.PROXY, ServiceKind.COORDINATOR, ServiceKind.RELAY, ServiceKind.WORKER, ServiceKind.SEEDER)
    found = [(node.name, record) for node in hands.snapshot().nodes.values() if node.reading
             for record in node.reading.services if record.fleet in ("", hands.config.fleet)]
    if not found:
        return Plan("down", "Nothing of ours runs", remarks=_unseen(hands))
    found.sort(key=lambda pair: order.index(pair[1].kind))
    stops = tuple(StopIfReachable(hands, node, record) for node, record in found)
    title = f"Tear down {len(stops)} service{'s' if len(stops) != 1 else ''}"
    return Plan("down", title, (*stops, NothingLeft(stops)), remarks=_unseen(hands))


class StopIfReachable(StopRecorded):
    """One stop of a tear-down: a node that is lost meanwhile does not keep the others up."""

    undo = Step.undo
    left_behind = ""

    async def do(self, report: Report) -> None:
        try:
            async with asyncio.timeout(STOP_TIMEOUT):
                await super().do(report)
        except (FleetError, TimeoutError) as error:
            self.left_behind = str(error) or f"no answer within {STOP_TIMEOUT:.0f} s"
            report(f"left behind: {self.left_behind}")


class NothingLeft(Step):
    """Says at the end what could not be ended, so that a tear-down that was not whole is no success."""

    title = "See that nothing is left"

    def __init__(self, stops: tuple[StopIfReachable, ...]) -> None:
        self._stops = stops

    async def do(self, report: Report) -> None:
        left = [f"{stop.record.id} on {stop.node} ({stop.left_behind})" for stop in self._stops if stop.left_behind]
        if left:
            raise OperationFailed(f"Not ended: {'; '.join(left)}.",
                                  "Run `quarterdeck down` again when it can be reached.")


def _unseen(hands: Hands) -> tuple[str, ...]:
    """Nodes whose services cannot be seen now, and so are not ended."""
    return tuple(f"{node.name} is {node.state.value}: what may run there is not ended."
                 for node in hands.snapshot().nodes.values() if node.configured and node.reading is None)
