"""The models of the whole fleet: a row each, and everything about one. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.present.model_detail import ModelDetail, detail_lines, tokens
from app.present.split import Planned
from app.present.units import UNKNOWN, rate, size
from app.present.words import problem_entries
from fleet.model import Deployment, DeploymentState
from fleet.models.facts import ModelFacts
from fleet.models.inventory import Model, Place, PlaceState
from fleet.models.shards import FileKind
from widgets.entries import Cut, Entry, Fact, Heading, Paragraph
from widgets.row_spec import Column, Row
from widgets.spans import Keep, Line, Span, Tone, joined, line

COLUMNS = (
    Column("state", "", 8, 15),
    Column("name", "model", 18, 48, keep=Keep.BOTH, grow=True),
    Column("size", "size", 8, 9, right=True),
    Column("quantisation", "quant", 6, 16, need=3),
    Column("parameters", "params", 6, 8, need=4, right=True),
    Column("fits", "fits with", 9, 18, need=1),
    Column("where", "where", 8, 30, need=2, grow=True),
)
EMPTY = (line(Span("No model file was found on a node that is up.", Tone.MUTED)),
         line(Span("Put a GGUF file into ~/models of a node, or name folders with `model_dirs:`.", Tone.MUTED)))


@dataclass(frozen=True, slots=True)
class Known:
    """What was read or worked out of a model so far."""

    detail: ModelDetail | None = None
    plan: Planned | None = None
    partners: tuple[str, ...] | None = None     # models that could draft for it; None = not looked for
    fleet: tuple[object, ...] = ()              # what the plan was made for: another fleet needs another plan


def key_of(model: Model) -> str:
    """One row a model: names alone may stand for two files that differ. Equal before and after its header is read."""
    place = place_of(model)
    return f"{model.name}\0{model.size}\0{place.node}\0{place.path}"


def place_of(model: Model) -> Place:
    """The copy that is spoken of: a complete one, where there is one."""
    return model.places[0]


def rows(models: tuple[Model, ...], known: Mapping[str, Known], deployment: Deployment) -> tuple[Row, ...]:
    """A row for each; `known` by `key_of`."""
    return tuple(_row(model, known.get(key_of(model), Known()), deployment) for model in models)


def _row(model: Model, known: Known, deployment: Deployment) -> Row:
    facts = known.detail.facts if known.detail is not None else None
    return Row(key_of(model), (
        _state(model, deployment),
        (Span(model.name, Tone.STRONG if model.complete else Tone.MUTED),),
        line(size(model.size)),
        line(facts.quantisation if facts else Span(UNKNOWN, Tone.MUTED)),
        line(_parameters(facts) if facts else Span(UNKNOWN, Tone.MUTED)),
        _fits(known.plan),
        (Span(", ".join(dict.fromkeys(place.node for place in model.places)), Tone.MUTED),),
    ), order=("", model.name, model.size, facts.quantisation if facts else "", facts.parameters if facts else 0))


def _parameters(facts: ModelFacts) -> str:
    from app.present.model_detail import parameters
    return parameters(facts.parameters)


def serves(model: Model, deployment: Deployment) -> bool:
    """Whether it is what the fleet serves now."""
    return deployment.state is not DeploymentState.DOWN and any(
        deployment.model_path in place.paths for place in model.places)


def _state(model: Model, deployment: Deployment) -> Line:
    if serves(model, deployment):
        return (Span("● serves", Tone.GOOD),)
    if model.kind is not FileKind.MODEL:
        return (Span(f"· {model.kind.value}", Tone.MUTED),)
    state = place_of(model).state
    if state is PlaceState.COMPLETE:
        return (Span("✓ whole", Tone.PLAIN),)
    return (Span(f"▲ {state.value}", Tone.WARN),)


def _fits(plan: Planned | None) -> Line:
    if plan is None:
        return (Span(UNKNOWN, Tone.MUTED),)
    if plan.working:
        return (Span("◌ working", Tone.MUTED),)
    if plan.problem is not None or plan.proposal is None:
        return (Span("? no plan", Tone.WARN),)
    if not plan.proposal.fits:
        return (Span("✕ no", Tone.BAD),)
    return line(Span("✓ ", Tone.GOOD), f"{tokens(plan.proposal.context)} tokens")


def detail(model: Model, known: Known, deployment: Deployment) -> tuple[Entry, ...]:
    """What it is, where it lies, whether it fits, and what could draft for it."""
    out: list[Entry] = [Heading(model.name, _state(model, deployment))]
    for place in model.places:
        note = f"  {place.state.value}" if place.state is not PlaceState.COMPLETE else ""
        parts = f" and {len(place.paths) - 1} more" if len(place.paths) > 1 else ""
        out.append(Cut(line(Span(f"{place.node} ", Tone.STRONG), Span(f"{place.path}{parts}"), Span(note, Tone.WARN)),
                       Keep.END))
        if place.missing:
            out.append(Paragraph(line(Span(f"parts missing: {', '.join(map(str, place.missing))}", Tone.WARN)), 2))
        if place.note:
            out.append(Paragraph(line(Span(place.note, Tone.WARN)), 2))
    for projector in model.projectors:
        out.append(Cut(line(Span(f"{projector.node} ", Tone.STRONG), projector.path, Span("  projector", Tone.MUTED)),
                       Keep.END))
    out += [Paragraph(), *_fit_entries(known)]
    if known.partners is not None:
        found = ", ".join(known.partners) or "none: no smaller model here has its vocabulary"
        out.append(Fact("drafts", line(found)))
    if known.detail is not None:
        out += [Paragraph(), Heading("the file")]
        out += [Cut(line(text)) for text in detail_lines(model.name, known.detail)[1:]]
    return tuple(out)


def _fit_entries(known: Known) -> list[Entry]:
    plan = known.plan
    if plan is None:
        return []
    if plan.working:
        return [Fact("fits", line(Span("◌ working it out ...", Tone.ACCENT)))]
    if plan.problem is not None:
        return [*problem_entries(plan.problem)]
    proposal = plan.proposal
    if proposal is None:
        return []
    if not proposal.fits:
        return [*problem_entries(proposal.problem)] if proposal.problem is not None else []
    speed = rate(proposal.prediction.tokens_per_second) if proposal.prediction is not None else ""
    return [Fact("fits", joined((line(f"{tokens(proposal.context)} tokens of context on {proposal.head}"), line(
        Span(f"{speed} predicted" if speed else "", Tone.MUTED)))))]


def partners(of: ModelFacts, others: Mapping[str, ModelFacts]) -> tuple[str, ...]:
    """Names of models that could draft for one: the same vocabulary, and at most half the parameters."""
    if not of.tokenizer_fingerprint:
        return ()
    return tuple(sorted(name for name, facts in others.items()
                        if facts.tokenizer_fingerprint == of.tokenizer_fingerprint
                        and 0 < facts.parameters * 2 <= of.parameters))
