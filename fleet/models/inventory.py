"""Which model is on which node: one list over the fleet, parts grouped, what cannot be served told apart. Pure.

Files are one model when they have the same name (folders do not count), are in as many parts and have as many bytes,
unless their headers were read and say different things.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType

from fleet.model import ModelFile, Node
from fleet.models.reader import FileKey
from fleet.models.shards import FileKind, Shard, file_kind, is_oddly_numbered, model_name, shard_of

SMALLEST_MODEL = 1024            # bytes; a Git LFS pointer has about 135
_FETCHING = re.compile(r"(?P<file>.*?\.gguf)[.-][^/]+$", re.IGNORECASE | re.DOTALL)
_PROJECTED = re.compile(r"^mmproj[-_.]?|[-_.]?mmproj[-_.]?|(?:^|[-_.])(?:b?f16|f32|q\d\w*)$", re.IGNORECASE)


class PlaceState(StrEnum):
    """Whether a copy can be served."""

    COMPLETE = "complete"
    PARTS_MISSING = "parts missing"
    UNFINISHED = "unfinished"        # being fetched, or given up
    CUT = "cut"                      # has to be put together with `cat` first
    TOO_SMALL = "too small"          # a pointer or an error page with a model's name


@dataclass(frozen=True, slots=True)
class Place:
    """One copy of a model on one node."""

    node: str
    paths: tuple[str, ...]           # of its parts that are there, in order
    size: int                        # bytes, of these
    mtime: int                       # seconds since the epoch, the newest
    state: PlaceState = PlaceState.COMPLETE
    missing: tuple[int, ...] = ()    # numbers of parts that are not there, from 1
    fingerprint: str = ""            # quick fingerprint of its header, or of its first part's; "" = not read yet
    note: str = ""                   # a sentence, when something is odd

    @property
    def path(self) -> str:
        """What llama.cpp is started with."""
        return self.paths[0]


@dataclass(frozen=True, slots=True)
class Model:
    """One model, wherever it is."""

    name: str
    kind: FileKind
    size: int                        # bytes of a complete copy, or of the largest there is
    shards: int                      # files that it is in
    places: tuple[Place, ...]        # complete ones first, then by node
    projectors: tuple[Place, ...] = ()   # files that lie beside it and give it eyes or ears

    @property
    def complete(self) -> bool:
        """Whether at least one copy can be served."""
        return any(place.state is PlaceState.COMPLETE for place in self.places)

    @property
    def paths(self) -> Mapping[str, str]:
        """By node, the first file of a complete copy."""
        return MappingProxyType({place.node: place.path for place in reversed(self.places)
                                 if place.state is PlaceState.COMPLETE})

    @property
    def fingerprint(self) -> str:
        """The quick fingerprint; "" while no header was read."""
        return next((place.fingerprint for place in self.places if place.fingerprint), "")


def inventory(nodes: Mapping[str, Node], fingerprints: Mapping[FileKey, str] | None = None) -> tuple[Model, ...]:
    """Every model of the fleet, by name; projectors are with the models that they lie beside, and listed too.

    Args:
        nodes: as the Snapshot has them; a node that is not reached keeps what was last read of it.
        fingerprints: of headers that were read.
    """
    known = fingerprints or {}
    found: list[tuple[str, FileKind, int, Place]] = []
    for _, node in sorted(nodes.items()):     # whose spelling of a name is taken must not depend on who answered first
        if node.reading is not None:
            found += _on_node(node.name, node.reading.models, node.reading.unfinished, known)
    whole = [item for item in found if item[3].state is PlaceState.COMPLETE]
    models = list(_joined(whole))
    for name, kind, shards, place in found:
        if place.state is not PlaceState.COMPLETE:
            _attach(models, name, kind, shards, place)
    models.sort(key=lambda model: (model.name.lower(), model.size))
    return tuple(_with_projectors(model, models) for model in models)


def find_models(models: Iterable[Model], wanted: str) -> tuple[Model, ...]:
    """Those that go by a name, by the name of a file, or by a path."""
    low = wanted.lower()
    return tuple(model for model in models
                 if low in (model.name.lower(), f"{model.name.lower()}.gguf")
                 or any(wanted == path or low == path.rpartition("/")[2].lower()
                        for place in model.places for path in place.paths))


# ---------------------------------------------------------------------------------------------
# One node


def _on_node(node: str, files: Iterable[ModelFile], unfinished: Iterable[ModelFile],
             known: Mapping[FileKey, str]) -> Iterator[tuple[str, FileKind, int, Place]]:
    groups: dict[tuple[str, int], dict[int, ModelFile]] = defaultdict(dict)
    for file in files:
        if shard := shard_of(file.path):
            groups[shard.stem, shard.count].setdefault(shard.number, file)
        else:
            yield _single(node, file, known)
    for (stem, count), parts in groups.items():
        yield _group(node, Shard(stem, 1, count), parts, known)
    for file in unfinished:
        cut = file_kind(file.path) is FileKind.CUT
        target = match["file"] if (match := _FETCHING.fullmatch(file.path)) else file.path
        state = PlaceState.CUT if cut else PlaceState.UNFINISHED
        note = "It was cut into parts: put them together with `cat` before it can be used." if cut else ""
        shard = shard_of(target)
        yield (model_name(target), file_kind(target), shard.count if shard else 1,
               Place(node, (file.path,), file.size, file.mtime, state, note=note))


def _single(node: str, file: ModelFile, known: Mapping[FileKey, str]) -> tuple[str, FileKind, int, Place]:
    place = Place(node, (file.path,), file.size, file.mtime, fingerprint=_fingerprint(node, file, known))
    if file.size < SMALLEST_MODEL:
        place = replace(place, state=PlaceState.TOO_SMALL,
                        note=f"{file.size} bytes are no model: a Git LFS pointer, or the page of an error.")
    elif is_oddly_numbered(file.path):
        place = replace(place, note="It is named like one of several parts, but not as llama.cpp looks for the others "
                                    "(-00001-of-00003.gguf).")
    return model_name(file.path), file_kind(file.path), 1, place


def _group(node: str, shard: Shard, parts: Mapping[int, ModelFile],
           known: Mapping[FileKey, str]) -> tuple[str, FileKind, int, Place]:
    """The parts of one model. A part that is as small as a pointer counts as missing."""
    there = {number: file for number, file in sorted(parts.items()) if file.size >= SMALLEST_MODEL}
    missing = tuple(number for number in range(1, shard.count + 1) if number not in there)
    files = list(there.values()) or list(parts.values())
    first = there.get(1)
    place = Place(node, tuple(file.path for file in files), sum(file.size for file in files),
                  max(file.mtime for file in files),
                  PlaceState.PARTS_MISSING if missing else PlaceState.COMPLETE, missing,
                  _fingerprint(node, first, known) if first else "",
                  f"{len(missing)} of its {shard.count} parts {'is' if len(missing) == 1 else 'are'} missing."
                  if missing else "")
    return model_name(files[0].path), file_kind(files[0].path), shard.count, place


def _fingerprint(node: str, file: ModelFile, known: Mapping[FileKey, str]) -> str:
    return known.get(FileKey(node, file.path, file.size, file.mtime), "")


# ---------------------------------------------------------------------------------------------
# Over the fleet


def _joined(whole: Iterable[tuple[str, FileKind, int, Place]]) -> Iterator[Model]:
    """Complete copies of one name and size make one model; of those whose headers differ, one each."""
    groups: dict[tuple[str, FileKind, int, int], list[tuple[str, Place]]] = defaultdict(list)
    for name, kind, shards, place in whole:
        groups[name.lower(), kind, shards, place.size].append((name, place))
    for (_, kind, shards, size), items in groups.items():
        read = dict.fromkeys(place.fingerprint for _, place in items if place.fingerprint)
        for fingerprint in read if len(read) > 1 else ("",):
            one = [place for _, place in items if not fingerprint or place.fingerprint == fingerprint]
            yield Model(items[0][0], kind, size, shards, tuple(sorted(one, key=_order)))
        if len(read) > 1 and (rest := [place for _, place in items if not place.fingerprint]):
            yield Model(items[0][0], kind, size, shards, tuple(sorted(rest, key=_order)))


def _attach(models: list[Model], name: str, kind: FileKind, shards: int, place: Place) -> None:
    """Put an incomplete copy to the one model that it can be a copy of; else it is one by itself."""
    for number, model in enumerate(models):
        if (model.name.lower(), model.kind, model.shards) == (name.lower(), kind, shards):
            size = model.size if model.complete else max(model.size, place.size)
            models[number] = replace(model, size=size, places=tuple(sorted((*model.places, place), key=_order)))
            return
    models.append(Model(name, kind, place.size, shards, (place,)))


def _order(place: Place) -> tuple[bool, str, str]:
    return place.state is not PlaceState.COMPLETE, place.node, place.path


def _with_projectors(model: Model, models: Iterable[Model]) -> Model:
    if model.kind is not FileKind.MODEL:
        return model
    folders = {(place.node, place.path.rpartition("/")[0]) for place in model.places}
    fitting = tuple(place for other in models if other.kind is FileKind.PROJECTOR and _fits(other.name, model.name)
                    for place in other.places
                    if place.state is PlaceState.COMPLETE and (place.node, place.path.rpartition("/")[0]) in folders)
    return replace(model, projectors=fitting) if fitting else model


def _fits(projector: str, model: str) -> bool:
    """By the names: `mmproj-demo-8b-f16` goes with `demo-8b-Q4_K_M`; `mmproj-F16` says nothing, so with its folder."""
    base = projector
    while (shorter := _PROJECTED.sub("", base)) != base:
        base = shorter
    return base.lower() in ("", "model") or model.lower().startswith(base.lower())
