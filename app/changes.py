"""What changed between two Snapshots, as records: the text lines and JSON lines of a headless run. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from app.follow import ENDED, step_line
from fleet.model import Notice, Operation, Severity, Snapshot, StepState
from fleet.text import visible

MARKS = {Severity.INFO: "", Severity.WARNING: "warning: ", Severity.ERROR: "error: "}


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that happened. `text` is "" where a notice says it in words already."""

    event: str
    text: str = ""
    data: Mapping[str, object] = field(default_factory=dict)


def changes(before: Snapshot, after: Snapshot) -> Iterator[Change]:
    """Everything that is new in `after`: states first, then the sentences about them, then steps."""
    yield from _discovery(before, after)
    yield from _nodes(before, after)
    if (after.deployment.state, after.deployment.problem) != (before.deployment.state, before.deployment.problem):
        d = after.deployment
        yield Change("deployment", data={"state": d.state, "model": d.model, "head": d.head, "endpoint": d.endpoint,
                                         "placement": d.placement.state, "problem": d.problem})
    known = {operation.id: operation for operation in before.operations}
    for operation in after.operations:
        if operation.id in known:  # its last step ends before the notice that all is done
            yield from _operation(known[operation.id], operation)
    for notice in new_notices(before.notices, after.notices):
        yield Change("notice", f"{MARKS[notice.severity]}{visible(notice.text)}",
                     {"severity": notice.severity, "text": notice.text, "node": notice.node,
                      "at_epoch": notice.at_epoch})
    for operation in after.operations:
        if operation.id not in known:
            yield from _operation(None, operation)


def new_notices(before: tuple[Notice, ...], after: tuple[Notice, ...]) -> tuple[Notice, ...]:
    """Those that came since `before`. Old ones fall off the front; when all did, all are new."""
    if not before:
        return after
    for index in range(len(after) - 1, -1, -1):
        if after[index] is before[-1] or after[index] == before[-1]:
            return after[index + 1:]
    return after


def _discovery(before: Snapshot, after: Snapshot) -> Iterator[Change]:
    for problem in after.discovery:
        if problem not in before.discovery:
            yield Change("discovery", f"warning: {visible(str(problem.what))} {visible(problem.remedy)}".rstrip(),
                         {"problem": problem})


def _nodes(before: Snapshot, after: Snapshot) -> Iterator[Change]:
    for name, node in after.nodes.items():
        earlier = before.nodes.get(name)
        if earlier is node:
            continue
        if earlier is None or earlier.state is not node.state:
            yield Change("node", data={"node": name, "state": node.state, "was": earlier.state if earlier else None,
                                       "address": node.address.host if node.address else None,
                                       "problem": node.problem})
        states = {service.record.id: service.state for service in earlier.services} if earlier else {}
        for service in node.services:
            if states.get(service.record.id) is not service.state:
                yield Change("service", data={"node": name, "service": service.record.id, "state": service.state,
                                              "was": states.get(service.record.id), "pid": service.record.pid,
                                              "port": service.record.port, "problem": service.problem})
        for gone in states.keys() - {service.record.id for service in node.services}:
            yield Change("service", data={"node": name, "service": gone, "state": None, "was": states[gone]})
    for name in before.nodes.keys() - after.nodes.keys():
        yield Change("node", data={"node": name, "state": None, "was": before.nodes[name].state})


def _operation(before: Operation | None, after: Operation) -> Iterator[Change]:
    if before is after:
        return
    earlier = before.steps if before else ()
    for index, step in enumerate(after.steps):
        was = earlier[index].state if index < len(earlier) else StepState.WAITING
        if step.state is not was:
            text = f"  {step_line(step)}" if step.state in ENDED else ""
            yield Change("step", text, {"operation": after.id, "number": index + 1, "step": step})
    if before is None or before.state is not after.state:
        yield Change("operation", data={"operation": after.id, "kind": after.kind, "title": after.title,
                                        "state": after.state, "problem": after.problem})
