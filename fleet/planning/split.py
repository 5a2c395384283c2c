"""How llama.cpp deals layers to devices, and shares that make it deal them as we want.

The rule is the one of `llama_model::load_tensors` (llama.cpp b10068 to b11434, src/llama-model.cpp): float32,
`n + 1` layers of which the last is the output layer, each going to the first device whose cumulative share is
greater than its own position. Shares that are whole layer counts therefore give exactly those counts: position and
cumulative share are then the same quotients, so rounding cannot move a layer.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

CPU = -1                     # in a layer map: the head's own processor
MOST_DEVICES = 15            # llama-server rejects a 16th value of -ts, and asserts at 16 RPC devices


def _float32(value: float) -> float:
    return struct.unpack("<f", struct.pack("<f", value))[0]


def layer_map(n_layers: int, tensor_split: Sequence[float], gpu_layers: int) -> tuple[int, ...]:
    """The device index of layers 0 .. n_layers, the last being the output layer; `CPU` for the head's processor.

    `tensor_split` has one value a device, in the order of `--device`; missing ones are zero there and here.
    """
    start = max(n_layers + 1 - gpu_layers, 0)
    active = min(gpu_layers, n_layers + 1)
    total = _float32(sum(tensor_split))
    if not tensor_split or total <= 0 or active <= 0:
        return (CPU,) * (n_layers + 1)
    sums = [_float32(_float32(part) / total) for part in accumulate(tensor_split)]
    dealt = []
    for layer in range(n_layers + 1):
        if layer < start or layer - start >= active:
            dealt.append(CPU)
        else:
            dealt.append(min(bisect_right(sums, _float32((layer - start) / active)), len(sums) - 1))
    return tuple(dealt)


def layers_by_weight(n_layers: int, weights: Sequence[float]) -> tuple[int, ...]:
    """Whole layer counts (output layer included) in proportion to `weights`, by largest remainder.

    They sum to n_layers + 1. A device with no weight gets none; ties go to the earlier device.

    Raises:
        ValueError: a weight is negative, or none is positive.
    """
    if any(weight < 0 for weight in weights) or not any(weights):
        raise ValueError("weights must be zero or more, and one of them more")
    total = sum(weights)
    exact = [(n_layers + 1) * weight / total for weight in weights]
    counts = [int(share) for share in exact]
    sharers = [i for i, weight in enumerate(weights) if weight > 0]
    by_remainder = sorted(sharers, key=lambda i: (counts[i] - exact[i], i))
    for i in by_remainder[: n_layers + 1 - sum(counts)]:
        counts[i] += 1
    return tuple(counts)


def fractions(weights: Sequence[float]) -> tuple[float, ...]:
    """`weights` scaled to sum to one."""
    total = sum(weights)
    return tuple(weight / total for weight in weights)
