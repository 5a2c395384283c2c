"""The service list: what we started, and engines' processes that we did not."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from app.present.units import UNKNOWN, rate, size, span
from app.present.words import FOREIGN, KIND_WORDS, SERVICE_SIGNS, problem_entries, program_of
from fleet.model import ForeignProcess, LinkKind, Node, Service, ServiceKind, ServiceState, Snapshot
from fleet.text import without_secrets
from widgets.entries import Entry, Fact, Gauge, Heading, Paragraph
from widgets.meters import Meter
from widgets.row_spec import Cell, Row
from widgets.spans import Keep, Line, Span, Tone, line

_SIGNALS = {1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 6: "SIGABRT", 8: "SIGFPE", 9: "SIGKILL",
            11: "SIGSEGV", 13: "SIGPIPE", 15: "SIGTERM"}

EMPTY = (line(Span("Nothing runs. ", Tone.MUTED), "b", Span(" brings a model up.", Tone.MUTED)),)
EMPTY_READ_ONLY = (line(Span("Nothing runs.", Tone.MUTED)),)


@dataclass(frozen=True, slots=True)
class Selected:
    """What stands behind a row of the list: one of the two."""

    node: str
    service: Service | None = None
    foreign: ForeignProcess | None = None


def service_key(service: Service) -> str:
    """The row of a service. NUL cannot be in a file name, so keys cannot be made to collide."""
    return f"{service.node}\0{service.record.id}"


def foreign_key(node: str, foreign: ForeignProcess) -> str:
    """The row of a foreign process."""
    return f"{node}\0\0{foreign.process.pid}\0{foreign.process.start_time}"


def find(snapshot: Snapshot, key: str) -> Selected | None:
    """What a row stands for, if it is still there."""
    for node in snapshot.nodes.values():
        for service in node.services:
            if service_key(service) == key:
                return Selected(node.name, service=service)
        for foreign in node.foreign:
            if foreign_key(node.name, foreign) == key:
                return Selected(node.name, foreign=foreign)
    return None


def head_of(snapshot: Snapshot) -> Selected | None:
    """The head of what is up."""
    return find(snapshot, f"{snapshot.deployment.head}\0{snapshot.deployment.head_service}")


def foremost(node: Node) -> Selected | None:
    """Of a node's services the one that a person wants to see first: what failed, then the head."""
    worst = (ServiceState.FAILED, ServiceState.STUCK)
    ordered = sorted(node.services, key=lambda service: (
        service.state not in worst, service.record.kind is not ServiceKind.COORDINATOR, service.record.id))
    return Selected(node.name, service=ordered[0]) if ordered else None


def rows(snapshot: Snapshot) -> tuple[Row, ...]:
    """Every service of every node, heads first within a node; foreign processes behind ours."""
    names = holders(snapshot)
    ours = [_row(service, names) for node in snapshot.nodes.values() for service in node.services]
    theirs = [_foreign_row(node.name, foreign) for node in snapshot.nodes.values() for foreign in node.foreign]
    return (*ours, *theirs)


def holders(snapshot: Snapshot) -> dict[str, str]:
    """Node names by every address that is known to be theirs and no other's."""
    out: dict[str, str] = {}
    shared: set[str] = set()
    for node in snapshot.nodes.values():
        own = {address.host for address in node.addresses}
        for interface in node.reading.interfaces if node.reading else ():
            if interface.kind not in (LinkKind.LOOPBACK, LinkKind.CONTAINER):
                own.update(address.partition("/")[0] for address in interface.addresses)
        shared |= own & out.keys()
        out.update(dict.fromkeys(own, node.name))
    return {host: name for host, name in out.items() if host not in shared}


def _row(service: Service, names: Mapping[str, str]) -> Row:
    record = service.record
    sign = SERVICE_SIGNS[service.state]
    return Row(
        key=service_key(service),
        cells=(
            sign.line,
            (Span(service.node),),
            (Span(record.id, Tone.STRONG),),
            doing(service, names),
            (Span(str(record.port) if record.port else UNKNOWN),),
            (Span(_build(record.build), Tone.MUTED),),
            (Span(str(record.pid), Tone.MUTED),),
        ),
        search=f"{record.kind} {record.bind}",
    )


def _build(build: str) -> str:
    return build.partition(" ")[0] or UNKNOWN


def doing(service: Service, names: Mapping[str, str] | None = None) -> Cell:
    """What it is about, in a few words; a bar while it loads."""
    if service.progress is not None and service.state is ServiceState.LOADING:
        return Meter(round(service.progress, 2), (Span(f"{round(service.progress * 100):3d}%"),), longest=16)
    if service.state is ServiceState.FAILED or service.state is ServiceState.STUCK:
        what = service.detail or (service.problem.what if service.problem else "")
        status = service.record.exit_status
        if status is not None and what == f"exit {status}":
            what = exit_words(status).partition(" (")[0]
        return (Span(what, Tone.BAD),)
    parts: list[str] = []
    if service.slots_total:
        parts.append(f"{service.slots_busy or 0}/{service.slots_total} slots")
    if service.tokens_per_second is not None:
        parts.append(rate(service.tokens_per_second))
    if service.held_by:
        host = service.held_by.rpartition(":")[0] or service.held_by
        parts.append(f"held by {(names or {}).get(host.strip('[]'), host)}")
    if not parts and service.detail:
        parts.append(service.detail)
    return (Span(", ".join(parts) or ("free" if service.state is ServiceState.READY else ""), Tone.PLAIN),)


def _foreign_row(node: str, foreign: ForeignProcess) -> Row:
    process = foreign.process
    kind = KIND_WORDS[foreign.kind][0] if foreign.kind else "another engine"
    return Row(
        key=foreign_key(node, foreign),
        cells=(
            FOREIGN.line,
            (Span(node),),
            (Span(program_of(foreign)),),
            (Span(f"not ours: {kind}", Tone.MUTED),),
            (Span(str(foreign.port) if foreign.port else UNKNOWN),),
            (Span(UNKNOWN, Tone.MUTED),),
            (Span(str(process.pid), Tone.MUTED),),
        ),
        search="foreign",
    )


def detail(snapshot: Snapshot, selected: Selected, now: float) -> tuple[Entry, ...]:
    """All that is known of a service."""
    if selected.service is not None:
        return _service_detail(selected.service, now, holders(snapshot))
    if selected.foreign is not None:
        return _foreign_detail(selected.node, selected.foreign)
    return ()


def _service_detail(service: Service, now: float, names: Mapping[str, str]) -> tuple[Entry, ...]:
    record = service.record
    sign = SERVICE_SIGNS[service.state]
    out: list[Entry] = [Heading(f"{service.node}  {record.id}", sign.line)]
    if service.problem is not None:
        out += [*problem_entries(service.problem), Paragraph()]
    kind = KIND_WORDS[record.kind][0]
    out.append(Fact("is", line(f"{kind}, {sign.word} for {span(now - service.since)}")))
    if service.detail:
        out.append(Fact("doing", line(service.detail)))
    if service.progress is not None:
        figures = (Span(f"{round(service.progress * 100):3d}%"),)
        out.append(Gauge("progress", Meter(round(service.progress, 2), figures)))
    if service.slots_total is not None:
        out.append(Fact("slots", line(f"{service.slots_busy or 0} of {service.slots_total} busy")))
    if service.tokens_per_second is not None:
        out.append(Fact("speed", line(rate(service.tokens_per_second))))
    if service.held_by:
        holder = names.get(service.held_by.rpartition(":")[0].strip("[]"), "")
        out.append(Fact("held by", line(Span(f"{holder}  " if holder else ""), service.held_by)))
    out.append(Fact("listens on", line(f"{record.bind or '*'}:{record.port}")))
    out.append(Fact("pid", line(f"{record.pid}", Span(f"  started {record.start_time}", Tone.MUTED)), Keep.START))
    if record.exit_status is not None:
        out.append(Fact("end", line(exit_words(record.exit_status))))
    if record.build:
        out.append(Fact("build", line(record.build)))
    if record.fleet:
        out.append(Fact("fleet", line(record.fleet)))
    out.append(Fact("log", line(f"{size(record.log_size)}", Span("  l shows it", Tone.MUTED))))
    out.append(Fact("folder", line(Span(record.folder)), Keep.END))
    out += [Paragraph(), Heading("command"), *command_entries(record.argv)]
    return tuple(out)


def _foreign_detail(node: str, foreign: ForeignProcess) -> tuple[Entry, ...]:
    process = foreign.process
    remedy = "a takes it into our care, x ends it; both ask first." if foreign.kind else "x ends it; it asks first."
    about = f"  state {process.state}, user {process.user or UNKNOWN}"
    out: list[Entry] = [
        Heading(f"{node}  {program_of(foreign)}", FOREIGN.line),
        Paragraph(line(Span("▲ ", Tone.WARN), "This process was not started by Quarterdeck."), 2),
        Paragraph(line(Span("→ ", Tone.ACCENT), remedy), 2),
        Paragraph(),
        Fact("pid", line(f"{process.pid}", Span(about, Tone.MUTED))),
        Fact("memory", line(size(process.rss))),
    ]
    if foreign.port:
        out.append(Fact("port", line(str(foreign.port))))
    out += [Paragraph(), Heading("command"), *command_entries(process.argv)]
    return tuple(out)


def command_entries(argv: tuple[str, ...]) -> tuple[Entry, ...]:
    """A command line as one would type it, wrapped at its options."""
    if not argv:
        return (Paragraph(line(Span("not known", Tone.MUTED))),)
    return (Paragraph(command_line(argv), 4),)


def command_line(argv: tuple[str, ...]) -> Line:
    """A command line in shell quoting, without the keys and tokens on it."""
    return line(shlex.join(without_secrets(argv)))


def command_in_short(argv: tuple[str, ...]) -> Line:
    """The same without folders: the program's name and what it is told, which is what tells one from another."""
    names = (word.rpartition("/")[2] or word if word.startswith("/") else word for word in without_secrets(argv))
    return line(shlex.join(names))


def exit_words(status: int) -> str:
    """What a shell's exit status says; the numbers of these signals are the same on Linux and macOS."""
    if status > 128:
        name = _SIGNALS.get(status - 128, f"signal {status - 128}")
        return f"ended by {name} (status {status})"
    return f"ended with status {status}"
