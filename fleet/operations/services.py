"""Steps on one service: end it, start it as it was, end a process that is not ours, adopt one."""

from __future__ import annotations

from dataclasses import replace

from fleet.errors import NO_SUCH, PlanRefused, PortTaken, ServiceError
from fleet.events import AdoptProcess, EndProcess, RestartService, StartService, StopService
from fleet.facts import head_facts, with_workers_of_now
from fleet.model import ServiceKind, ServiceRecord
from fleet.nodes.supervisor import ServiceSpec
from fleet.operations.adoption import facts_of_adopted
from fleet.operations.deaths import start
from fleet.operations.expert_steps import put_back
from fleet.operations.hands import Hands, node_of
from fleet.operations.plan import Plan, Report, Step
from fleet.operations.proxy_clear import ClearProxy

RUNNING = "running"    # code of the supervisor's error for a service that runs already
WORDS = {ServiceKind.WORKER: "worker", ServiceKind.COORDINATOR: "head", ServiceKind.STAGE: "stage",
         ServiceKind.RELAY: "relay", ServiceKind.PROXY: "proxy", ServiceKind.SEEDER: "seeder"}


def _at(port: int) -> str:
    """For titles. A relay has no port here: it listens on the head; a stage has none that is known."""
    return f", port {port}" if port else ""


def find_record(hands: Hands, node: str, service: str) -> ServiceRecord:
    """A service by its node and id.

    Raises:
        PlanRefused: there is none.
    """
    there = hands.snapshot().nodes.get(node)
    if there is None:
        raise PlanRefused(f"No node is called {node}.", f"Nodes: {', '.join(hands.snapshot().nodes) or 'none'}.",
                          code=NO_SUCH)
    records = there.reading.services if there.reading else ()
    record = next((r for r in records if r.id == service), None)
    if record is None:
        known = ", ".join(r.id for r in records) or "none"
        raise PlanRefused(f"{node} has no service called {service}.", f"Its services: {known}.", code=NO_SUCH)
    return record


class StopRecorded(Step):
    """End a service and clean its pid file; its undo starts it again as it was.

    With `keep` the pid file stays: a person who stops one service may want to start it again.
    """

    def __init__(self, hands: Hands, node: str, record: ServiceRecord, *, keep: bool = False) -> None:
        self.title = f"Stop {WORDS[record.kind]} on {node}{_at(record.port)}"
        self.node = node
        self.record = record
        self.spec: ServiceSpec | None = None      # what it was started from, once it is known
        self._hands = hands
        self._keep = keep

    async def do(self, report: Report) -> None:
        supervisor = self._hands.supervisor(self.node)
        try:
            self.spec = await supervisor.spec(self.record.id)
        except ServiceError:
            self.spec = None                      # torn pid file: it can be ended, not started again
        outcome = await supervisor.stop(self.record.id, on_phase=report)
        if outcome.port_free is False:
            report(f"port {self.record.port} is now held by {outcome.port_owner or 'somebody else'}")
        await put_back(self._hands, self.node, self.record.facts, report)
        if not self._keep:
            await supervisor.forget(self.record.id)
        await self._hands.reread(self.node, quick=True)

    async def undo(self, report: Report) -> None:
        if not self.record.alive or self.spec is None:
            return
        spec = self.spec
        if spec.kind is ServiceKind.COORDINATOR:
            await revive_workers(self._hands, spec, report)
            spec = replace(spec, facts=with_workers_of_now(spec.facts, self._hands.snapshot().nodes))
        report("starting it again")
        try:
            await start(self._hands, self.node, spec, report)
        except ServiceError as error:
            if error.code != RUNNING:             # it did not get as far as ending it
                raise
        await self._hands.reread(self.node, quick=True)


async def revive_workers(hands: Hands, head: ServiceSpec, report: Report) -> None:
    """Start the workers of a head again that have died meanwhile: it would end at once without them.

    Raises:
        FleetError: one does not start, or its node is lost.
    """
    for worker in head_facts(head.facts).workers:
        supervisor = hands.supervisor(worker.node)
        record = next((record for record in await supervisor.records() if record.id == worker.service), None)
        if record is None or record.alive:
            continue
        report(f"starting {worker.service} on {worker.node} again")
        await start(hands, worker.node, await supervisor.spec(worker.service), report)
        await hands.reread(worker.node, quick=True)


class Start(Step):
    """Start a service; its undo ends it, unless what runs there is not what was started here."""

    begun = False

    def __init__(self, hands: Hands, node: str) -> None:
        self.node = node
        self._hands = hands

    async def start(self, spec: ServiceSpec, report: Report) -> ServiceRecord:
        """Start `spec`, and remember whether there is anything to undo."""
        self.begun = True
        try:
            record = await start(self._hands, self.node, spec, report)
        except PortTaken:
            raise
        except ServiceError as error:
            self.begun = error.code not in (RUNNING, "busy")     # somebody else's: not ours to end
            raise
        report(f"pid {record.pid}")
        await self._hands.reread(self.node, quick=True)
        return record

    async def end(self, service: str, report: Report) -> None:
        """Undo `start`."""
        if self.begun:
            await stop_quietly(self._hands, self.node, service, report)


class StartRecorded(Start):
    """Start a service from its spec."""

    def __init__(self, hands: Hands, node: str, spec: ServiceSpec) -> None:
        super().__init__(hands, node)
        self.title = f"Start {WORDS[spec.kind]} on {node}{_at(spec.port)}"
        self.spec = spec

    async def do(self, report: Report) -> None:
        await self.start(self.spec, report)

    async def undo(self, report: Report) -> None:
        await self.end(self.spec.id, report)


class StartAgain(Start):
    """Start a service as it was: from its pid file, or from what a stop before it remembered."""

    def __init__(self, hands: Hands, node: str, record: ServiceRecord, after: StopRecorded | None = None) -> None:
        super().__init__(hands, node)
        self.title = f"Start {WORDS[record.kind]} on {node}{_at(record.port)}"
        self._record, self._after = record, after

    async def do(self, report: Report) -> None:
        spec = self._after.spec if self._after else await self._hands.supervisor(self.node).spec(self._record.id)
        if spec is None:
            raise ServiceError(f"How {self._record.id} on {self.node} was started is not known any more.",
                               "Bring the model up again instead.")
        if spec.kind is ServiceKind.COORDINATOR:
            spec = replace(spec, facts=with_workers_of_now(spec.facts, self._hands.snapshot().nodes))
        await self.start(spec, report)

    async def undo(self, report: Report) -> None:
        await self.end(self._record.id, report)


async def stop_quietly(hands: Hands, node: str, service: str, report: Report) -> None:
    """End what a failed step may have started, clean up after it, and let the screens know."""
    supervisor = hands.supervisor(node)
    listed = await supervisor.records()
    await supervisor.stop(service, on_phase=report)
    for record in listed:
        if record.id == service:
            await put_back(hands, node, record.facts, report)
    await supervisor.forget(service)
    await hands.reread(node, quick=True)


class EndForeign(Step):
    """End a process that nobody wrote down; there is no way back, so there is no undo."""

    def __init__(self, hands: Hands, node: str, pid: int, start_time: str, what: str) -> None:
        self.title = f"End {what} on {node}, pid {pid}"
        self.node = node
        self._hands, self._pid, self._start_time = hands, pid, start_time

    async def do(self, report: Report) -> None:
        await self._hands.supervisor(self.node).end_process(self._pid, self._start_time)
        await self._hands.reread(self.node, quick=True)


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
        supervisor = self._hands.supervisor(self.node)
        record = await supervisor.adopt(
            foreign.process, foreign.kind, foreign.port, foreign.bind, self._hands.config.fleet)
        facts = facts_of_adopted(record, self.node, self._hands.snapshot().nodes, user=foreign.process.user)
        if facts is not None:
            await supervisor.annotate(record.id, facts.to_json())
        report(f"now {record.id}")
        await self._hands.reread(self.node, quick=True)


def plan_service(hands: Hands, command: StartService | StopService | RestartService) -> Plan:
    """Start, stop or restart one service as it was."""
    record = find_record(hands, command.node, command.service)
    word = WORDS[record.kind]
    # A proxy that is stopped leaves nothing, its keys least of all: `proxy start` writes them anew.
    is_proxy = record.kind is ServiceKind.PROXY
    stop = StopRecorded(hands, command.node, record, keep=isinstance(command, StopService) and not is_proxy)
    remarks = _remarks(hands, command.node, record) if record.alive else ()
    match command:
        case StopService():
            if not (record.alive or is_proxy):
                return Plan("stop", f"{record.id} on {command.node} has ended already", (), command.node)
            steps: tuple[Step, ...] = (stop,)
            if is_proxy:
                steps += (ClearProxy(hands, command.node, record.id),)
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
    """Adopt or end a process that is not ours.

    Raises:
        PlanRefused: there is no such node or process.
    """
    node = hands.snapshot().nodes.get(command.node)
    if node is None:
        raise PlanRefused(f"No node is called {command.node}.", "`quarterdeck nodes` lists them.")
    foreign = next((f for f in node.foreign if f.process.pid == command.pid
                    and f.process.start_time == command.start_time), None)
    if isinstance(command, AdoptProcess):
        if foreign is None or foreign.kind is None or foreign.port is None:
            raise PlanRefused(f"pid {command.pid} on {command.node} is no llama.cpp server that listens.",
                              "Look at the node again.", code="not-adoptable")
        step: Step = Adopt(hands, command)
        return Plan("adopt", step.title, (step,), command.node)
    what = foreign.process.argv[0].rpartition("/")[2] if foreign and foreign.process.argv else "process"
    step = EndForeign(hands, command.node, command.pid, command.start_time, what)
    return Plan("end", step.title, (step,), command.node)
