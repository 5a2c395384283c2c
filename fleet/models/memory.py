"""How much memory a model takes, by layer and device, for a context, slots and types of the cache. Pure; bytes.

Weights are those of the file. The cache is what llama.cpp allocates, cell by cell (src/llama-kv-cache.cpp,
llama-kv-cache-iswa.cpp, llama-memory-recurrent.cpp, b11434); both are exact. What is computed with is an estimate.

A draft model is a model: the same functions with its header and its own `Ask`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fleet.errors import PlanRefused
from fleet.models.attention import Kind, LayerKind, attention_of
from fleet.models.gguf import GgufHeader

PADDING = 256                  # cells: llama.cpp rounds every context up to it (llama_context, PR 17046)
BATCH = 2048                   # tokens: llama-server's default of -b

KV_TYPES = {                   # (values, bytes) of a block, from ggml-common.h
    "f32": (1, 4), "f16": (1, 2), "bf16": (1, 2), "q8_0": (32, 34), "q4_0": (32, 18), "q4_1": (32, 20),
    "q5_0": (32, 22), "q5_1": (32, 24), "iq4_nl": (32, 18),
}


@dataclass(frozen=True, slots=True)
class Ask:
    """What a model is to be run with, in llama-server's words."""

    context: int               # tokens of all slots together: -c
    slots: int = 1             # -np
    type_k: str = "f16"        # -ctk
    type_v: str = "f16"        # -ctv
    flash_attention: bool = True   # -fa
    unified: bool = True       # -kvu: one cache for all slots, else one a slot
    swa_full: bool = False     # --swa-full
    ubatch: int = 512          # -ub: tokens of one pass

    def __post_init__(self) -> None:
        """Refuse what llama-server would refuse.

        Raises:
            PlanRefused: no such type, a quantised V without flash attention, no context or slots.
        """
        for flag, name in (("-ctk", self.type_k), ("-ctv", self.type_v)):
            if name not in KV_TYPES:
                raise PlanRefused(f"{name[:40]!r} is no type of the cache ({flag}).",
                                  f"Take one of {', '.join(KV_TYPES)}.")
        if not self.flash_attention and KV_TYPES[self.type_v][0] > 1:
            raise PlanRefused(f"The cache cannot hold V as {self.type_v} without flash attention.",
                              "Turn flash attention on, or keep V as f16.")
        if self.context < 1 or self.slots < 1 or self.ubatch < 1:
            raise PlanRefused("Context, slots and tokens of a pass have to be 1 or more.", "Give a larger number.")

    @property
    def streams(self) -> int:
        """Caches that stand side by side."""
        return 1 if self.unified else self.slots

    @property
    def cells(self) -> int:
        """Tokens that one stream holds."""
        return _padded(_padded(self.context) // self.streams)

    @property
    def pass_tokens(self) -> int:
        """Tokens of the largest pass."""
        return min(self.ubatch, BATCH, self.context)

    def window_cells(self, window: int) -> int:
        """Tokens that one stream of a windowed layer holds."""
        if self.swa_full:
            return self.cells
        sequences = self.slots if self.unified else 1
        return _padded(min(self.cells, window * sequences + self.pass_tokens))


def _padded(tokens: int) -> int:
    return -(-tokens // PADDING) * PADDING


def row_bytes(kv_type: str, values: int) -> int:
    """Bytes of so many values of a type of the cache; a started block counts whole."""
    block, size = KV_TYPES[kv_type]
    return -(-values // block) * size


def weight_bytes(header: GgufHeader, layer: int) -> int:
    """Bytes of a layer's tensors; the layer after the last is the output layer (a tied embedding is loaded again)."""
    return header.layer_bytes[layer] if layer < header.n_layers else header.output_bytes


def kv_bytes(header: GgufHeader, ask: Ask, layer: int) -> int:
    """Bytes that a layer keeps between tokens, for all slots: keys, values and states."""
    by_layer = kv_by_layer(header, ask)
    return by_layer[layer] if layer < len(by_layer) else 0


def kv_by_layer(header: GgufHeader, ask: Ask) -> tuple[int, ...]:
    """`kv_bytes` of every layer; the last is the output layer, which keeps nothing."""
    kinds = attention_of(header)
    # Without flash attention V is stored transposed, and then as wide in every layer as in the widest.
    widest = max((kind.value_width for kind in kinds), default=0)
    return (*(_kept(kind, ask, kind.value_width if ask.flash_attention else widest) for kind in kinds), 0)


def _kept(kind: LayerKind, ask: Ask, value_width: int) -> int:
    kept = kind.state_bytes * ask.slots
    if kind.kind in (Kind.FULL, Kind.SLIDING):
        cells = ask.cells if kind.kind is Kind.FULL else ask.window_cells(kind.window)
        values = row_bytes(ask.type_v, value_width) if kind.value_length else 0
        kept += (row_bytes(ask.type_k, kind.key_width) + values) * cells * ask.streams
    return kept


def compute_bytes(header: GgufHeader, ask: Ask, layers: Sequence[int]) -> int:
    """Bytes that one device computes with, if it holds those layers (n_layers among them: the output layer)."""
    if not layers:
        return 0
    kinds, tokens = attention_of(header), ask.pass_tokens
    mine = [kinds[layer] for layer in layers if layer < len(kinds)]
    width = 4 * tokens * (header.number("{arch}.embedding_length") or 0)
    feed = 4 * tokens * max(header.numbers("{arch}.feed_forward_length"), default=0)
    masks = max((4 * tokens * ask.cells for kind in mine if kind.kind is not Kind.NONE), default=0)
    scores = 0 if ask.flash_attention else max((4 * tokens * ask.cells * kind.heads for kind in mine), default=0)
    logits = 4 * (header.n_vocab or 0) * ask.slots if header.n_layers in layers else 0
    return 3 * width + 2 * feed + masks + scores + logits


def host_bytes(header: GgufHeader, ask: Ask) -> int:
    """Bytes that the head's main memory needs besides its layers: the input embedding and the logits of each slot."""
    return header.input_bytes + 4 * (header.n_vocab or 0) * ask.slots
