"""The lines at the top and the bottom, and the page of what is wrong and what happened."""

from __future__ import annotations

import time
from dataclasses import dataclass

from app.present.opening import BRAND
from app.present.units import count, rate
from app.present.words import DEPLOYMENT_SIGNS, NODE_SIGNS, SEVERITY_SIGNS, needs_help, problem_entries
from fleet.model import (
    DeploymentState,
    NodeState,
    OperationState,
    Problem,
    ServiceState,
    Severity,
    Snapshot,
)
from widgets.entries import Entry, Heading, Paragraph
from widgets.spans import Line, Span, Tone, joined, line

LATELY = 40                    # events in the corner; all of them have a page


@dataclass(frozen=True, slots=True)
class Mode:
    """What the user has set: part of the status line, since it changes what is seen."""

    read_only: bool = False
    paused: bool = False
    filter: str = ""


def head(snapshot: Snapshot, problem: str = "") -> tuple[Line, Line]:
    """The title line: the fleet on the left, where it comes from on the right."""
    if problem:
        return line(BRAND), line(Span(problem, Tone.BAD))
    nodes = snapshot.nodes.values()
    up = sum(node.state is NodeState.UP for node in nodes)
    numbers = f"{count(len(nodes), 'node')}, {up} up"
    source = snapshot.config_path or ("" if any(node.configured for node in nodes) else
                                      "no fleet.yaml: this machine and what is found")
    return line(BRAND, Span("  "), Span(snapshot.fleet, Tone.STRONG), Span(f"  {numbers}", Tone.MUTED)), line(
        Span(source, Tone.MUTED))


def foot(snapshot: Snapshot, mode: Mode) -> tuple[Line, Line]:
    """The status line: what serves, then what needs a person."""
    return joined((*_modes(mode), _serves(snapshot))), joined(alarms_in_short(snapshot))


def _modes(mode: Mode) -> list[Line]:
    out: list[Line] = []
    if mode.read_only:
        out.append((Span("▣ read-only", Tone.WARN),))
    if mode.paused:
        out.append((Span("‖ paused, p goes on", Tone.WARN),))
    if mode.filter:
        out.append((Span(f"/{mode.filter}", Tone.ACCENT),))
    return out


def _serves(snapshot: Snapshot) -> Line:
    deployment = snapshot.deployment
    sign = DEPLOYMENT_SIGNS[deployment.state]
    if deployment.state is DeploymentState.DOWN:
        return (Span(f"{sign.glyph} nothing serves", sign.tone),)
    speeds = [service.tokens_per_second for node in snapshot.nodes.values() for service in node.services
              if (node.name, service.record.id) == (deployment.head, deployment.head_service)]
    parts: list[Line] = [(Span(f"{sign.glyph} {sign.word} {deployment.model}", sign.tone),)]
    if speeds and speeds[0] is not None:
        parts.append(line(rate(speeds[0])))
    if deployment.endpoint and deployment.state in (DeploymentState.SERVING, DeploymentState.DEGRADED):
        parts.append(line(Span(deployment.endpoint, Tone.MUTED)))
    return joined(parts)


def alarms(snapshot: Snapshot) -> tuple[tuple[str, Problem], ...]:
    """(where, what) of everything that is wrong now, worst first."""
    out: list[tuple[str, Problem]] = []
    deployment = snapshot.deployment
    for problem in (deployment.problem, deployment.placement.problem):
        if problem is not None and (deployment.model, problem) not in out:
            out.append((deployment.model, problem))
    for node in snapshot.nodes.values():
        if needs_help(node):
            sign = NODE_SIGNS[node.state]
            out.append((node.name, node.problem or Problem(node.state, f"{node.name} is {sign.word}.")))
        for service in node.services:
            if service.state in (ServiceState.FAILED, ServiceState.STUCK):
                what = service.problem or Problem(service.state, f"{service.record.id} is {service.state}.")
                out.append((f"{node.name} {service.record.id}", what))
    remedy = "Mend the file and press ctrl+r; until then what was in force stays so."
    out += [("fleet.yaml", Problem("config", text, remedy)) for text in snapshot.config_problems]
    out += [("discovery", problem) for problem in snapshot.discovery]
    return tuple(sorted(out, key=lambda item: item[1].severity is not Severity.ERROR))


def alarms_in_short(snapshot: Snapshot) -> list[Line]:
    """The same in a few words for the status line; why the model is broken in its own sentence, as far as it goes."""
    out: list[Line] = []
    if snapshot.other_cockpit:
        out.append((Span(f"▲ {snapshot.other_cockpit} acts", Tone.WARN),))
    running = sum(each.state is OperationState.RUNNING for each in snapshot.operations)
    if running:
        out.append((Span("▸ " + count(running, "operation"), Tone.ACCENT),))
    if snapshot.questions:
        out.append((Span("? " + count(len(snapshot.questions), "question"), Tone.WARN),))
    if snapshot.config_problems:
        out.append((Span("✕ fleet.yaml: " + count(len(snapshot.config_problems), "problem"), Tone.BAD),))
    nodes = sum(needs_help(node) for node in snapshot.nodes.values())
    if nodes:
        out.append((Span(f"▲ {count(nodes, 'node needs', 'nodes need')} you", Tone.WARN),))
    services = sum(service.state in (ServiceState.FAILED, ServiceState.STUCK)
                   for node in snapshot.nodes.values() for service in node.services)
    if services:
        out.append((Span("✕ " + count(services, "service") + " failed", Tone.BAD),))
    if snapshot.discovery:
        out.append((Span("▲ discovery", Tone.WARN),))
    deployment = snapshot.deployment
    why = deployment.problem or deployment.placement.problem
    if why is not None and deployment.state in (DeploymentState.BROKEN, DeploymentState.DEGRADED):
        out.append((Span(f"✕ {why.what}", Tone.BAD),))
    if not out:
        out.append((Span("✓ all well", Tone.GOOD),))
    return out


def events(snapshot: Snapshot) -> tuple[Entry, ...]:
    """What is wrong now, and what happened, newest first."""
    out: list[Entry] = [Heading("wrong now")]
    wrong = alarms(snapshot)
    if not wrong:
        out.append(Paragraph(line(Span("✓ nothing", Tone.GOOD))))
    for where, problem in wrong:
        out.append(Paragraph(line(Span(where or "fleet", Tone.STRONG))))
        out += problem_entries(problem)
    out += [Paragraph(), Heading("what happened")]
    if not snapshot.notices:
        out.append(Paragraph(line(Span("nothing yet", Tone.MUTED))))
    out += _notices(snapshot, len(snapshot.notices))
    return tuple(out)


def lately(snapshot: Snapshot) -> tuple[Entry, ...]:
    """The newest events, for a corner of a large screen."""
    return tuple(_notices(snapshot, LATELY)) or (Paragraph(line(Span("  nothing yet", Tone.MUTED))),)


def _notices(snapshot: Snapshot, number: int) -> list[Entry]:
    out: list[Entry] = []
    for notice in list(reversed(snapshot.notices))[:number]:
        sign = SEVERITY_SIGNS[notice.severity]
        at = time.strftime("%H:%M:%S", time.localtime(notice.at_epoch))
        where = f"{notice.node}  " if notice.node and notice.node not in notice.text else ""
        tone = Tone.PLAIN if notice.severity is Severity.INFO else sign.tone
        out.append(Paragraph(line(Span(f"  {at}  ", Tone.MUTED), Span(f"{sign.glyph} ", sign.tone),
                                  Span(where, Tone.STRONG), Span(notice.text, tone)), 14))
    return out
