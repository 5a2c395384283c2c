"""How often experts are asked for, from the counts of an imatrix file: what to expect before there is any trace. Pure.

llama-imatrix writes how often each expert was in use (`blk.3.ffn_gate_exps.weight.counts`, one 32-bit float each), and
many who publish GGUF files publish theirs. Measured against live decoding: ranks agree by 0.92 to 0.95 (Spearman), and
the hottest by these counts hit .36, .55, .77, .88 where those of the live trace hit .35, .54, .76, .87.

Counts know nothing of time: that a token shares experts with the one before. So an LRU is predicted too low by them, by
the approximation of Che, Tung, Wang: Hierarchical Web caching systems, 2002: an expert asked for p times a token is
found with chance 1 - exp(-p * T), T being the tokens for which those chances just fill the room. Measured: .20, .37,
.63, .80, .91 where LRU hits .27, .57, .78, .86, .92.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fleet.errors import ModelFileError
from fleet.experts.simulate import pinned
from fleet.models.experts import MOST_EXPERTS, Experts
from fleet.models.header import GgufHeader

SOURCE = "counts of an imatrix file"
_COUNTS = re.compile(r"blk\.(\d{1,6})\.ffn_(?:gate_up|gate|up|down)_exps\.weight\.counts")
_TOO_LARGE = 3.4e38


@dataclass(frozen=True, slots=True)
class Popularity:
    """The part of a layer's requests that goes to each of its experts, by layer; each adds up to 1."""

    layers: Mapping[int, tuple[float, ...]]

    def weights(self, experts: Experts) -> dict[int, float]:
        """Requests a token, by key (layer * experts + expert).

        Raises:
            ModelFileError: the counts are another model's.
        """
        counts = {layer.layer: layer.count for layer in experts.layers}
        if {layer: len(parts) for layer, parts in self.layers.items()} != counts:
            raise ModelFileError("The imatrix file is of another model: its layers or experts are not these.",
                                 "Give the one that was made for this model.")
        used = experts.used or 1
        return {layer * experts.count + expert: min(1.0, used * part)
                for layer, parts in self.layers.items() for expert, part in enumerate(parts)}


def popularity_of(header: GgufHeader, read: Callable[[int, int], bytes]) -> Popularity:
    """The counts of an imatrix file in GGUF form.

    Args:
        read: gives bytes of the file by offset and length.

    Raises:
        ModelFileError: it has none, or they make no sense.
    """
    layers: dict[int, tuple[float, ...]] = {}
    for tensor in header.tensors:
        match = _COUNTS.fullmatch(tensor.name)
        if match is None or int(match[1]) in layers:
            continue
        count = math.prod(tensor.shape)
        if tensor.type != "F32" or not 0 < count <= MOST_EXPERTS or tensor.bytes != 4 * count:
            raise _nonsense(tensor.name)
        data = read(tensor.offset, tensor.bytes)
        if len(data) != tensor.bytes:
            raise _nonsense(tensor.name)
        values = struct.unpack(f"<{count}f", data)
        total = math.fsum(value for value in values if 0 <= value < _TOO_LARGE)
        if not all(0 <= value < _TOO_LARGE for value in values) or total <= 0:
            raise _nonsense(tensor.name)
        layers[int(match[1])] = tuple(value / total for value in values)
    if not layers:
        raise ModelFileError("The file has no counts of experts: it is no imatrix of a mixture of experts.",
                             "llama-imatrix writes them, in its GGUF form (not `.dat`).")
    return Popularity(layers)


def pinned_hit_rate(weights: Mapping[int, float], sizes: Mapping[int, int], experts: int, room: int) -> float:
    """Of the hottest experts that fit into a room, kept for good."""
    kept, total = pinned(weights, sizes, experts, room), math.fsum(weights.values())
    return math.fsum(weights[key] for key in kept) / total if total else 0.0


def lru_hit_rate(weights: Mapping[int, float], sizes: Mapping[int, int], experts: int, room: int) -> float:
    """Of LRU at the least: by chance, without a memory of the token before. 0 below one token cycle."""
    asked = [(weight, sizes[key // experts]) for key, weight in weights.items() if weight > 0]
    total = math.fsum(weight for weight, _ in asked)
    if not asked or room < sum(weight * size for weight, size in asked):
        return 0.0
    if room >= sum(size for _, size in asked):
        return 1.0
    low, high = 0.0, 1.0

    def filled(tokens: float) -> float:
        return math.fsum(size * -math.expm1(-weight * tokens) for weight, size in asked)

    while filled(high) < room and high < 1e12:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if filled(middle) < room else (low, middle)
    return math.fsum(weight * -math.expm1(-weight * low) for weight, _ in asked) / total


def _nonsense(name: str) -> ModelFileError:
    return ModelFileError(f"{name} of the imatrix file makes no sense.", "Make it again with llama-imatrix.")
