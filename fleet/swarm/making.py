"""The manifest of a model on this machine: which files it has, what its header says, the hashes of every piece."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from fleet.errors import ModelFileError
from fleet.models.facts import facts_of
from fleet.models.local import header_of_file
from fleet.models.shards import FileKind, file_kind, shard_of, shard_paths
from fleet.node.hashing import create_manifest
from fleet.node.manifest import LONGEST_FACT, PIECE_SIZE, SUFFIX, Fact, Manifest
from fleet.node.store import mark_source
from fleet.swarm.faults import SwarmFault


def files_of(paths: Sequence[str]) -> tuple[str, ...]:
    """The files of one model. One shard stands for all of its set; several paths have to be one set.

    Raises:
        SwarmFault: a shard is missing, or the files do not belong together.
    """
    first = shard_of(paths[0])
    if first is None:
        if len(paths) > 1:
            raise SwarmFault(f"{paths[0]} is no part of a model in several files.",
                             "Make one manifest for each model.", code="manifest")
        return (paths[0],)
    whole = shard_paths(f"{first.stem}-00001-of-{first.count:05d}{paths[0][-5:]}", first.count)
    strange = [path for path in paths if os.path.abspath(path) not in {os.path.abspath(part) for part in whole}]
    if strange:
        raise SwarmFault(f"{strange[0]} is no part of {first.stem}.", "Make one manifest for each model.",
                         code="manifest")
    missing = [path for path in whole if not os.path.isfile(path)]
    if missing:
        raise SwarmFault(f"{missing[0]} is missing: the model has {first.count} files.",
                         "Bring all of them into one folder.", code="missing")
    return whole


def facts_of_file(path: str) -> tuple[dict[str, Fact], str]:
    """What a GGUF's header says, small enough for a manifest, and why it says nothing ("" when it does)."""
    if file_kind(path) is FileKind.OTHER:
        return {}, ""
    try:
        facts = facts_of(header_of_file(path))
    except ModelFileError as error:
        return {}, error.what
    said: dict[str, Fact] = {
        "architecture": facts.architecture[:LONGEST_FACT], "quantization": facts.quantisation[:LONGEST_FACT],
        "parameters": facts.parameters, "layers": facts.n_layers, "name": facts.name[:LONGEST_FACT]}
    if facts.context_length:
        said["context_length"] = facts.context_length
    if facts.experts:
        said.update(experts=facts.experts, experts_used=facts.experts_used)
    return {key: value for key, value in said.items() if value != ""}, ""


def make_manifest(paths: Sequence[str], *, piece_size: int = PIECE_SIZE, facts: dict[str, Fact] | None = None,
                  progress: Callable[[int, int], None] | None = None,
                  stop: threading.Event | None = None) -> tuple[Manifest, Path]:
    """Hash the files of one model, write manifest and note beside the first; the manifest and its path.

    Raises:
        SwarmError: it cannot be hashed or written, or was stopped.
    """
    manifest = create_manifest([Path(path) for path in paths], piece_size=piece_size, facts=facts or {},
                               progress=progress, stop=stop)
    folder = Path(paths[0]).absolute().parent
    mark_source(manifest, folder)
    return manifest, folder / (manifest.name + SUFFIX)
