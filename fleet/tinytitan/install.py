"""What an install of TinyTitan is, from its `manifest.json` and `packed_experts/layout.json`. Nothing is believed.

A directory with `manifest.json` (magic SSDAI, before version 5.15 GTURBO; older manifests are not rewritten),
`model_weights.bin`, `tokenizer/` and, for a mixture, `packed_experts/layer_NN.bin`, in each of which expert e stands
at e x stride. So a cache of S slots a layer takes stride x layers x S bytes, and a token reads at most
stride x layers x k.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from fleet.errors import ModelFileError
from fleet.text import visible

MAGICS = ("SSDAI", "GTURBO")
MANIFEST, LAYOUT, RECEIPT = "manifest.json", "packed_experts/layout.json", "verified-install.json"
MOST_BYTES = 64 << 20          # of one of these files: a layout names every tensor of every expert
MOST_FILES = 4096
MOST_LAYERS = 1024
MOST_EXPERTS = 65_536
MOST_STRIDE = 1 << 40
PAGE = 16_384                  # bytes: strides are multiples of it
MOST_SIZE = 1 << 50
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file as the manifest has it."""

    size: int                      # bytes
    sha256: str


@dataclass(frozen=True)
class Install:
    """One install, by its manifest."""

    magic: str
    version: tuple[int, int]
    model: str                     # its modelID
    layers: int
    experts: int                   # a layer; 0 = a dense model
    used: int                      # experts a token and layer; 0 = dense
    stride: int                    # bytes of one expert of one layer, padding included
    expert_bits: int | None        # of the routed experts' weights
    files: Mapping[str, FileEntry] = field(repr=False)
    digest: str = ""               # sha256 of the manifest itself

    @property
    def expert_bytes(self) -> int:
        """Bytes of all experts together."""
        return self.stride * self.layers * self.experts

    @property
    def token_cycle(self) -> int:
        """Bytes of the experts that one token needs: a smaller cache hits nothing."""
        return self.stride * self.layers * self.used

    @property
    def total_bytes(self) -> int:
        """Bytes of all its files."""
        return sum(entry.size for entry in self.files.values())

    def cache_bytes(self, slots: int) -> int:
        """Bytes of a cache with so many experts a layer."""
        return self.stride * self.layers * min(slots, self.experts)


@dataclass(frozen=True, slots=True)
class LayerFile:
    """Where one layer's experts lie."""

    layer: int
    file: str                      # inside `packed_experts`
    offsets: tuple[int, ...]       # bytes, one an expert
    sizes: tuple[int, ...]


def read_manifest(content: bytes, where: str = MANIFEST) -> Install:
    """An install from its manifest. `where` is what people are told that it is.

    Raises:
        ModelFileError: it is none of TinyTitan's, or makes no sense.
    """
    told = _json(content, where)
    magic = told.get("magic")
    if magic not in MAGICS:
        raise _bad(where, f"its magic is {_shown(magic)}, neither {' nor '.join(MAGICS)}")
    version = (_count(told, "versionMajor", 1000, where), _count(told, "versionMinor", 1000, where))
    if version[0] != 1:
        raise _bad(where, f"its format is version {version[0]}, and 1 is known")
    layers = _count(told, "numLayers", MOST_LAYERS, where)
    experts = _count(told, "expertsPerLayer", MOST_EXPERTS, where)
    stride = _count(told, "expertStride", MOST_STRIDE, where) if experts else 0
    arch = _mapping(told.get("arch"))
    used = _count(arch, "topKExperts", experts, where) if experts else 0
    if not layers:
        raise _bad(where, "it has no layers")
    if experts and (not stride or stride % PAGE or not used):
        raise _bad(where, f"{experts} experts of {stride} bytes, {used} a token, cannot be")
    model = told.get("modelID")
    bits = _mapping(_mapping(told.get("quant")).get("routedExpert")).get("weightBits")
    files = read_files(told.get("files"), where)
    _check_layer_files(files, layers, experts, stride, where)
    return Install(str(magic), version, visible(model, limit=200) if isinstance(model, str) else "", layers, experts,
                   used, stride, bits if type(bits) is int and 0 < bits <= 32 else None, files,
                   hashlib.sha256(content).hexdigest())


def read_files(value: object, where: str) -> dict[str, FileEntry]:
    """`files` of a manifest or a receipt: relative path -> size and hash.

    Raises:
        ModelFileError: it is no such table, or a path leaves the install.
    """
    if not isinstance(value, dict) or not 0 < len(value) <= MOST_FILES:
        raise _bad(where, f"it lists no files, or more than {MOST_FILES}")
    found = {}
    for path, entry in value.items():
        size, digest = _mapping(entry).get("size"), _mapping(entry).get("sha256")
        if not is_inside(path):
            raise _bad(where, f"it names {_shown(path)}, which is no path inside the install")
        if type(size) is not int or not 0 <= size <= MOST_SIZE \
                or not (isinstance(digest, str) and _DIGEST.fullmatch(digest)):
            raise _bad(where, f"size or sha256 of {_shown(path)} make no sense")
        found[path] = FileEntry(size, digest)
    return found


def is_inside(path: str) -> bool:
    """Whether a relative path stays where it is, and can be shown."""
    return bool(path) and len(path) <= 1024 and path.isprintable() and not path.startswith(("/", "~")) \
        and "\\" not in path and posixpath.normpath(path) == path and path.split("/")[0] not in (".", "..")


def read_layout(content: bytes, install: Install, where: str = LAYOUT) -> tuple[LayerFile, ...]:
    """Where every expert lies, held against the manifest.

    Raises:
        ModelFileError: it makes no sense, or is of another model.
    """
    told = _json(content, where)
    for key, said in (("expertStride", install.stride), ("numLayers", install.layers),
                      ("expertsPerLayer", install.experts)):
        if told.get(key) != said:
            raise _bad(where, f"its {key} is {_shown(told.get(key))}, and the manifest says {said}")
    entries = told.get("layers")
    if not isinstance(entries, list) or len(entries) != install.layers:
        raise _bad(where, f"it does not list {install.layers} layers")
    found = tuple(_layer(_mapping(entry), install, where) for entry in entries)
    if [layer.layer for layer in found] != list(range(install.layers)):
        raise _bad(where, "its layers are not in order, or one is missing")
    return found


def _layer(told: Mapping[str, object], install: Install, where: str) -> LayerFile:
    layer, file, experts = told.get("layer"), told.get("file"), told.get("experts")
    name = f"layer {_shown(layer)}"
    if type(layer) is not int or not isinstance(file, str) or "/" in file or not is_inside(file):
        raise _bad(where, f"{name} has no file of its own")
    if not isinstance(experts, list) or len(experts) != install.experts:
        raise _bad(where, f"{name} does not list {install.experts} experts")
    offsets, sizes = [], []
    for number, entry in enumerate(experts):
        offset, size = _mapping(entry).get("offset"), _mapping(entry).get("size")
        if offset != number * install.stride or type(size) is not int or not 0 < size <= install.stride:
            raise _bad(where, f"expert {number} of {name} is not at {number} x {install.stride}, or is larger")
        offsets.append(offset)
        sizes.append(size)
    return LayerFile(layer, file, tuple(offsets), tuple(sizes))


def _check_layer_files(files: Mapping[str, FileEntry], layers: int, experts: int, stride: int, where: str) -> None:
    """A mixture has a file a layer, and none is shorter than its experts; a dense model has none."""
    packed = {path: entry for path, entry in files.items() if re.fullmatch(r"packed_experts/layer_[0-9]+\.bin", path)}
    if len(packed) != (layers if experts else 0):
        raise _bad(where, f"it lists {len(packed)} files of experts for {layers if experts else 0} layers")
    for path, entry in packed.items():
        if entry.size < stride * (experts - 1) + 1:
            raise _bad(where, f"{path} is too short for {experts} experts of {stride} bytes")


def _json(content: bytes, where: str) -> Mapping[str, object]:
    if len(content) > MOST_BYTES:
        raise _bad(where, f"it is larger than {MOST_BYTES >> 20} MiB")
    try:
        told = json.loads(content)
    except (ValueError, RecursionError):
        raise _bad(where, "it is no JSON") from None
    if not isinstance(told, dict):
        raise _bad(where, "it is no JSON object")
    return told


def _count(told: Mapping[str, object], key: str, most: int, where: str) -> int:
    value = told.get(key)
    if type(value) is not int or not 0 <= value <= most:
        raise _bad(where, f"its {key} is {_shown(value)}")
    return value


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _shown(value: object) -> str:
    return visible(repr(value)[:200], limit=60)


def _bad(where: str, why: str) -> ModelFileError:
    return ModelFileError(f"{visible(where, limit=300)} is no install of TinyTitan that can be read: {why}.",
                          "Verify it with `TinyTitanRepack --verify-install`, or install the model anew.",
                          code="bad-install")
