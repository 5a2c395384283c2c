"""Entries of metadata and the index of tensors, read from a window."""

from __future__ import annotations

import hashlib
import math
import struct
from itertools import pairwise

from fleet.errors import ModelFileError
from fleet.models.header import AGAIN, Scalar, TensorInfo, Value
from fleet.models.tensor_types import tensor_types
from fleet.models.window import Window

TOKENS = "tokenizer.ggml.tokens"
LONGEST_KEY = 65_535           # bytes, by the format's own rule
LONGEST_STRING = 1024 * 1024   # bytes of a value that is kept; chat templates have under 64 KiB
KEPT_ELEMENTS = 4_096          # of an array of numbers: a value for each layer fits
KEPT_STRINGS = 256
KEPT_BYTES = 4 * 1024 * 1024   # of all values together: ten times that as Python numbers
DEEPEST_ARRAY = 4
MOST_NESTED = 65_536           # arrays within arrays, together
MOST_DIMENSIONS = 4
DEFAULT_ALIGNMENT = 32

_STRING, _ARRAY, _BOOL = 8, 9, 7
_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
_SMALLEST = {**{kind: struct.calcsize(code) for kind, code in _FORMATS.items()}, _STRING: 8, _ARRAY: 12}


class Parser:
    """Reads entries and the index from a window."""

    def __init__(self, window: Window) -> None:
        self.metadata: dict[str, Value] = {}
        self.array_lengths: dict[str, int] = {}
        self.vocabulary = ""                      # hash over the tokens, "" without any
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
            *shape, kind, offset = struct.unpack(
                f"<{n_dimensions}QIQ", await self._window.take(8 * n_dimensions + 12, "the tensor index"))
            raw.append((name, tuple(shape), kind, offset))
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
        if key == TOKENS and not depth:
            # Hashed on the way, kept never. Taking 262 144 tokens into a list costs 60 MB and 80 ms.
            digest = hashlib.blake2b(digest_size=16)
            await self._window.skip_strings(count, key, digest.update)
            self.vocabulary = digest.hexdigest() if count else ""
            return None
        if count > KEPT_STRINGS or depth:
            await self._window.skip_strings(count, key[:80])
            return None
        values = [await self._string(key) for _ in range(count)]
        return tuple(value for value in values if value is not None)

    def _damaged(self, how: str) -> ModelFileError:
        return ModelFileError(f"{self._window.name} {how}: it is damaged.", AGAIN, code="damaged")
