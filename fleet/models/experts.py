"""Where the experts of a mixture lie in a file: the bytes of each, layer by layer.

Routed experts are fused (`blk.3.ffn_gate_exps.weight`, the expert being the slowest dimension, so that each is one
contiguous slice) or one tensor each (`blk.3.ffn_gate.17.weight`, files of before April 2024, which today's llama.cpp
does not load). Shared experts (`_shexp`), which every token passes through, and the router are told apart from them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from fleet.models.header import GgufHeader, TensorInfo

MOST_EXPERTS = 65_536
_FUSED = re.compile(r"blk\.(\d{1,6})\.ffn_(gate_up|gate|up|down)_exps\.(\w+)")
_SINGLE = re.compile(r"blk\.(\d{1,6})\.ffn_(gate|up|down)\.(\d{1,6})\.(\w+)")
_SHARED = re.compile(r"blk\.\d{1,6}\.ffn_\w*_shexp\.\w+")


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Some bytes of one of a model's files."""

    file: int          # of the model's files, from 0
    offset: int        # bytes from its start
    length: int        # bytes


@dataclass(frozen=True, slots=True)
class ExpertTensor:
    """One matrix (or its bias) of every expert of a layer."""

    name: str
    part: str                            # "gate", "up", "down", "gate_up"
    count: int                           # experts
    first: ByteRange                     # the first expert's; fused, the others follow it without a gap
    apart: tuple[ByteRange, ...] = ()    # by expert, where each has a tensor of its own

    @property
    def bytes(self) -> int:
        """Of all experts together."""
        return sum(piece.length for piece in self.apart) if self.apart else self.first.length * self.count

    def slice(self, expert: int) -> ByteRange:
        """Where one expert's part lies.

        Raises:
            IndexError: there is no such expert.
        """
        if not 0 <= expert < self.count:
            raise IndexError(f"{self.name} has experts 0 to {self.count - 1}, no {expert}")
        if self.apart:
            return self.apart[expert]
        return ByteRange(self.first.file, self.first.offset + expert * self.first.length, self.first.length)


@dataclass(frozen=True, slots=True)
class ExpertLayer:
    """The routed experts of one layer."""

    layer: int
    count: int
    tensors: tuple[ExpertTensor, ...]
    shared_bytes: int = 0              # of shared experts

    @property
    def bytes(self) -> int:
        """Of all routed experts together."""
        return sum(tensor.bytes for tensor in self.tensors)

    @property
    def expert_bytes(self) -> int:
        """Of one expert, all of its matrices."""
        return self.bytes // self.count if self.count else 0

    def ranges(self, expert: int) -> tuple[ByteRange, ...]:
        """Where one expert lies."""
        return tuple(tensor.slice(expert) for tensor in self.tensors)


@dataclass(frozen=True, slots=True)
class Experts:
    """The mixture of a model."""

    count: int                         # routed experts a layer
    used: int                          # of them for each token; 0 = not told
    shared: int                        # experts a layer that every token passes through
    layers: tuple[ExpertLayer, ...]

    @property
    def bytes(self) -> int:
        """Of all routed experts of all layers."""
        return sum(layer.bytes for layer in self.layers)

    @property
    def expert_bytes(self) -> int:
        """Of one expert in one layer, the largest where layers differ: what a slot of a cache has to hold."""
        return max((layer.expert_bytes for layer in self.layers), default=0)

    @property
    def token_bytes(self) -> int:
        """Of the routed experts that one token needs: less memory than this for them cannot work."""
        return sum(layer.expert_bytes * min(self.used or layer.count, layer.count) for layer in self.layers)


def experts_of(header: GgufHeader) -> Experts | None:
    """The experts of a model, None for a dense one. With several shards, give the combined header."""
    fused: dict[int, list[tuple[TensorInfo, str]]] = defaultdict(list)
    single: dict[int, dict[tuple[str, str], dict[int, TensorInfo]]] = defaultdict(lambda: defaultdict(dict))
    shared: dict[int, int] = defaultdict(int)
    for tensor in header.tensors:
        if match := _FUSED.fullmatch(tensor.name):
            fused[int(match[1])].append((tensor, match[2]))
        elif match := _SINGLE.fullmatch(tensor.name):
            single[int(match[1])][match[2], match[4]][int(match[3])] = tensor
        elif _SHARED.fullmatch(tensor.name) and tensor.layer is not None:
            shared[tensor.layer] += tensor.bytes
    layers = []
    for layer in sorted(fused.keys() | single.keys()):
        tensors = (*_fused_tensors(fused[layer]), *_single_tensors(layer, single[layer]))
        count = max((tensor.count for tensor in tensors), default=0)
        if whole := tuple(tensor for tensor in tensors if tensor.count == count):
            layers.append(ExpertLayer(layer, count, whole, shared[layer]))
    if not layers:
        return None
    count = max(layer.count for layer in layers)
    told = header.number("{arch}.expert_shared_count")
    return Experts(count, min(header.number("{arch}.expert_used_count") or 0, count),
                   told if told is not None else int(any(shared.values())), tuple(layers))


def _fused_tensors(tensors: list[tuple[TensorInfo, str]]) -> Iterator[ExpertTensor]:
    """Fused tensors: their last dimension counts the experts."""
    for tensor, part in tensors:
        count = tensor.shape[-1] if tensor.shape else 0
        if 0 < count <= MOST_EXPERTS and tensor.bytes % count == 0:
            yield ExpertTensor(tensor.name, part, count,
                               ByteRange(tensor.file, tensor.offset, tensor.bytes // count))


def _single_tensors(layer: int, groups: dict[tuple[str, str], dict[int, TensorInfo]]) -> Iterator[ExpertTensor]:
    """A tensor for each expert; a group with a gap is left out."""
    for (part, ending), by_expert in groups.items():
        if sorted(by_expert) == list(range(len(by_expert))):
            ranges = tuple(ByteRange(by_expert[e].file, by_expert[e].offset, by_expert[e].bytes)
                           for e in range(len(by_expert)))
            yield ExpertTensor(f"blk.{layer}.ffn_{part}.*.{ending}", part, len(ranges), ranges[0], ranges)
