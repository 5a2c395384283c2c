"""`quarterdeck inspect MODEL`: what a model is, read from the header of its file, here or on a node."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from app.as_json import SCHEMA, Json, plain, to_text
from app.exit_codes import BadUsage, ExitCode, NothingThere
from app.output import put, table
from app.present.model_detail import ModelDetail, detail_lines, detail_of
from app.present.units import size
from fleet.models.local import header_of_file
from fleet.models.shards import model_name

if TYPE_CHECKING:      # a file of this machine is shown without any of them
    from app.face import EngineFace
    from app.which_fleet import WhichFleet
    from fleet.model import Snapshot
    from fleet.models.inventory import Model, Place


def run(options: argparse.Namespace) -> int:
    """Read the header and print what it says."""
    wanted = os.path.expanduser(options.model)
    if not options.node and _is_here(wanted):
        detail = detail_of(header_of_file(wanted))
        _print(options, model_name(wanted), detail, paths=(os.path.abspath(wanted),))
        return ExitCode.OK
    from app.session import run_to_end
    from app.which_fleet import which_fleet

    which = which_fleet(options, demo_counts=True)
    return run_to_end(lambda: _inspect(options, which))


def _is_here(path: str) -> bool:
    """Whether a file of this machine is meant. An absolute path that is not here may be one of a node."""
    return os.path.lexists(path) or path.startswith(("./", "../", os.path.expanduser("~/")))


async def _inspect(options: argparse.Namespace, which: WhichFleet) -> int:
    from app.engines import engine_maker
    from app.session import watching

    async with watching(engine_maker(which, options)) as engine:
        node, path = await found_copy(engine, *node_and_model(options, engine.latest))
        header = await engine.model_header(node, path)
        model = _known(engine, node, path)
    _print(options, model.name if model else model_name(path), detail_of(header), node=node, model=model,
           paths=_paths(model, node, path))
    return ExitCode.OK


def node_and_model(options: argparse.Namespace, snapshot: Snapshot) -> tuple[str, str]:
    """NODE ("" = any) and what is wanted there.

    Raises:
        NothingThere: there is no such node.
        BadUsage: it was named twice, and differently.
    """
    node, wanted = options.node, options.model
    before, colon, after = wanted.partition(":")
    if colon and after and "/" not in before and (before in snapshot.nodes or after.startswith(("/", "~"))):
        if node and node != before:
            raise BadUsage(f"{wanted} names the node {before}, and --node {node}.", "Leave one of them out.")
        node, wanted = before, after
    if node and node not in snapshot.nodes:
        raise NothingThere(f"No node is called {node}.", f"Nodes: {', '.join(snapshot.nodes) or 'none'}.")
    if wanted.startswith("~"):
        raise BadUsage(f"Which home ~ of {node or 'a node'} stands for is not known here.", "Write the whole path.")
    return node or "", wanted


async def found_copy(engine: EngineFace, node: str, wanted: str) -> tuple[str, str]:
    """Where a model can be read: node and path of its first file.

    Raises:
        NothingThere: there is none, only an unfinished one, or several of this name.
    """
    if node and wanted.startswith("/"):
        return node, wanted
    from fleet.models.inventory import find_models, inventory

    snapshot = engine.latest
    configured = engine.config.models.get(wanted)
    models = [_on(model, node) for model in inventory(snapshot.nodes)]
    models = [model for model in models if model.places]
    found = find_models(models, configured.file.rpartition("/")[2] if configured else wanted)
    if not found and configured and node:
        return node, configured.file
    if not found:
        where = f"on {node}" if node else "on any node that answers"
        names = sorted({model.name for model in models})
        more = " ..." if len(names) > 12 else ""
        raise NothingThere(f"No model is called {wanted} {where}.",
                           f"Models: {', '.join(names[:12])}{more}." if names else
                           "No GGUF file was found in the model folders of the nodes.")
    if len(found) > 1:
        places = [f"{place.node}:{place.path}" for model in found for place in model.places]
        raise NothingThere(f"{wanted} is the name of {len(found)} models.", f"Say which: {', '.join(places[:6])}.")
    place = _best(found[0].places, snapshot)
    if not place.path.lower().endswith(".gguf"):
        raise NothingThere(f"{place.path} on {place.node} is {place.state.value}.",
                           place.note or "Wait until it is whole, or name another copy.")
    return place.node, place.path


def _on(model: Model, node: str) -> Model:
    return replace(model, places=tuple(place for place in model.places if node in ("", place.node)))


def _best(places: Sequence[Place], snapshot: Snapshot) -> Place:
    """The copy that is quickest to read: a whole one, on this machine, on a node that answers."""
    from fleet.model import NodeState
    from fleet.models.inventory import PlaceState

    def rank(place: Place) -> tuple[bool, bool, bool]:
        node = snapshot.nodes[place.node]
        return place.state is not PlaceState.COMPLETE, not node.local, node.state is not NodeState.UP

    return min(places, key=rank)


def _known(engine: EngineFace, node: str, path: str) -> Model | None:
    """What the whole fleet has of it, now that its header was read."""
    from fleet.models.inventory import inventory

    return next((model for model in inventory(engine.latest.nodes, engine.headers.fingerprints())
                 for place in model.places if place.node == node and path in place.paths), None)


def _paths(model: Model | None, node: str, path: str) -> tuple[str, ...]:
    return next((place.paths for place in model.places if place.node == node and path in place.paths),
                (path,)) if model else (path,)


def _print(options: argparse.Namespace, name: str, detail: ModelDetail, *, paths: Sequence[str], node: str = "",
           model: Model | None = None) -> None:
    if options.json:
        put(to_text(inspect_json(name, detail, paths=paths, node=node, model=model)))
        return
    lines = detail_lines(name, detail)
    if model is not None:
        lines += ["", *place_lines(model)]
    put("\n".join(lines))


def place_lines(model: Model) -> list[str]:
    """Where in the fleet it is, and what belongs to it."""
    rows = [(place.node, place.state.value, size(place.size), place.path) for place in model.places]
    rows += [(place.node, "projector", size(place.size), place.path) for place in model.projectors]
    notes = [f"  {place.node}: {place.note}" for place in model.places if place.note]
    return [*table(("NODE", "COPY", "SIZE", "PATH"), rows, right=frozenset({2}), indent="  "), *notes]


def inspect_json(name: str, detail: ModelDetail, *, paths: Sequence[str], node: str = "",
                 model: Model | None = None) -> Mapping[str, Json]:
    """The whole answer. Sizes are bytes, layers count from 0."""
    header, experts = detail.header, detail.experts
    layers = [{"layer": layer, "bytes": count, "attention": plain(detail.kinds[layer])
               if layer < len(detail.kinds) else None} for layer, count in enumerate(header.layer_bytes)]
    return {
        "schema": SCHEMA, "model": name, "node": node or None, "paths": list(paths), "facts": plain(detail.facts),
        "size": header.file_size, "missing_bytes": header.missing_bytes, "shards": header.split_count,
        "fingerprint": header.fingerprint, "gguf_version": header.version, "input_bytes": header.input_bytes,
        "output_bytes": header.output_bytes, "tied_output": header.tied_output, "layers": layers,
        "attention_doubt": detail.doubt or None,
        "experts": {"count": experts.count, "used": experts.used, "shared": experts.shared, "bytes": experts.bytes,
                    "expert_bytes": experts.expert_bytes, "token_bytes": experts.token_bytes,
                    "layers": [{"layer": layer.layer, "count": layer.count, "expert_bytes": layer.expert_bytes,
                                "shared_bytes": layer.shared_bytes} for layer in experts.layers]} if experts else None,
        "places": plain(model.places) if model else None, "projectors": plain(model.projectors) if model else None,
    }
