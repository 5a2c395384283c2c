"""What is in a GGUF file, from its header alone: bounded, from any machine, without loading a value.

A header is untrusted: no length is believed before it was held against the size of the file, big
arrays (a vocabulary has 262 144 strings) are walked over and never kept.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

from fleet.errors import ModelFileError
from fleet.models.tensor_types import tensor_types
from fleet.models.window import Read, Window

Scalar = int | float | bool | str
Value = Scalar | tuple[Scalar, ...]

MAGIC = b"GGUF"
MOST_ENTRIES = 65_536          # of metadata; real files have under 100
MOST_TENSORS = 262_144         # real files have under 10 000
MOST_LAYERS = 4_096
LONGEST_KEY = 65_535           # bytes, by the format's own rule
LONGEST_STRING = 1024 * 1024   # bytes of a value that is kept; chat templates have under 64 KiB
KEPT_ELEMENTS = 4_096          # of an array of numbers: a value for each layer fits
KEPT_STRINGS = 256
KEPT_BYTES = 16 * 1024 * 1024  # of all values together
DEEPEST_ARRAY = 4
MOST_NESTED = 65_536           # arrays within arrays, together
MOST_DIMENSIONS = 4
DEFAULT_ALIGNMENT = 32

_STRING, _ARRAY, _BOOL = 8, 9, 7
_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
_SMALLEST = {**{kind: struct.calcsize(code) for kind, code in _FORMATS.items()}, _STRING: 8, _ARRAY: 12}
_AGAIN = "Fetch the file again."


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of the index."""

    name: str
    shape: tuple[int, ...]
    type: str                  # "Q4_K"; "type 77" for one that nobody here knows
    offset: int                # bytes from the start of the file
    bytes: int

    @property
    def layer(self) -> int | None:
        """The number of the block that it belongs to, None outside the blocks."""
        match = re.match(r"blk\.(\d{1,6})\.", self.name)
        return int(match[1]) if match else None

    @property
    def is_output(self) -> bool:
        """Whether llama.cpp counts it to the output layer."""
        return self.layer is None and self.name.startswith(("output", "cls"))


@dataclass(frozen=True)
class GgufHeader:
    """The metadata and the tensor index of one file."""

    version: int
    metadata: Mapping[str, Value] = field(default_factory=dict)
    array_lengths: Mapping[str, int] = field(default_factory=dict)   # of every array, kept or not
    tensors: tuple[TensorInfo, ...] = ()
    data_offset: int = 0       # bytes from the start of the file
    file_size: int = 0         # bytes
    missing_bytes: int = 0     # that its tensors reach beyond its end: an incomplete download

    def text(self, key: str) -> str:
        """A string of the metadata, "" when there is none."""
        value = self.metadata.get(key)
        return value if isinstance(value, str) else ""

    def number(self, key: str) -> int | None:
        """A whole number of 0 or more; "{arch}." stands for the architecture's prefix."""
        value = self.metadata.get(key.replace("{arch}", self.architecture))
        return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None

    def numbers(self, key: str) -> tuple[int, ...]:
        """A value for each layer: some models give one for all, some an array; () = not given."""
        value = self.metadata.get(key.replace("{arch}", self.architecture))
        if isinstance(value, tuple):
            return tuple(number for number in value if isinstance(number, int) and not isinstance(number, bool))
        single = self.number(key)
        return () if single is None else (single,) * max(1, self.n_layers)

    @property
    def architecture(self) -> str:
        """"llama", "gemma3" ...; "" in a later shard."""
        return self.text("general.architecture")

    @property
    def name(self) -> str:
        """What its maker calls it."""
        return self.text("general.name")

    @property
    def context_length(self) -> int | None:
        """Tokens that it was trained for."""
        return self.number("{arch}.context_length")

    @property
    def n_vocab(self) -> int | None:
        """How many tokens it knows."""
        return self.array_lengths.get("tokenizer.ggml.tokens") or self.number("{arch}.vocab_size")

    @property
    def has_chat_template(self) -> bool:
        """Whether it was made to chat: a base model has no template, and llama-server lends it ChatML."""
        return any(key == "tokenizer.chat_template" or key.startswith("tokenizer.chat_template.")
                   for key in self.metadata)

    @property
    def split_count(self) -> int:
        """How many files the model is in."""
        return max(1, self.number("split.count") or 1)

    @property
    def split_number(self) -> int:
        """Which of them this is, from 0."""
        return self.number("split.no") or 0

    @cached_property
    def n_layers(self) -> int:
        """Blocks, the output layer not counted; 0 = none (a vocabulary, a projector)."""
        told = self.number("{arch}.block_count")
        if told is not None:
            return told
        return max((tensor.layer + 1 for tensor in self.tensors if tensor.layer is not None), default=0)

    @cached_property
    def layer_bytes(self) -> tuple[int, ...]:
        """Bytes of each block's tensors, in order. With several shards, those of this one."""
        sums = [0] * self.n_layers
        for tensor in self.tensors:
            if tensor.layer is not None and sums:
                sums[min(tensor.layer, len(sums) - 1)] += tensor.bytes
        return tuple(sums)

    @cached_property
    def input_bytes(self) -> int:
        """Bytes of what precedes the blocks (the embedding): always on the head's processor."""
        return sum(tensor.bytes for tensor in self.tensors if tensor.layer is None and not tensor.is_output)

    @cached_property
    def tied_output(self) -> bool:
        """Whether the embedding is the output matrix too. It is then loaded twice where these are apart."""
        names = {tensor.name for tensor in self.tensors}
        return "token_embd.weight" in names and "output.weight" not in names

    @cached_property
    def output_bytes(self) -> int:
        """Bytes of the output layer on its device, a tied embedding counted again."""
        own = sum(tensor.bytes for tensor in self.tensors if tensor.is_output)
        return own + (self._bytes_of("token_embd.weight") if self.tied_output else 0)

    @cached_property
    def tensor_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.bytes for tensor in self.tensors)

    def _bytes_of(self, name: str) -> int:
        return sum(tensor.bytes for tensor in self.tensors if tensor.name == name)


def combined(headers: Sequence[GgufHeader]) -> GgufHeader:
    """The header of a model in several files, from all of theirs in order.

    Raises:
        ModelFileError: a shard is missing, in the wrong place, or holds a tensor that another has.
    """
    if not headers:
        raise ModelFileError("There is no file.", _AGAIN)
    first = headers[0]
    if first.split_count != len(headers) or [header.split_number for header in headers] != list(range(len(headers))):
        raise ModelFileError(f"The model is in {first.split_count} files, and {len(headers)} of them fit together.",
                             "Put all parts in one folder and name the first.", code="shards")
    tensors = tuple(tensor for header in headers for tensor in header.tensors)
    if len({tensor.name for tensor in tensors}) != len(tensors):
        raise ModelFileError("Two parts of the model hold the same tensor.", "Fetch the parts again.", code="shards")
    return replace(first, tensors=tensors, file_size=sum(header.file_size for header in headers),
                   missing_bytes=sum(header.missing_bytes for header in headers))


async def read_header(read: Read, size: int, *, name: str = "the file") -> GgufHeader:
    """Read the header of a GGUF file.

    Args:
        read: gives bytes of the file by offset and length.
        size: bytes of the file.
        name: what to call it in sentences.

    Raises:
        ModelFileError: it is none, is damaged, or is of a kind that llama.cpp does not load.
        FleetError: whatever `read` raises.
    """
    window = Window(read, size, name)
    version, n_tensors, n_entries = await _preamble(window, read)
    parser = _Parser(window)
    for _ in range(n_entries):
        await parser.entry()
    tensors, data_offset = await parser.index(n_tensors)
    end = max((tensor.offset + tensor.bytes for tensor in tensors), default=0)
    header = GgufHeader(version, parser.metadata, parser.array_lengths, tensors, data_offset, size, max(0, end - size))
    if header.n_layers > MOST_LAYERS:
        raise ModelFileError(f"{name} claims {header.n_layers} layers.", _AGAIN)
    return header


async def _preamble(window: Window, read: Read) -> tuple[int, int, int]:
    """Version and counts, held against the size of the file."""
    size, name = window.size, window.name
    if size < 24:
        start = await read(0, size) if size else b""
        if start[:4] != MAGIC[:len(start[:4])] or not start:
            raise _no_gguf(name, start, size)
        raise window.ends_in("its first line")
    start = await window.take(24, "its first line")
    if start[:4] != MAGIC:
        raise _no_gguf(name, start + await read(24, min(1000, size - 24)), size)
    version, n_tensors, n_entries = struct.unpack("<IQQ", start[4:])
    if version & 0xFFFF == 0 and version:
        raise ModelFileError(f"{name} is a big-endian GGUF: this machine and llama.cpp's workers here read the other.",
                             "Fetch the little-endian file of the same model.", code="big-endian")
    if version not in (2, 3):
        age = "too old for today's llama.cpp" if version < 2 else "newer than anything known here"
        raise ModelFileError(f"{name} is GGUF version {version}, {age}.",
                             "Fetch a version 3 file of the same model.", code="version")
    for count, most, least, what in ((n_entries, MOST_ENTRIES, 13, "metadata entries"),
                                     (n_tensors, MOST_TENSORS, 24, "tensors")):
        if count > most or count * least > window.left:
            raise ModelFileError(f"{name} claims {count} {what}, which its {size} bytes cannot hold: it is damaged.",
                                 _AGAIN, code="damaged")
    return version, n_tensors, n_entries


def _no_gguf(name: str, start: bytes, size: int) -> ModelFileError:
    """What the file is instead."""
    text = start.lstrip().lower()
    if size == 0:
        return ModelFileError(f"{name} is empty.", _AGAIN, code="empty")
    if text.startswith(b"version https://git-lfs"):
        real = re.search(rb"size (\d{1,18})", text)
        of = f" of a file of {int(real[1])} bytes" if real else ""
        return ModelFileError(f"{name} is a Git LFS pointer{of}, not the file itself.",
                              "Run `git lfs pull` in that folder, or download the file.", code="lfs-pointer")
    if text.startswith((b"<!doctype html", b"<html")):
        return ModelFileError(f"{name} is a web page: the download ended at a login or an error.",
                              "Sign in where it comes from, or accept its licence, and fetch it again.", code="html")
    if text.startswith(b"pk\x03\x04"):
        return ModelFileError(f"{name} is a zip or PyTorch file, not a GGUF.", "Convert it with llama.cpp's "
                              "convert_hf_to_gguf.py, or fetch a GGUF.", code="not-gguf")
    if start[8:9] == b"{":
        return ModelFileError(f"{name} looks like a safetensors file, not a GGUF.", "Convert it with llama.cpp's "
                              "convert_hf_to_gguf.py, or fetch a GGUF.", code="not-gguf")
    return ModelFileError(f"{name} is not a GGUF file.", "Name a model file that ends in .gguf.", code="not-gguf")


class _Parser:
    """Reads entries and the index from a window."""

    def __init__(self, window: Window) -> None:
        self.metadata: dict[str, Value] = {}
        self.array_lengths: dict[str, int] = {}
        self._window = window
        self._kept = 0
        self._nested = 0

    async def entry(self) -> None:
        """One key and its value."""
        key = await self._name("a metadata key")
        if key in self.metadata or key in self.array_lengths:
            raise self._damaged(f"has {key[:80]!r} twice in its metadata")
        kind = await self._unpack("I", key)
        if kind == _ARRAY:
            value = await self._array(key, 0)
        elif kind == _STRING:
            value = await self._string(key)
        else:
            value = await self._scalar(kind, key)
        if value is not None:
            self.metadata[key] = value

    async def index(self, n_tensors: int) -> tuple[tuple[TensorInfo, ...], int]:
        """The tensors, and where their data begins."""
        raw, names = [], set()
        for _ in range(n_tensors):
            name = await self._name("the tensor index")
            if name in names:
                raise self._damaged(f"has the tensor {name[:80]!r} twice")
            names.add(name)
            n_dimensions = await self._unpack("I", name)
            if n_dimensions > MOST_DIMENSIONS:
                raise self._damaged(f"has a tensor of {n_dimensions} dimensions, {name[:80]!r}")
            shape = struct.unpack(f"<{n_dimensions}Q", await self._window.take(8 * n_dimensions, "the tensor index"))
            kind, offset = struct.unpack("<IQ", await self._window.take(12, "the tensor index"))
            raw.append((name, shape, kind, offset))
        alignment = self.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20 or alignment & (alignment - 1):
            raise self._damaged(f"asks for an alignment of {str(alignment)[:40]}")
        data_offset = -(-self._window.position // alignment) * alignment
        return self._measured(raw, data_offset), data_offset

    def _measured(self, raw: list[tuple[str, tuple[int, ...], int, int]], data_offset: int) -> tuple[TensorInfo, ...]:
        """Tensors with their bytes; of a type that is not known here they reach to the next one."""
        known = tensor_types()
        starts = sorted({offset for _, _, _, offset in raw})
        following = dict(pairwise([*starts, max(self._window.size - data_offset, 0)]))
        tensors = []
        for name, shape, kind, offset in raw:
            values = math.prod(shape)
            if values >= 1 << 62 or offset >= 1 << 62:
                raise self._damaged(f"has a tensor of impossible size, {name[:80]!r}")
            if (tensor_type := known.get(kind)) is None:
                size, label = max(0, following[offset] - offset), f"type {kind}"
            else:
                size, label = -(-values // tensor_type.values) * tensor_type.bytes, tensor_type.name
            tensors.append(TensorInfo(name, shape, label, data_offset + offset, size))
        return tuple(tensors)

    async def _name(self, what: str) -> str:
        length = await self._unpack("Q", what)
        if length > LONGEST_KEY:
            raise self._damaged(f"has a name of {length} bytes in {what}")
        return (await self._window.take(length, what)).decode("utf-8", "replace")

    async def _unpack(self, code: str, what: str) -> int:
        return struct.unpack(f"<{code}", await self._window.take(struct.calcsize(f"<{code}"), what[:80]))[0]

    async def _scalar(self, kind: int, key: str) -> Scalar:
        code = _FORMATS.get(kind)
        if code is None:
            raise self._damaged(f"gives {key[:80]!r} a value of unknown type {kind}")
        value = await self._unpack(code, key)
        return bool(value) if kind == _BOOL else value

    async def _string(self, key: str) -> str | None:
        """A string; None for one that is too long to keep."""
        length = await self._unpack("Q", key)
        if length > self._window.left:
            raise self._window.ends_in(f"{key[:80]!r}, which claims {length} bytes")
        if length > LONGEST_STRING or self._kept + length > KEPT_BYTES:
            self._window.skip(length, key)
            return None
        self._kept += length
        return (await self._window.take(length, key)).decode("utf-8", "replace")

    async def _array(self, key: str, depth: int) -> tuple[Scalar, ...] | None:
        """A short array of numbers or strings; None for every other, which is walked over."""
        kind, count = struct.unpack("<IQ", await self._window.take(12, key[:80]))
        least = _SMALLEST.get(kind)
        if least is None:
            raise self._damaged(f"gives {key[:80]!r} an array of unknown type {kind}")
        if count * least > self._window.left:
            raise self._window.ends_in(f"{key[:80]!r}, which claims {count} values")
        if depth == 0:
            self.array_lengths[key] = count
        if kind == _ARRAY:
            self._nested += count
            if depth >= DEEPEST_ARRAY or self._nested > MOST_NESTED:
                raise self._damaged(f"nests too many arrays in {key[:80]!r}")
            for _ in range(count):
                await self._array(key, depth + 1)
            return None
        if kind == _STRING:
            return await self._strings(key, count, depth)
        if count > KEPT_ELEMENTS or depth or self._kept + count * least > KEPT_BYTES:
            self._window.skip(count * least, key)
            return None
        self._kept += count * least
        values = struct.unpack(f"<{count}{_FORMATS[kind]}", await self._window.take(count * least, key[:80]))
        return tuple(map(bool, values)) if kind == _BOOL else values

    async def _strings(self, key: str, count: int, depth: int) -> tuple[str, ...] | None:
        if count > KEPT_STRINGS or depth:
            await self._window.skip_strings(count, key[:80])
            return None
        values = [await self._string(key) for _ in range(count)]
        return tuple(value for value in values if value is not None)

    def _damaged(self, how: str) -> ModelFileError:
        return ModelFileError(f"{self._window.name} {how}: it is damaged.", _AGAIN, code="damaged")
