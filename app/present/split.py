"""The split of a model over devices: what is planned above what is real, and the plan's reasons. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from app.present.proposal import kv_types, layer_range, link_text, shown
from app.present.units import UNKNOWN, count, rate, size
from app.present.words import problem_entries
from fleet.model import Deployment, DeploymentState, PlacementState, Problem, Service, Share, Snapshot
from fleet.planning.propose import DevicePlan, Proposal, WhatIf
from fleet.planning.shares import UNKNOWN_ROOM
from fleet.planning.situation import Level
from widgets.entries import Cut, Entry, Heading, Paragraph
from widgets.row_spec import Column, Row
from widgets.spans import Keep, Line, Span, Tone, joined, line
from widgets.split_bar import Part, SplitBar

COLUMNS = (
    Column("device", "device", 10, 30, keep=Keep.BOTH),
    Column("what", "", 7, 9),
    Column("layers", "layers", 6, 12),
    Column("bar", "memory", 10, 48, need=1, grow=True),
    Column("weights", "weights", 8, 9, right=True),
    Column("kv", "KV", 7, 9, need=3, right=True),
    Column("compute", "compute", 7, 9, need=5, right=True),
    Column("free", "free", 7, 9, need=2, right=True),
    Column("link", "link", 9, 18, need=4),
)
KINDS = (("weights", "█", Tone.BAR), ("KV", "▓", Tone.ACCENT), ("compute", "▒", Tone.WARN),
         ("reserve", "░", Tone.MUTED), ("free", "·", Tone.TRACK))
WORKING = (Span("◌ working it out ...", Tone.ACCENT),)


@dataclass(frozen=True, slots=True)
class Planned:
    """What the screen knows of a plan: one that is worked out, one that is on its way, or why there is none."""

    model: str = ""
    what_if: WhatIf = WhatIf()
    proposal: Proposal | None = None
    problem: Problem | None = None
    working: bool = False


def legend() -> Line:
    """Which glyph is what."""
    return joined(line(Span(glyph, tone), Span(f" {name}", Tone.MUTED)) for name, glyph, tone in KINDS)


def empty(planned: Planned) -> tuple[Line, ...]:
    """What stands in the place of the devices."""
    if planned.working:
        return (WORKING,)
    if planned.problem is not None:
        return (line(Span("✕ no plan", Tone.BAD)),)
    if planned.proposal is not None and not planned.proposal.fits:
        return (line(Span("✕ it does not fit", Tone.BAD)),)
    return (line(Span("No model to plan for. ", Tone.MUTED), "3", Span(" shows the models.", Tone.MUTED)),)


def rows(planned: Planned, snapshot: Snapshot) -> tuple[Row, ...]:
    """Two rows a device, planned above real; one where the other is not known."""
    deployment = snapshot.deployment
    proposal = planned.proposal if planned.proposal is not None and planned.proposal.fits else None
    real = _real(planned, deployment)
    if proposal is None:
        shares = {(share.node, share.device): share for share in deployment.placement.planned}
        if not shares or planned.working or planned.problem is not None or planned.proposal is not None:
            return ()
        whole = float(max(_held(share) for share in (*shares.values(), *real.values())) or 1)
        out = []
        for key, share in shares.items():
            out.append(_share_row(share, "planned", whole))
            if key in real:
                out.append(_share_row(real[key], "real", whole))
        return tuple(out)
    devices = _listed(proposal)
    whole = float(max((_whole(device) for device in devices), default=1) or 1)
    out = []
    seen: dict[tuple[str, str], int] = {}
    for device in devices:
        number = seen[device.node, device.device] = seen.get((device.node, device.device), 0) + 1
        out.append(_plan_row(device, number, whole))
        share = real.pop((device.node, device.name or device.device), None)
        if share is not None:
            out.append(_share_row(share, "real", whole, device))
    out += [_share_row(share, "real", whole) for share in real.values() if share.model_bytes]
    return tuple(out)


def _listed(proposal: Proposal) -> tuple[DevicePlan, ...]:
    """Every device, those with layers first, and the head's processor for what it holds beside layers."""
    host = proposal.host
    beside = (host,) if host is not None and host.weights and host not in shown(proposal) else ()
    return (*sorted(shown(proposal), key=lambda device: not device.layers), *beside)


def _real(planned: Planned, deployment: Deployment) -> dict[tuple[str, str], Share]:
    """What is true of the model that is planned for, as long as nothing is changed in thought."""
    if deployment.state is DeploymentState.DOWN or planned.what_if != WhatIf():
        return {}
    if planned.model and deployment.model != (planned.proposal.model if planned.proposal else planned.model):
        return {}
    return {(share.node, share.device): share for share in deployment.placement.real}


def _held(share: Share) -> int:
    return (share.model_bytes or 0) + (share.kv_bytes or 0) + (share.compute_bytes or 0)


def _whole(device: DevicePlan) -> int:
    held = device.weights + device.kv + device.compute
    return held if device.limit >= UNKNOWN_ROOM else max(device.limit, held)


def _bar(amounts: Iterable[float], whole: float) -> SplitBar:
    parts = tuple(Part(amount, glyph, tone) for amount, (_, glyph, tone) in zip(amounts, KINDS, strict=True))
    return SplitBar(None, parts=parts, whole=whole, longest=48)


def _plan_row(device: DevicePlan, number: int, whole: float) -> Row:
    known = device.limit < UNKNOWN_ROOM
    free = max(device.free - device.reserve, 0) if known else 0
    reserve = min(device.reserve, max(device.free, 0)) if known else 0
    used = device.layers > 0
    return Row(
        f"{device.node}\0{device.device}\0planned\0{number}",     # two workers of a node may offer the same device
        (line(Span(device.node, Tone.STRONG), f" {_name(device)}"),
         (Span("planned" if used or device.weights else "unused", Tone.MUTED),),
         (Span(layer_range(device), Tone.PLAIN if used else Tone.MUTED),),
         _bar((device.weights, device.kv, device.compute, reserve, free), whole),
         _bytes(device.weights), _bytes(device.kv), _bytes(device.compute),
         line(size(device.free) if known else UNKNOWN),
         (Span(link_text(device.link, measured=device.link_measured), Tone.MUTED),)),
        search=device.label)


def _name(device: DevicePlan) -> str:
    """As its own node names it, and as the head does."""
    return device.device if device.name in ("", device.device) else f"{device.device} {device.name}"


def _bytes(amount: int | None) -> Line:
    return line(size(amount)) if amount else (Span(UNKNOWN, Tone.MUTED),)


def _share_row(share: Share, what: str, whole: float, plan: DevicePlan | None = None) -> Row:
    """What a device holds, by the head's own log."""
    real = what == "real"
    wanted = plan.weights if plan is not None else None
    held = share.model_bytes or 0
    bad = real and bool(wanted) and not held
    word: Line = (Span("✕ empty", Tone.BAD),) if bad else (Span(what, Tone.GOOD if real else Tone.MUTED),)
    layers = (Span(str(share.layers) if share.layers is not None else ("" if real else UNKNOWN), Tone.MUTED),)
    name = share.device if plan is None or plan.device == share.device else f"{plan.device} {share.device}"
    shown_name = line(Span(share.node, Tone.STRONG), f" {name}") if plan is None else line(Span("", Tone.MUTED))
    return Row(
        f"{share.node}\0{plan.device if plan else share.device}\0{what}\0{share.device}",
        (shown_name, word, layers, _bar((held, share.kv_bytes or 0, share.compute_bytes or 0, 0, 0), whole),
         _bytes(share.model_bytes), _bytes(share.kv_bytes), _bytes(share.compute_bytes), line(UNKNOWN),
         (Span(share.endpoint, Tone.MUTED),)),
        search=f"{share.node} {name}")


def title(planned: Planned, snapshot: Snapshot, *, short: bool = False) -> Line:
    """The plan in a line, and how reality stands to it; a `short` one leaves its `settings` to a line of their own."""
    deployment, proposal = snapshot.deployment, planned.proposal
    parts: list[Line] = [WORKING] if planned.working else []
    if _real(planned, deployment):
        state = deployment.placement.state
        glyph, tone = {PlacementState.MATCHES: ("✓", Tone.GOOD), PlacementState.UNKNOWN: ("?", Tone.MUTED)}.get(
            state, ("✕", Tone.BAD))
        words = "as planned" if state is PlacementState.MATCHES else state.value
        parts.append((Span(f"{glyph} {words}", tone),))
    parts.append(line(Span(proposal.model if proposal is not None else planned.model, Tone.STRONG)))
    measured = _measured(deployment, snapshot)
    if proposal is not None and proposal.fits:
        if proposal.prediction is not None:
            parts.append(line(rate(proposal.prediction.tokens_per_second), Span(" predicted", Tone.MUTED)))
        if measured and _real(planned, deployment):
            parts.append(line(rate(measured), Span(" measured", Tone.MUTED)))
        if not short:
            parts.append(settings(planned))
    return joined(parts)


def settings(planned: Planned) -> Line:
    """What the plan was made with; () without one that fits."""
    proposal = planned.proposal
    if proposal is None or not proposal.fits:
        return ()
    more = f" KV {kv_types(proposal)}, {count(proposal.slots, 'slot')}, mode {proposal.mode.value}"
    return line(f"{proposal.context} tokens", Span(more, Tone.MUTED))


def _measured(deployment: Deployment, snapshot: Snapshot) -> float | None:
    """Tokens a second that the head reports."""
    node = snapshot.nodes.get(deployment.head)
    services: tuple[Service, ...] = node.services if node is not None else ()
    return next((s.tokens_per_second for s in services if s.record.id == deployment.head_service), None)


def changes(what_if: WhatIf) -> Line:
    """What is changed in thought; () for nothing."""
    said = []
    if what_if.context is not None:
        said.append(f"context {what_if.context}")
    if what_if.type_k or what_if.type_v:
        said.append(f"KV {what_if.type_k or 'as it is'}")
    if what_if.mode is not None:
        said.append(f"mode {what_if.mode.value}")
    if what_if.head:
        said.append(f"head {what_if.head}")
    said += [f"without {node}{f' {device}' if device else ''}" for node, device in sorted(what_if.without)]
    return line(Span("what if: ", Tone.WARN), ", ".join(said), Span("  esc goes back", Tone.MUTED)) if said else ()


def entries(planned: Planned, snapshot: Snapshot) -> tuple[Entry, ...]:
    """Why, what it costs, and what would be better."""
    out: list[Entry] = []
    placement = snapshot.deployment.placement
    if placement.problem is not None and _real(planned, snapshot.deployment):
        out += [*problem_entries(placement.problem), Paragraph()]
    if planned.problem is not None:
        return (*out, *problem_entries(planned.problem))
    proposal = planned.proposal
    if proposal is None:
        return tuple(out)
    if proposal.problem is not None:
        out += [*problem_entries(proposal.problem), Paragraph()]
    out += _terms(proposal)
    minds = tuple(str(verdict) for verdict in proposal.verdicts if verdict.level is not Level.OK)
    for name, sentences in (("why", proposal.sentences), ("mind", minds), ("better", proposal.suggestions),
                            ("flags for the network", proposal.flag_reasons)):
        if sentences:
            out.append(Heading(name))
            out += [Paragraph(line(Span("· ", Tone.MUTED), sentence), 2) for sentence in sentences]
    return tuple(out)


def _terms(proposal: Proposal) -> list[Entry]:
    if proposal.prediction is None:
        return []
    out: list[Entry] = [Heading("a token", line(Span(
        f"{proposal.prediction.seconds_per_token * 1000:.1f} ms, {rate(proposal.prediction.tokens_per_second)}")))]
    for device in shown(proposal):
        if not device.layers:
            continue
        guess = " (a guess)" if device.speed.guessed else ""
        reads = f"reads at {device.speed.bytes_per_second / 1e9:.0f} GB/s{guess}"
        parts = [f"{device.read_seconds * 1000:.1f} ms {reads}"]
        if device.wait_seconds:
            parts.append(f"{device.wait_seconds * 1000:.1f} ms round trip")
        if device.send_seconds >= 0.00005:
            parts.append(f"{device.send_seconds * 1000:.1f} ms sends back")
        out.append(Cut(line(Span(f"{device.node} {_name(device)}  ", Tone.STRONG), ", ".join(parts))))
    return out


def device_of(key: str) -> tuple[str, str]:
    """(node, device as its own node names it) of a row."""
    node, _, rest = key.partition("\0")
    return node, rest.partition("\0")[0]


def options_of(what_if: WhatIf) -> tuple[str, ...]:
    """Options of `quarterdeck plan` that show the same."""
    out: list[str] = []
    if what_if.context is not None:
        out += ["--context", str(what_if.context)]
    if what_if.type_k:
        out += ["--kv", ",".join(dict.fromkeys(filter(None, (what_if.type_k, what_if.type_v))))]
    if what_if.head:
        out += ["--head", what_if.head]
    if what_if.mode is not None:
        out += ["--mode", what_if.mode.value]
    for node, device in sorted(what_if.without):
        out += ["--without", f"{node}:{device}" if device else node]
    return tuple(out)
