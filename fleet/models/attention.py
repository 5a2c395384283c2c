"""What each layer of a model keeps between tokens: attention over all, over a window, a recurrent state, nothing. Pure.

llama.cpp decides this for each architecture in code (`load_arch_hparams` in src/models/<architecture>.cpp, b11434) and
takes from the file only what that code asks for: a window that its architecture does not read is not used. Hence the
table below. An architecture that is not in it gets the generic rule; `doubt` says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from fleet.models.gguf import GgufHeader

MOST_WIDTH = 1 << 24           # values: no real figure of a header is near, and sums stay small enough to print
STATE_BYTES = 4                # recurrent states are f32, whatever -ctk says (llama_model::create_memory)


class Kind(StrEnum):
    """What a layer remembers."""

    FULL = "full"              # every token of the context
    SLIDING = "sliding"        # the last `window` tokens
    RECURRENT = "recurrent"    # a state of one size
    NONE = "none"              # nothing of its own: no attention, another layer's cache, or a draft head at rest


@dataclass(frozen=True, slots=True)
class LayerKind:
    """What one layer keeps.

    A layer with both attention and a state (falcon-h1) is of the kind of its attention and has `state_bytes` too.
    """

    kind: Kind
    heads: int = 0             # of the queries
    kv_heads: int = 0
    key_length: int = 0        # values of one head and token
    value_length: int = 0      # 0 = no V is kept (multi-head latent attention: it is in K)
    window: int = 0            # tokens
    state_bytes: int = 0       # of one sequence

    @property
    def key_width(self) -> int:
        """Values of K that one token adds."""
        return self.kv_heads * self.key_length if self.kind in (Kind.FULL, Kind.SLIDING) else 0

    @property
    def value_width(self) -> int:
        """Values of V that one token adds."""
        return self.kv_heads * self.value_length if self.kind in (Kind.FULL, Kind.SLIDING) else 0


@dataclass(frozen=True, slots=True)
class _Windowed:
    """How an architecture windows its attention, where the file does not say it by layer."""

    period: int                # the last of so many layers attends fully, or the first of them
    dense_first: bool = False
    window: int | None = None  # when the file has none: None = then there is none
    forced: int | None = None  # whatever the file has
    only_layers: int | None = None   # windowed only in the model of so many layers


# load_swa_pattern(ml, period, dense_first) of each architecture, llama.cpp b11434.
_WINDOWED = {
    "afmoe": _Windowed(4), "cohere2": _Windowed(4), "cohere2moe": _Windowed(4, dense_first=True),
    "exaone-moe": _Windowed(4, window=128), "exaone4": _Windowed(4, window=4096, only_layers=64),
    "gemma-embedding": _Windowed(6), "gemma2": _Windowed(2, window=4096), "gemma3": _Windowed(6),
    "gemma3n": _Windowed(5), "gpt-oss": _Windowed(2), "laguna": _Windowed(4, dense_first=True),
    "llama4": _Windowed(4, window=8192, forced=8192), "mellum": _Windowed(4),
    "modern-bert": _Windowed(3, dense_first=True), "muse-glimmer": _Windowed(4), "olmo2": _Windowed(4),
    "plamo3": _Windowed(8), "smallthinker": _Windowed(4, dense_first=True, forced=4096),
}
# These have to have the pattern in the file, a value for each layer.
_BY_LAYER = frozenset({"gemma4", "gemma4-assistant", "granite_swa", "maple", "mimo2", "spark2_5", "step35", "dflash"})
_EVERY_LAYER = frozenset({"lfm2", "lfm2moe"})         # those that attend at all, if the file has a window

# llm_arch_is_recurrent and llm_arch_is_hybrid, src/llama-arch.cpp
_RECURRENT = frozenset({"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"})
_WHERE_NO_KV = frozenset({"jamba", "plamo2", "granitehybrid", "lfm2", "lfm2moe", "kimi-linear", "kimi-k3",
                          "bailingmoe3", "nemotron_h", "nemotron_h_moe"})
_BY_INTERVAL = {"qwen3next": 4, "qwen35": 4, "qwen35moe": 4, "minimax-01": 8}
DELTA = frozenset({"qwen3next", "qwen35", "qwen35moe"})      # their states are those of gated delta nets
_BOTH = frozenset({"falcon-h1"})
_SHARED_FROM = {"gemma3n": 20}                        # layers from this on use an earlier one's cache

# llm_arch_supports_rs_rollback: with a draft head in use a state is kept for each token that may be taken back.
TAKES_BACK = frozenset({"kimi-k3", "qwen35", "qwen35moe", "qwen4exp", "deepseek4", "glm5-next", "nemotron_h",
                        "nemotron_h_moe", "lfm2", "lfm2moe", "bailingmoe3"})
# The cache of these is of a make of their own (an index of keys beside it, compressed, in several windows).
_OWN_CACHE = frozenset({"deepseek32", "deepseek4", "glm-dsa", "glm5-next", "minimax-m3", "hy_v4", "dots3note",
                        "qwen4exp", "kimi-k3", "bailingmoe3", "graniteswitch"})
_NO_CACHE = frozenset({"bert", "jina-bert-v2", "jina-bert-v3", "nomic-bert", "nomic-bert-moe", "neo-bert", "eurobert",
                       "wavtokenizer-dec", "modern-bert", "gemma-embedding", "dream", "llada", "llada-moe", "rnd1",
                       "clef"})
# Architectures that the generic rule was compared with: plain attention in every layer.
_PLAIN = frozenset({
    "llama", "deci", "falcon", "baichuan", "grok", "gpt2", "gptj", "gptneox", "mpt", "starcoder", "refact", "bloom",
    "stablelm", "qwen", "qwen2", "qwen2moe", "qwen2vl", "qwen3", "qwen3moe", "qwen3vl", "qwen3vlmoe", "phi2", "phi3",
    "phimoe", "plamo", "codeshell", "orion", "internlm2", "minicpm", "minicpm3", "gemma", "starcoder2", "xverse",
    "command-r", "dbrx", "olmo", "olmoe", "openelm", "arctic", "deepseek", "deepseek2", "deepseek2-ocr", "chatglm",
    "glm4", "glm4moe", "bitnet", "jais", "jais2", "nemotron", "exaone", "granite", "granitemoe", "chameleon", "plm",
    "bailingmoe", "bailingmoe2", "dots1", "arcee", "ernie4_5", "ernie4_5-moe", "hunyuan-moe", "hunyuan-dense",
    "hunyuan_vl", "smollm3", "seed_oss", "grovemoe", "apertus", "minimax-m2", "cogvlm", "pangu-embedded", "mistral3",
    "mistral4", "paddleocr", "maincoder", "llama-embed"})


def attention_of(header: GgufHeader, *, draft_head: bool = False) -> tuple[LayerKind, ...]:
    """What every layer keeps, in order; as many as the header has layers.

    The layers of a draft head (the last ones of a model with one) keep something only if it is in use.
    """
    n_layers = header.n_layers
    heads = _by_layer(header, "{arch}.attention.head_count", n_layers, 0)
    kv_heads = _by_layer(header, "{arch}.attention.head_count_kv", n_layers, None)
    windows = _windows(header, n_layers)
    recurrent = _recurrent(header, kv_heads if any(count is not None for count in kv_heads) else heads)
    state = _state_bytes(header, heads)
    asleep = n_layers if draft_head else n_layers - min(n_layers, header.number("{arch}.nextn_predict_layers") or 0)
    shared = n_layers - min(n_layers, header.number("{arch}.attention.shared_kv_layers") or 0)
    own = min(asleep, shared, _SHARED_FROM.get(header.architecture, n_layers))
    if header.architecture in _NO_CACHE:
        own = 0
    kinds = []
    for layer in range(n_layers):
        queries = heads[layer] or 0
        mine = kv_heads[layer]
        count = queries if mine is None else mine
        if layer >= own:
            kinds.append(LayerKind(Kind.NONE, heads=queries))
            continue
        if recurrent[layer] and header.architecture not in _BOTH:
            kinds.append(LayerKind(Kind.RECURRENT, state_bytes=state))
            continue
        window = windows[layer]
        keys, values = _lengths(header, heads, windowed=bool(window))
        kind = (Kind.SLIDING if window else Kind.FULL) if count and keys else Kind.NONE
        kinds.append(LayerKind(kind, queries, count, keys, values, window, state if recurrent[layer] else 0))
    return tuple(kinds)


def doubt(header: GgufHeader) -> str:
    """Why the kinds of its layers may be wrong, in a sentence; "" when llama.cpp's rule for it is known here."""
    name = header.architecture
    if name in _OWN_CACHE:
        return (f"llama.cpp keeps a cache of its own make for {name}; what it takes is estimated as if it were "
                "plain attention.")
    known = (_PLAIN | _WINDOWED.keys() | _BY_LAYER | _EVERY_LAYER | _RECURRENT | _WHERE_NO_KV | _BY_INTERVAL.keys()
             | _BOTH | _NO_CACHE)
    if name not in known:
        return (f"The architecture {name[:40]!r} is not known here; its memory is estimated from its header by the "
                "usual rule.")
    return ""


def _bounded(value: int | None) -> int | None:
    return None if value is None else min(value, MOST_WIDTH)


def _by_layer(header: GgufHeader, key: str, n_layers: int, missing: int | None) -> list[int | None]:
    """A figure of every layer, given once or by layer."""
    value = header.metadata.get(key.replace("{arch}", header.architecture))
    if isinstance(value, tuple):
        given = [_bounded(number) if isinstance(number, int) and number >= 0 else missing for number in value]
        return (given + [missing] * n_layers)[:n_layers]
    single = _bounded(header.number(key))
    return [missing if single is None else single] * n_layers


def _lengths(header: GgufHeader, heads: list[int | None], *, windowed: bool) -> tuple[int, int]:
    """Values of a key and of a value of one head (load_hparams, src/llama-model.cpp)."""
    first = heads[0] if heads else 0
    if not first:                    # without heads in the first layer there are none anywhere for llama.cpp
        first = next((count for count in heads if count), 0)
    width = (header.number("{arch}.embedding_length") or 0) // first if first else 0
    keys = _bounded(header.number("{arch}.attention.key_length"))
    values = _bounded(header.number("{arch}.attention.value_length"))
    keys, values = width if keys is None else keys, width if values is None else values
    if windowed:
        narrow = _bounded(header.number("{arch}.attention.key_length_swa"))
        keys = keys if narrow is None else narrow
        narrow = _bounded(header.number("{arch}.attention.value_length_swa"))
        values = values if narrow is None else narrow
    latent = (header.number("{arch}.attention.key_length_mla"), header.number("{arch}.attention.value_length_mla"))
    return keys, 0 if all(latent) else values


def _windows(header: GgufHeader, n_layers: int) -> list[int]:
    """The window of every layer in tokens, 0 where it attends to everything."""
    name = header.architecture
    told = _bounded(header.number("{arch}.attention.sliding_window"))
    rule = _WINDOWED.get(name)
    if name in _PLAIN:               # their code does not read it (phi3 reads and drops it)
        return [0] * n_layers
    if rule is None:
        if not told:
            return [0] * n_layers
        if name in _EVERY_LAYER:
            return [told] * n_layers
        pattern = _pattern(header, n_layers)
        return [told if is_windowed else 0 for is_windowed in pattern] if pattern else [0] * n_layers
    if rule.only_layers not in (None, n_layers):
        return [0] * n_layers
    window = rule.window if told is None else told
    if not window:
        return [0] * n_layers
    window = rule.forced or window
    pattern = _pattern(header, n_layers, rule.period, rule.dense_first)
    return [window if is_windowed else 0 for is_windowed in pattern]


def _pattern(header: GgufHeader, n_layers: int, period: int | None = None, dense_first: bool = False) -> list[bool]:
    """Which layers are windowed (load_swa_pattern, set_swa_pattern); [] when nothing says it."""
    value = header.metadata.get(f"{header.architecture}.attention.sliding_window_pattern")
    if isinstance(value, tuple):
        return ([bool(entry) for entry in value] + [False] * n_layers)[:n_layers]
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        period = value
    if period is None:
        return []
    if period == 0:
        return [True] * n_layers
    return [layer % period != 0 if dense_first else layer % period < period - 1 for layer in range(n_layers)]


def _recurrent(header: GgufHeader, kv_heads: list[int | None]) -> list[bool]:
    """Which layers keep a state."""
    name, n_layers = header.architecture, header.n_layers
    if name in _RECURRENT or name in _BOTH:
        return [True] * n_layers
    if name in _WHERE_NO_KV:
        widths = _by_layer(header, "{arch}.feed_forward_length", n_layers, 0)
        narrow = name.startswith("nemotron_h")      # its layers are one thing each: attention, state or feed-forward
        return [count == 0 and not (narrow and width) for count, width in zip(kv_heads, widths, strict=True)]
    interval = _BY_INTERVAL.get(name)
    told = header.metadata.get(f"{name}.attention.recurrent_layers")
    if isinstance(told, tuple):
        return ([bool(entry) for entry in told] + [False] * n_layers)[:n_layers]
    if interval is not None:
        every = header.number("{arch}.full_attention_interval") or interval
        trunk = n_layers - (header.number("{arch}.nextn_predict_layers") or 0)    # a draft head attends
        return [layer < trunk and (layer + 1) % every != 0 for layer in range(n_layers)]
    if header.number("{arch}.ssm.state_size") and header.number("{arch}.ssm.inner_size"):
        return [count == 0 for count in kv_heads]   # an architecture that is not known here
    return [False] * n_layers


def _state_bytes(header: GgufHeader, heads: Iterable[int | None]) -> int:
    """Bytes of one layer's state of one sequence (n_embd_r and n_embd_s, src/llama-hparams.cpp)."""
    def figure(key: str) -> int:
        return _bounded(header.number("{arch}." + key)) or 0

    width, count = figure("embedding_length"), next((number for number in heads if number), 0)
    convolution = max(0, figure("ssm.conv_kernel") - 1)
    if size := figure("wkv.head_size"):
        shifts = header.number("{arch}.token_shift_count")
        return STATE_BYTES * ((2 if shifts is None else min(shifts, 16)) * width + width * size)
    if length := figure("shortconv.l_cache"):
        return STATE_BYTES * width * (length - 1)
    if size := figure("kda.head_dim"):
        return STATE_BYTES * (3 * (convolution or 3) * count * size + size * size * count)
    if header.architecture == "minimax-01":         # linear attention: a square of each head's width
        return STATE_BYTES * _lengths(header, [count], windowed=False)[0] ** 2 * count
    inner, state = figure("ssm.inner_size"), figure("ssm.state_size")
    return STATE_BYTES * (convolution * (inner + 2 * figure("ssm.group_count") * state) + inner * state)
