"""How much memory a model takes, by layer and device, for a context, slots and types of the cache. Pure; bytes.

Weights are those of the file. The cache is what llama.cpp allocates, cell by cell (src/llama-kv-cache.cpp,
llama-kv-cache-iswa.cpp, llama-memory-recurrent.cpp, b11434); both are exact. What is computed with is an estimate.

A draft model is a model: the same functions with its header and its own `Ask` (the target's has `drafted`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fleet.errors import PlanRefused
from fleet.models.attention import DELTA, MOST_WIDTH, TAKES_BACK, Kind, LayerKind, attention_of
from fleet.models.gguf import GgufHeader

PADDING = 256                  # cells: llama.cpp rounds every context up to it (llama_context, PR 17046)
BATCH = 2048                   # tokens: llama-server's default of -b
FLOAT = 4                      # bytes: what is computed with is f32

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
    drafted: int = 0           # --spec-draft-n-max, where drafts are verified; 0 = no speculation
    draft_head: bool = False   # --spec-type draft-mtp: the model's own layers for it are in use

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
        if self.context < 1 or self.slots < 1 or self.ubatch < 1 or self.drafted < 0:
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

    @property
    def rows(self) -> int:
        """Tokens of one pass whose logits are wanted (common_speculative_get_output_limits)."""
        return min(BATCH, self.slots * (1 + self.drafted))

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
    kinds = attention_of(header, draft_head=ask.draft_head)
    states = ask.slots * (1 + ask.drafted if ask.draft_head and header.architecture in TAKES_BACK else 1)
    # Without flash attention V is stored transposed, and then as wide in every layer as in the widest.
    widest = max((kind.value_width for kind in kinds), default=0)
    return (*(_kept(kind, ask, kind.value_width if ask.flash_attention else widest, states) for kind in kinds), 0)


def _kept(kind: LayerKind, ask: Ask, value_width: int, states: int) -> int:
    kept = kind.state_bytes * states
    if kind.kind in (Kind.FULL, Kind.SLIDING):
        cells = ask.cells if kind.kind is Kind.FULL else ask.window_cells(kind.window)
        values = row_bytes(ask.type_v, value_width) if kind.value_length else 0
        kept += (row_bytes(ask.type_k, kind.key_width) + values) * cells * ask.streams
    return kept


def output_bytes(header: GgufHeader, ask: Ask) -> int:
    """Bytes of the head's buffer of logits (llama_context::output_reserve).

    At the start it has a row a slot; with speculation it grows to this when the first drafts are verified.
    """
    return FLOAT * (header.n_vocab or 0) * ask.rows


def host_bytes(header: GgufHeader, ask: Ask, layers: Sequence[int] = ()) -> int:
    """Bytes that the head's main memory needs besides the weights and the cache of the layers that it holds itself.

    That is the input embedding, the logits and what its processor computes with: the masks and the embedded tokens
    even when every layer is elsewhere. A head that keeps a tied output layer itself maps its embedding once:
    `weight_bytes` of the output layer is then none to add.

    Args:
        header: of the model.
        ask: what it runs with.
        layers: of the head's own processor, n_layers among them for the output layer; none = all elsewhere.
    """
    width = _activation(header, ask, header.number("{arch}.embedding_length"))
    idle = _inputs(header, ask, attention_of(header)) + 2 * width
    computing = compute_bytes(header, ask, layers) + width if layers else 0
    return header.input_bytes + output_bytes(header, ask) + max(idle, computing)


def compute_bytes(header: GgufHeader, ask: Ask, layers: Sequence[int]) -> int:
    """Bytes of one device's compute buffer, if it holds those layers (n_layers among them: the output layer).

    An estimate of the most that stands at once in the graph of a full prompt pass: the masks, and on top of them
    attention (without flash attention its scores), the feed-forward part, a state's update or the logits, whichever
    is widest. The counts of widths were fitted to what llama.cpp b10068 logs (`tests/bench/memory.py`: within 32 MiB or
    5 % for every load). What a GPU's driver and its library of matrices take besides is no part of it.
    """
    if not layers:
        return 0
    kinds, feeds = attention_of(header), _feeds(header, ask)
    mine = sorted(layer for layer in set(layers) if layer < len(kinds))
    inputs = _inputs(header, ask, [kinds[layer] for layer in mine])
    attending = max((layer for layer in mine if kinds[layer].key_width), default=-1)
    most = output_bytes(header, ask) if header.n_layers in layers else 0
    for layer in mine:
        most = max(most, inputs + _remembering(header, ask, kinds[layer]))
        # Of the last layer only the rows that are sampled go on behind attention, and the masks are free for other
        # use once no layer of the device needs them.
        feed = feeds[layer] if layer < len(kinds) - 1 else feeds[layer] * ask.rows // ask.pass_tokens
        most = max(most, feed + (inputs if layer < attending else 0))
    return most


def layer_shapes(header: GgufHeader, ask: Ask) -> tuple[int, ...]:
    """A number for each layer, equal for those that compute alike: by attention or state, and by feed-forward part.

    The last layer computes like no other: only the rows that are sampled go on behind its attention.
    """
    numbers: dict[tuple[LayerKind, int], int] = {}
    pairs = list(zip(attention_of(header), _feeds(header, ask), strict=True))
    return (*(numbers.setdefault(pair, len(numbers)) for pair in pairs[:-1]), *([-1] if pairs else []))


def projector_bytes(header: GgufHeader, *, flash_attention: bool = True) -> int:
    """Bytes that a projector for pictures (mmproj) takes where it runs: weights, and what one picture computes with.

    Fitted to SigLIP as gemma3 has it (b10068: exact for three sizes). A projector that takes pictures of any size
    computes with more for those larger than the one that its header names.
    """
    def figure(key: str) -> int:
        return min(header.number("clip.vision." + key) or 0, MOST_WIDTH)

    patches = (figure("image_size") // max(1, figure("patch_size"))) ** 2
    width, feed = FLOAT * patches * figure("embedding_length"), FLOAT * patches * figure("feed_forward_length")
    scores = 0 if flash_attention else FLOAT * patches * patches * figure("attention.head_count")
    return header.tensor_bytes + max(feed + 3 * width, scores + 6 * width)


def _activation(header: GgufHeader, ask: Ask, values: int | None) -> int:
    """Bytes of so many values for each token of a pass."""
    return FLOAT * ask.pass_tokens * min(values or 0, MOST_WIDTH)


def _inputs(header: GgufHeader, ask: Ask, kinds: Sequence[LayerKind]) -> int:
    """Bytes of what a graph is given: a mask for each kind of cache, where V goes, further embeddings."""
    size = 0
    windows = {kind.window for kind in kinds if kind.key_width}
    for window in windows:
        cells = ask.window_cells(window) if window else ask.cells
        size += ask.pass_tokens * cells * (2 if ask.flash_attention else FLOAT)
        if not ask.flash_attention:      # V is stored transposed, value by value: an index of 8 bytes for each
            size += 8 * ask.pass_tokens * max(kind.value_width for kind in kinds)
    beside = header.number("{arch}.embedding_length_per_layer_input")    # gemma3n, gemma4
    return size + (_activation(header, ask, beside * header.n_layers) if beside and kinds else 0)


def _remembering(header: GgufHeader, ask: Ask, kind: LayerKind) -> int:
    """Bytes at the widest place of attention or of a state's update."""
    width = _activation(header, ask, header.number("{arch}.embedding_length"))
    most = 0
    if kind.key_width:
        queries = _activation(header, ask, kind.heads * kind.key_length)
        gated = header.architecture in DELTA                     # a gate as wide as the queries stays beside them
        most = 2 * width + (3 if gated else 2) * queries
        if not kind.value_length:        # latent: the queries within the latent space twice, and joined with the rest
            latent = _activation(header, ask, kind.heads * (header.number("{arch}.attention.kv_lora_rank") or 0))
            most = max(most, queries + 2 * latent)
        if not ask.flash_attention:
            cells = ask.window_cells(kind.window) if kind.kind is Kind.SLIDING else ask.cells
            most += FLOAT * ask.pass_tokens * kind.heads * cells
    if kind.state_bytes:
        inner = header.number("{arch}.ssm.inner_size") or 0
        mixed = 2 * (header.number("{arch}.ssm.group_count") or 0) * (header.number("{arch}.ssm.state_size") or 0)
        # Mamba: the projection (gate and input), the convolution's input and output, the step and the result. Delta
        # nets: the projection, the convolution's input and output, the gate. Without an inner size (rwkv, short
        # convolutions) ten rows of the model's width.
        mamba, delta = 2 * inner + mixed + 2 * (inner + mixed) + 2 * inner, 3 * (inner + mixed) + inner
        values = delta if header.architecture in DELTA else mamba
        update = _activation(header, ask, values) + 2 * kind.state_bytes * ask.slots if inner else 10 * width
        most = max(most, update)
    return most


def _feeds(header: GgufHeader, ask: Ask) -> list[int]:
    """Bytes at the widest place of each layer's feed-forward part: dense, or of the experts that a token uses."""
    n_layers = header.n_layers
    width = _activation(header, ask, header.number("{arch}.embedding_length"))
    told = header.numbers("{arch}.feed_forward_length")
    dense = [3 * _activation(header, ask, feed) + 3 * width for feed in told[:n_layers]]
    dense += [3 * width] * (n_layers - len(dense))
    used = min(header.number("{arch}.expert_used_count") or 0, MOST_WIDTH)
    if not header.number("{arch}.expert_count") or not used:
        return dense
    wide = max(header.numbers("{arch}.expert_feed_forward_length") or told or (0,))
    inside, outside = used * _activation(header, ask, wide), used * width
    # Gate, up and their product stand side by side; what comes out of the experts goes where gate and up were, if it
    # is no wider than both.
    routed = 3 * inside + (outside if outside > 2 * inside else 0) + 4 * width
    leading = header.number("{arch}.leading_dense_block_count") or 0
    return [dense[layer] if layer < leading else routed for layer in range(n_layers)]
