"""The model that the fleet serves: its state, and where it sits against where it was put."""

from __future__ import annotations

from app.present.units import UNKNOWN, fraction, percent, size, span
from app.present.words import DEPLOYMENT_SIGNS, problem_entries
from fleet.model import Deployment, DeploymentState, PlacementState, Share, Snapshot
from widgets.entries import Cut, Entry, Fact, Gauge, Heading, Paragraph
from widgets.meters import Meter
from widgets.row_spec import Row
from widgets.spans import Keep, Line, Span, Tone, joined, line

EMPTY = (line(Span("No model is up. ", Tone.MUTED), "b", Span(" brings one up.", Tone.MUTED)),)
EMPTY_READ_ONLY = (line(Span("No model is up.", Tone.MUTED)),)
UNPLACED = (line(Span("Where the model sits is not known yet.", Tone.MUTED)),)


def title(deployment: Deployment) -> Line:
    """State, model and head in one line."""
    sign = DEPLOYMENT_SIGNS[deployment.state]
    if deployment.state is DeploymentState.DOWN and not deployment.model:
        return sign.line
    parts: list[Line] = [sign.line, (Span(deployment.model, Tone.STRONG),)]
    if deployment.head:
        parts.append(line(Span("head ", Tone.MUTED), deployment.head))
    # Where it sat tells nothing while a part is dead: "as planned" beside "broken" reads like a contradiction.
    if deployment.placement.state is not PlacementState.UNKNOWN and deployment.state is not DeploymentState.BROKEN:
        parts.append(placement_words(deployment))
    return joined(parts)


def placement_words(deployment: Deployment) -> Line:
    """Whether plan and reality agree."""
    state = deployment.placement.state
    if state is PlacementState.MATCHES:
        return (Span("✓ placed as planned", Tone.GOOD),)
    if state is PlacementState.UNKNOWN:
        return (Span("? placement not known", Tone.MUTED),)
    return (Span(f"✕ {state.value}", Tone.BAD),)


def _pairs(deployment: Deployment) -> list[tuple[Share | None, Share | None]]:
    """(planned, real) of each device, in the plan's order; what was not planned comes last."""
    real = {(share.node, share.device, share.endpoint): share for share in deployment.placement.real}
    out: list[tuple[Share | None, Share | None]] = []
    for share in deployment.placement.planned:
        out.append((share, real.pop((share.node, share.device, share.endpoint), None)))
    out.extend((None, share) for share in real.values())
    return out


def _total(deployment: Deployment) -> int:
    return sum(share.model_bytes or 0 for share in deployment.placement.real)


def rows(deployment: Deployment) -> tuple[Row, ...]:
    """A row for each device: planned and real side by side."""
    total = _total(deployment)
    measured = bool(deployment.placement.real)
    return tuple(_row(planned, real, total, measured) for planned, real in _pairs(deployment))


def _row(planned: Share | None, real: Share | None, total: int, measured: bool) -> Row:
    share = planned or real
    assert share is not None
    held = real.model_bytes if real is not None else None
    empty = measured and planned is not None and not held
    unplanned = planned is None and bool(held)
    if not measured:
        real_cell: Line = (Span(UNKNOWN, Tone.MUTED),)
    elif empty:
        real_cell = (Span("✕ empty", Tone.BAD),)
    else:
        real_cell = (Span(size(held), Tone.WARN if unplanned else Tone.PLAIN),)
    part = fraction(held or 0, total) if measured else None
    figures = (Span(f"{percent(part):>4}", Tone.MUTED),) if part is not None else ()
    return Row(
        key=f"{share.node}\0{share.device}\0{share.endpoint}",
        cells=(
            line(Span(share.node, Tone.STRONG), f" {share.device}", Span(
                f" {share.endpoint}" if share.endpoint else "", Tone.MUTED)),
            _planned_words(planned),
            real_cell,
            Meter(part, figures, Tone.BAD if empty else Tone.BAR, longest=16),
        ),
    )


def _planned_words(planned: Share | None) -> Line:
    if planned is None:
        return (Span("▲ not planned", Tone.WARN),)
    parts = [size(planned.model_bytes)] if planned.model_bytes is not None else []
    if planned.layers:                 # a head beside workers holds the embeddings and no layer
        parts.append(f"{planned.layers} layers")
    elif planned.fraction is not None:
        parts.append(percent(planned.fraction))
    return (Span(", ".join(parts) or UNKNOWN),)


def detail(snapshot: Snapshot, now: float) -> tuple[Entry, ...]:
    """All that is known of what serves."""
    deployment = snapshot.deployment
    sign = DEPLOYMENT_SIGNS[deployment.state]
    out: list[Entry] = [Heading(deployment.model or "no model", sign.line)]
    for problem in (deployment.problem, deployment.placement.problem):
        if problem is not None:
            out += [*problem_entries(problem), Paragraph()]
    if not deployment.model:
        return (*out, Paragraph(line("No model is up. ", Span("b brings one up.", Tone.MUTED))))
    out.append(Fact("is", line(f"{sign.word} for {span(now - deployment.since)}")))
    if deployment.endpoint:
        out.append(Fact("answers at", line(Span(deployment.endpoint), Span("  y copies", Tone.MUTED))))
    out.append(Fact("head", line(f"{deployment.head} {deployment.head_service}")))
    workers = ", ".join(f"{node} {service}" for node, service in deployment.workers)
    out.append(Fact("workers", line(workers or "none")))
    if deployment.context is not None:
        out.append(Fact("context", line(f"{deployment.context} tokens")))
    if deployment.model_path:
        out.append(Fact("file", line(Span(deployment.model_path)), Keep.END))
    broken = deployment.state is DeploymentState.BROKEN
    note = (Span("as it was", Tone.MUTED),) if broken else placement_words(deployment)
    out += [Paragraph(), Heading("placement", note)]
    total = _total(deployment)
    for planned, real in _pairs(deployment):
        share = planned or real
        assert share is not None
        out.append(Cut(line(Span(f"{share.node} {share.device}", Tone.STRONG), Span(
            f"  {share.endpoint}" if share.endpoint else "", Tone.MUTED))))
        out.append(Fact("  planned", line(*_planned_words(planned), Span(_rest(planned), Tone.MUTED))))
        held = real.model_bytes if real is not None else None
        if deployment.placement.real:
            out.append(Gauge("  real", Meter(fraction(held or 0, total), line(
                size(held) if held else Span("empty", Tone.BAD)), longest=16)))
            if real is not None and _rest(real):
                out.append(Fact("", line(Span(_rest(real).strip(), Tone.MUTED))))
        else:
            out.append(Fact("  real", line(Span("not known yet", Tone.MUTED))))
    return tuple(out)


def _rest(share: Share | None) -> str:
    if share is None:
        return ""
    parts = [f"KV {size(share.kv_bytes)}"] if share.kv_bytes is not None else []
    if share.compute_bytes is not None:
        parts.append(f"compute {size(share.compute_bytes)}")
    return f"  {', '.join(parts)}" if parts else ""
