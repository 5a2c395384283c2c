"""Why a service is not there any more, in one sentence: node, process, likely cause, last lines of its log."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fleet.errors import FleetError, OperationFailed, StartFailed
from fleet.experts.bound import bound_of, make_ready
from fleet.model import NodeState, ServiceKind, ServiceRecord
from fleet.nodes.services import ServiceSpec
from fleet.operations.arrangement import Seat
from fleet.operations.hands import Hands, node_of
from fleet.runtimes.death import cause_of_death

LOG_TAIL = 8192
LINES_TOLD = 3
LINE_TOLD = 160     # characters
LOST = (NodeState.UNREACHABLE, NodeState.REFUSED, NodeState.GONE, NodeState.LOCKED, NodeState.BROKEN)


def seen_record(hands: Hands, node: str, service: str) -> ServiceRecord | None:
    """What the node's pid files said of a service when they were last read."""
    known = hands.snapshot().nodes.get(node)
    return next((r for r in known.reading.services if r.id == service), None) if known and known.reading else None


async def start(hands: Hands, node: str, spec: ServiceSpec, report: Callable[[str], None]) -> ServiceRecord:
    """Start a service.

    Raises:
        StartFailed: it ended at once; with the likely cause and the last lines of its log.
        ServiceError: nothing was started, and why.
    """
    bound = bound_of(spec.facts)
    if bound is not None:
        await make_ready(hands.transport(node), bound)
    try:
        return await hands.supervisor(node).start(spec, on_note=report)
    except StartFailed as error:
        if error.exit_status is None and not error.log_tail:
            raise
        raise _ended(node, spec.id, spec.kind, error.exit_status, error.log_tail) from error


def _ended(node: str, service: str, kind: ServiceKind, status: int | None, tail: str) -> StartFailed:
    problem = cause_of_death(kind, status, tail)
    lines = [line.strip() for line in tail.splitlines() if line.strip()][-LINES_TOLD:]
    said = f" Its last lines: {' / '.join(line[:LINE_TOLD] for line in lines)}" if lines else ""
    return StartFailed(f"{service} on {node} ended. {problem.what}{said}", problem.remedy, code=problem.code,
                       exit_status=status, log_tail=tail)


async def raise_if_dead(hands: Hands, node: str, service: str) -> None:
    """Say why a service ended, if it has.

    Raises:
        StartFailed: it has ended; with exit status, likely cause and the last lines of its log.
    """
    supervisor = hands.supervisor(node)
    record = next((r for r in await supervisor.records() if r.id == service), None)
    if record is not None and record.alive:
        return
    tail = await last_log(hands, node, service)
    if record is None:
        record = seen_record(hands, node, service)
    if record is None:
        raise StartFailed(f"{service} on {node} is gone, and so is its pid file.", "Somebody ended it meanwhile?",
                          code="gone")
    raise _ended(node, service, record.kind, record.exit_status, tail)


async def raise_if_workers_lost(hands: Hands, seats: Sequence[Seat], *, ask: bool) -> None:
    """A head aborts, or waits for ever, when a worker of it is lost: then the worker is what to speak of.

    With `ask` the nodes are asked for their pid files now; without, what the last probes saw has to do.

    Raises:
        FleetError: a worker has ended, or its node is lost.
    """
    for seat in seats:
        node = node_of(hands, seat.choice.node.name)
        if node.state in LOST:
            why = f" {node.problem.what}" if node.problem else ""
            raise OperationFailed(f"{node.name}, which {seat.choice.where} is on, was lost meanwhile: it is "
                                  f"{node.state.value}.{why}", "Bring it back, or leave it out.", code="node-lost")
        if seat.spec is None:
            continue
        seen = seen_record(hands, node.name, seat.service)
        if ask or seen is None or not seen.alive:
            await raise_if_dead(hands, node.name, seat.service)


async def last_log(hands: Hands, node: str, service: str) -> str:
    """The end of a service's log, or "" where it cannot be read."""
    try:
        return (await hands.supervisor(node).read_log(service, limit=LOG_TAIL)).text
    except FleetError:
        return ""
