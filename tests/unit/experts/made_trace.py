"""Routing traces made for tests: hot experts, and a part of every token's experts shared with the token before."""

from __future__ import annotations

import random
import struct
from itertools import accumulate

from fleet.experts.trace import Routed, Trace


def made(layers: int = 4, experts: int = 32, used: int = 4, tokens: int = 300, overlap: float = 0.4,
         seed: int = 1) -> Trace:
    """A trace of decoding alone."""
    dice = random.Random(seed)
    hot = [list(accumulate(dice.paretovariate(1.2) for _ in range(experts))) for _ in range(layers)]
    before = [dice.sample(range(experts), used) for _ in range(layers)]
    passes = []
    for _ in range(tokens):
        for layer in range(layers):
            chosen = dict.fromkeys(expert for expert in before[layer] if dice.random() < overlap)
            while len(chosen) < used:
                chosen[dice.choices(range(experts), cum_weights=hot[layer])[0]] = None
            before[layer] = list(chosen)
            passes.append(Routed(layer, (tuple(chosen),)))
    return Trace(layers, experts, 1, tuple(passes))


def stored(trace: Trace) -> bytes:
    """The bytes of the shim's file."""
    head = struct.pack("=8s4IQ", b"QDMOETRC", 1, trace.layers, trace.experts, trace.decode_rows, 0)
    return head + b"".join(struct.pack(f"=HHI{sum(map(len, one.rows))}H", one.layer, len(one.rows[0]), len(one.rows),
                                       *(expert for row in one.rows for expert in row)) for one in trace.passes)
