"""Models that could be brought up: those that fleet.yaml names, then files seen on the nodes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from app.present.units import UNKNOWN, size
from fleet.config.schema import FleetConfig
from fleet.model import Snapshot
from widgets.row_spec import Column, Row
from widgets.spans import Keep, Span, Tone, line

COLUMNS = (
    Column("name", "model", 10, 60, keep=Keep.BOTH, grow=True),
    Column("size", "size", 8, 9, right=True),
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
    return tuple(out)


def _size_of(snapshot: Snapshot, file: str) -> int | None:
    base = file.rpartition("/")[2]
    for node in snapshot.nodes.values():
        for model in node.reading.models if node.reading else ():
            if model.path.rpartition("/")[2] == base:
                return model.size
    return None


def rows(models: tuple[Candidate, ...]) -> tuple[Row, ...]:
    """A row each; the key is what `BringUp` is told."""
    return tuple(
        Row(model.value, (
            (Span(model.name, Tone.STRONG if model.configured else Tone.PLAIN),),
            line(size(model.bytes) if model.bytes is not None else UNKNOWN),
            (Span(model.where, Tone.MUTED),),
        )) for model in models)
