"""What a dialog says before something is ended, started or taken over: host, process, pid and command."""

from __future__ import annotations

from dataclasses import dataclass

from app.present.services import Selected, command_in_short
from app.present.units import count
from app.present.words import KIND_WORDS, OPERATION_SIGNS, program_of
from fleet.events import (
    AdoptProcess,
    BringUp,
    Command,
    EndProcess,
    RestartService,
    StartService,
    StopService,
    TearDown,
)
from fleet.model import DeploymentState, Operation, Service, ServiceState, Snapshot
from widgets.entries import Cut, Entry, Fact, Paragraph
from widgets.spans import Span, Tone, line

RUNNING = (ServiceState.STARTING, ServiceState.LOADING, ServiceState.READY, ServiceState.BUSY, ServiceState.STUCK)


@dataclass(frozen=True, slots=True)
class Dialog:
    """A question before a deed."""

    title: str
    entries: tuple[Entry, ...]
    yes: str                   # what the button that does it says
    command: Command
    dangerous: bool = True
    planned: bool = False      # the engine's plan is shown before it can be said yes to


def is_running(service: Service) -> bool:
    """Whether there is a process to end."""
    return service.record.alive and service.state not in (ServiceState.EXITED, ServiceState.FAILED)


def can_start(selected: Selected | None) -> bool:
    """A service of ours that ended."""
    return selected is not None and selected.service is not None and not is_running(selected.service) \
        and selected.service.state is not ServiceState.UNKNOWN


def can_stop(selected: Selected | None) -> bool:
    """A process, ours or not."""
    if selected is None:
        return False
    return selected.foreign is not None or (selected.service is not None and selected.service.record.alive)


def can_restart(selected: Selected | None) -> bool:
    """A service of ours that runs."""
    return selected is not None and selected.service is not None and selected.service.record.alive


def can_adopt(selected: Selected | None) -> bool:
    """A process of a kind that we start ourselves."""
    return selected is not None and selected.foreign is not None and selected.foreign.kind is not None


def _process(node: str, name: str, pid: int, argv: tuple[str, ...]) -> tuple[Entry, ...]:
    return (
        Fact("host", line(Span(node, Tone.STRONG))),
        Fact("process", line(name)),
        Fact("pid", line(str(pid))),
        Fact("command", command_in_short(argv) or line(Span("not known", Tone.MUTED))),
    )


def _consequence(snapshot: Snapshot, service: Service) -> tuple[Entry, ...]:
    deployment = snapshot.deployment
    parts = (*deployment.workers, (deployment.head, deployment.head_service))
    serves = deployment.state in (DeploymentState.SERVING, DeploymentState.DEGRADED)
    if not serves or (service.node, service.record.id) not in parts:
        return ()
    what = f"It is part of what serves {deployment.model}: requests fail until it is brought up again."
    return (Paragraph(), Paragraph(line(Span("▲ ", Tone.WARN), Span(what, Tone.WARN)), 2))


def stop(snapshot: Snapshot, selected: Selected) -> Dialog | None:
    """Before a process is ended."""
    if selected.service is not None:
        record = selected.service.record
        body = _process(selected.node, record.id, record.pid, record.argv)
        return Dialog(f"Stop {record.id} on {selected.node}?", (*body, *_consequence(snapshot, selected.service)),
                      "Stop", StopService(selected.node, record.id))
    if selected.foreign is not None:
        process = selected.foreign.process
        name = program_of(selected.foreign)
        note = Paragraph(line(Span("▲ ", Tone.WARN), Span("Quarterdeck did not start this process.", Tone.WARN)), 2)
        return Dialog(f"End {name} on {selected.node}?",
                      (*_process(selected.node, name, process.pid, process.argv), Paragraph(), note),
                      "End it", EndProcess(selected.node, process.pid, process.start_time))
    return None


def restart(snapshot: Snapshot, selected: Selected) -> Dialog | None:
    """Before a service is ended and started again."""
    if selected.service is None:
        return None
    record = selected.service.record
    body = _process(selected.node, record.id, record.pid, record.argv)
    return Dialog(f"Restart {record.id} on {selected.node}?", (*body, *_consequence(snapshot, selected.service)),
                  "Restart", RestartService(selected.node, record.id))


def start(selected: Selected) -> Dialog | None:
    """Before a service that ended is started as it was."""
    if selected.service is None:
        return None
    record = selected.service.record
    entries = (
        Fact("host", line(Span(selected.node, Tone.STRONG))),
        Fact("process", line(f"{record.id}, port {record.port}")),
        Fact("command", command_in_short(record.argv)),
    )
    return Dialog(f"Start {record.id} on {selected.node}?", entries, "Start",
                  StartService(selected.node, record.id), dangerous=False)


def adopt(selected: Selected) -> Dialog | None:
    """Before a foreign process is taken into our care."""
    foreign = selected.foreign
    if foreign is None or foreign.kind is None:
        return None
    name = program_of(foreign)
    word = KIND_WORDS[foreign.kind][0]
    note = f"It goes on as it is. A pid file is written beside our own, and it counts as a {word} from then on."
    return Dialog(f"Take {name} on {selected.node} into our care?",
                  (*_process(selected.node, name, foreign.process.pid, foreign.process.argv), Paragraph(),
                   Paragraph(line(note))),
                  "Adopt", AdoptProcess(selected.node, foreign.process.pid, foreign.process.start_time),
                  dangerous=False)


def bring_up(model: str) -> Dialog:
    """Before a model is brought up: the plan."""
    name = model.rpartition("/")[2]
    return Dialog(f"Bring up {name}?" if name else "Bring the model up?", (), "Bring up", BringUp(model),
                  dangerous=False, planned=True)


def _program(argv: tuple[str, ...]) -> str:
    """The program and the model that it was given: one line has no room for more."""
    names = [word.rpartition("/")[2] for word in argv]
    return "  ".join((*names[:1], *(name for name in names[1:] if name.endswith(".gguf"))))


def tear_down(snapshot: Snapshot) -> Dialog:
    """Before everything of ours is ended: what that is, and the plan."""
    services = [service for node in snapshot.nodes.values() for service in node.services if service.record.alive]
    entries: list[Entry] = [Paragraph(line(f"This ends {count(len(services), 'process', 'processes')}:"))]
    for service in services:
        record = service.record
        entries.append(Cut(line(Span(f"  {service.node}", Tone.STRONG), f"  {record.id}  pid {record.pid}  ",
                                Span(_program(record.argv), Tone.MUTED))))
    return Dialog("Tear the fleet down?", tuple(entries), "Tear down", TearDown(), planned=True)


def quit_while(operation: Operation) -> tuple[str, tuple[Entry, ...]]:
    """Before the cockpit is left while something is under way."""
    sign = OPERATION_SIGNS[operation.state]
    return "Quit now?", (
        Paragraph(line(*sign.line, f"  {operation.title}")),
        Paragraph(),
        Paragraph(line("Quitting ends this operation: what it has done so far is undone first.")),
        Paragraph(line(Span("Services that ran before it go on; the cockpit finds them when it is opened again.",
                            Tone.MUTED))),
    )


def take_over(holder: str) -> tuple[str, tuple[Entry, ...]]:
    """Before this cockpit acts in the place of another one."""
    return "Take over?", (
        Paragraph(line(Span(holder, Tone.STRONG), " acts on this fleet.")),
        Paragraph(),
        Paragraph(line("It only looks from then on. What it is doing now goes on to its end.")),
    )


def cancel(operation: Operation) -> tuple[str, tuple[Entry, ...]]:
    """Before an operation is stopped half way."""
    return "Stop this operation?", (
        Paragraph(line(operation.title)),
        Paragraph(),
        Paragraph(line("What it has done so far is undone; what served before serves again.")),
    )
