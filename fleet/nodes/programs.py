"""The programs of inference engines and the GGUF files on a node, from the probe's rows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fleet.model import Binary, ModelFile
from fleet.models.shards import FileKind, file_kind
from fleet.nodes.hardware.figures import LARGEST
from fleet.runtimes.binaries import parse_version

MODELS_LISTED = 500
_BINARY = re.compile(r"([0-9]{1,18}) ([0-9]{1,12})(?:\.[0-9]*)? ([0-9]{1,20}:[0-9]{1,20}) (/[^\0\n]{1,4000})")
_MODEL = re.compile(r"([0-9]{1,18}) ([0-9]{1,12})(?:\.[0-9]*)? (/[^\0\n]{1,4000})")
_DIGEST = re.compile(r"\b([0-9a-f]{64})\b")
_PACKAGE = re.compile(r"(vllm|ray)-([0-9][0-9A-Za-z.+!_]{0,60})\.dist-info")
_CONTROL = ".aria2"         # beside a file that is still being fetched


@dataclass(frozen=True, slots=True)
class _Row:
    size: int
    mtime: int
    inode: str
    path: str


def read_programs(rows: str, versions: Mapping[str, str], digests: Mapping[str, str],
                  before: Sequence[Binary], packages: Mapping[str, str] | None = None) -> tuple[Binary, ...]:
    """Programs in the order of the search; `versions`, `digests` and `packages` by inode, for those asked now.

    What was asked before and did not change since keeps its answers. ggml-rpc-server has no
    --version, so its build is that of the llama-server beside it; of vLLM and Ray the name of their
    installed package tells the version.
    """
    known = {(binary.path, binary.size, binary.mtime): binary for binary in before}
    found: list[Binary] = []
    for row in _rows(rows):
        name = row.path.rpartition("/")[2]
        program = name if name in ("llama-server", "vllm", "ray") else "ggml-rpc-server"
        binary = known.get((row.path, row.size, row.mtime)) or Binary(row.path, program, size=row.size, mtime=row.mtime)
        if row.inode in versions and program == "llama-server":
            build, commit = parse_version(versions[row.inode])
            binary = replace(binary, build=build, commit=commit)
        if match := _PACKAGE.fullmatch((packages or {}).get(row.inode, "").strip()):
            binary = replace(binary, version=match[2] if match[1] == program else "")
        if match := _DIGEST.search(digests.get(row.inode, "")):
            binary = replace(binary, digest=match[1])
        found.append(binary)
    servers = {binary.folder: binary for binary in found if binary.program == "llama-server"}
    return tuple(
        replace(binary, build=servers[binary.folder].build, commit=servers[binary.folder].commit)
        if binary.program == "ggml-rpc-server" and binary.folder in servers else binary
        for binary in found)


def _rows(text: str) -> list[_Row]:
    rows = []
    for line in text.split("\n")[:128]:
        match = _BINARY.fullmatch(line)
        if match and int(match[1]) <= LARGEST:
            rows.append(_Row(int(match[1]), int(match[2]), match[3], match[4]))
    return rows


def known_arguments(before: Sequence[Binary]) -> list[str]:
    """What the script compares with, to ask only what is new: "size mtime path"."""
    return [f"known={binary.size} {binary.mtime} {binary.path}" for binary in before[:64] if "\n" not in binary.path]


@dataclass(frozen=True, slots=True)
class Listing:
    """The GGUF files of a node, by path."""

    models: tuple[ModelFile, ...] = ()
    unfinished: tuple[ModelFile, ...] = ()   # still being fetched, or cut into pieces
    more: bool = False                       # there are more than were listed


def read_models(text: str) -> Listing:
    """What lies in the model folders. Left out: empty files, and the "._name" shadows that Macs leave on other
    systems' disks."""
    found: dict[str, ModelFile] = {}
    partial: dict[str, ModelFile] = {}
    unfinished: set[str] = set()
    lines = text.split("\n")
    for line in lines[:MODELS_LISTED + 1]:
        match = _MODEL.fullmatch(line)
        if match is None or int(match[1]) > LARGEST:
            continue
        path, file = match[3], ModelFile(match[3], int(match[1]), int(match[2]))
        if path.endswith(_CONTROL):
            unfinished.add(path.removesuffix(_CONTROL))
        elif path.rpartition("/")[2].startswith("._") or not file.size:
            continue
        elif path.lower().endswith(".gguf"):
            found.setdefault(path, file)
        elif file_kind(path) in (FileKind.UNFINISHED, FileKind.CUT):
            partial.setdefault(path, file)
    partial |= {path: file for path, file in found.items() if path in unfinished}
    files = sorted((file for path, file in found.items() if path not in unfinished), key=lambda file: file.path)
    return Listing(tuple(files[:MODELS_LISTED]), tuple(sorted(partial.values(), key=lambda file: file.path)),
                   len([line for line in lines if line.strip()]) > MODELS_LISTED)
