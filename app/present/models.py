"""Models that could be brought up: those that fleet.yaml names, then files seen on the nodes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from app.present.model_detail import tokens
from app.present.units import UNKNOWN, size
from fleet.config.schema import FleetConfig
from fleet.model import Deployment, DeploymentState, Snapshot
from widgets.row_spec import Column, Row
from widgets.spans import Keep, Line, Span, Tone, line

if TYPE_CHECKING:
    from fleet.planning.propose import Proposal

COLUMNS = (
    Column("state", "", 1, 1),
    Column("name", "model", 10, 60, keep=Keep.BOTH, grow=True),
    Column("size", "size", 8, 9, right=True),
    Column("fits", "fits with", 9, 14, need=2),
    Column("where", "where", 8, 24, need=1),
)
_LATER_SHARD = re.compile(r"-(\d{5})-of-\d{5}\.gguf$")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model that `BringUp` can be told of."""

    value: str                 # a name of fleet.yaml, or the path of a file
    name: str
    where: str
    bytes: int | None
    configured: bool
    serves: bool = False


def candidates(snapshot: Snapshot, config: FleetConfig) -> tuple[Candidate, ...]:
    """Configured models first, the default one before all; then files, each once however many nodes have it."""
    names = sorted(config.models, key=lambda name: (name != config.model, name))
    out = [Candidate(name, name, "fleet.yaml", _size_of(snapshot, config.models[name].file), True) for name in names]
    known = {model.file.rpartition("/")[2] for model in config.models.values()}
    found: dict[tuple[str, int], list[tuple[str, str]]] = {}
    for node in snapshot.nodes.values():
        for model in node.reading.models if node.reading else ():
            base = model.path.rpartition("/")[2]
            shard = _LATER_SHARD.search(base)
            if base in known or "mmproj" in base.lower() or (shard and shard.group(1) != "00001"):
                continue
            found.setdefault((base, model.size), []).append((node.name, model.path))
    for (base, count), places in sorted(found.items()):
        where = ", ".join(node for node, _ in places)
        out.append(Candidate(places[0][1], base, where, count, False))
    return _recent_first(out, snapshot.deployment)


def _recent_first(found: list[Candidate], deployment: Deployment) -> tuple[Candidate, ...]:
    """What was served last comes first, what serves now last of all: one wants another one."""
    recent = {name: place for place, name in enumerate(deployment.recent)}
    up = deployment.state is not DeploymentState.DOWN

    def names(model: Candidate) -> tuple[str, ...]:
        return model.value, model.name, model.name.removesuffix(".gguf")

    marked = [replace(model, serves=up and (deployment.model in names(model) or model.value == deployment.model_path))
              for model in found]
    return tuple(sorted(marked, key=lambda model: (
        model.serves, min((recent[name] for name in names(model) if name in recent), default=len(recent)))))


def matching(models: tuple[Candidate, ...], typed: str) -> tuple[Candidate, ...]:
    """Those whose name or place has the typed letters in this order, the best match first."""
    if not typed.strip():
        return models
    from textual.fuzzy import Matcher

    matcher = Matcher(typed.strip())
    scored = [(max(matcher.match(model.name), matcher.match(model.where) / 2), model) for model in models]
    return tuple(model for score, model in sorted(scored, key=lambda item: -item[0]) if score > 0)


class Fits(StrEnum):
    """What is known of whether a model fits."""

    UNKNOWN = "…"
    WORKING = "◌ working"
    NO = "✕ no"
    NO_PLAN = "? no plan"


def fits_of(proposal: Proposal | None) -> str:
    """For the column: the context that it fits with."""
    if proposal is None:
        return Fits.NO_PLAN
    return f"✓ {tokens(proposal.context)}" if proposal.fits else Fits.NO


def _size_of(snapshot: Snapshot, file: str) -> int | None:
    base = file.rpartition("/")[2]
    for node in snapshot.nodes.values():
        for model in node.reading.models if node.reading else ():
            if model.path.rpartition("/")[2] == base:
                return model.size
    return None


def rows(models: tuple[Candidate, ...], fits: Mapping[str, str] | None = None) -> tuple[Row, ...]:
    """A row each; the key is what `BringUp` is told. `fits`: by value, as far as it is known."""
    return tuple(
        Row(model.value, (
            (Span("●" if model.serves else " ", Tone.GOOD),),
            (Span(model.name, Tone.STRONG if model.configured else Tone.PLAIN),),
            line(size(model.bytes) if model.bytes is not None else UNKNOWN),
            _fits((fits or {}).get(model.value, Fits.UNKNOWN)),
            (Span(model.where, Tone.MUTED),),
        )) for model in models)


def _fits(said: str) -> Line:
    tone = {Fits.NO: Tone.BAD, Fits.NO_PLAN: Tone.WARN}.get(said, Tone.GOOD if said.startswith("✓") else Tone.MUTED)
    return (Span(said, tone),)
