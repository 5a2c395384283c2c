"""One model as text: what it is, layer by layer, and where it lies. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from textwrap import wrap

from app.output import table
from app.present.units import size
from fleet.models.attention import Kind, LayerKind, attention_of, doubt
from fleet.models.experts import Experts, experts_of
from fleet.models.facts import ModelFacts, facts_of
from fleet.models.gguf import GgufHeader
from fleet.text import visible

WIDTH = 80
LABEL = 14
LAYERS = 20           # columns
SHORTEST_STRIDE = 4   # layers that have to be equally far apart before it is said like that
LONGEST = 200          # characters of what a file says of itself


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that are alike."""

    layers: tuple[int, ...]
    bytes: int                     # of each
    attention: str                 # "full", "sliding 512", "state"
    types: tuple[str, ...]         # of their tensors, the one with the most bytes first


@dataclass(frozen=True)
class ModelDetail:
    """A header and what follows from it."""

    header: GgufHeader
    facts: ModelFacts
    kinds: tuple[LayerKind, ...]
    experts: Experts | None
    groups: tuple[LayerGroup, ...]
    doubt: str                     # a sentence, when the architecture is not known


def detail_of(header: GgufHeader) -> ModelDetail:
    """Everything that a header tells."""
    kinds = attention_of(header)
    return ModelDetail(header, facts_of(header), kinds, experts_of(header), tuple(layer_groups(header, kinds)),
                       doubt(header))


def layer_groups(header: GgufHeader, kinds: Sequence[LayerKind]) -> list[LayerGroup]:
    """Equal layers together, in the order of the first of each kind."""
    by_type: list[dict[str, int]] = [{} for _ in range(header.n_layers)]
    for tensor in header.tensors:
        if tensor.layer is not None and tensor.layer < len(by_type) and len(tensor.shape) > 1:
            sums = by_type[tensor.layer]
            sums[tensor.type] = sums.get(tensor.type, 0) + tensor.bytes
    groups: dict[tuple[int, str, tuple[str, ...]], list[int]] = {}
    for layer, count in enumerate(header.layer_bytes):
        types = tuple(sorted(by_type[layer], key=lambda name: (-by_type[layer][name], name)))
        attention = attention_words(kinds[layer]) if layer < len(kinds) else ""
        groups.setdefault((count, attention, types), []).append(layer)
    return [LayerGroup(tuple(layers), *key) for key, layers in groups.items()]


def attention_words(kind: LayerKind) -> str:
    """What a layer keeps of the past."""
    words = {Kind.FULL: "full", Kind.SLIDING: f"sliding {kind.window}", Kind.RECURRENT: "state",
             Kind.NONE: "none"}[kind.kind]
    return f"{words} + state" if kind.state_bytes and kind.kind in (Kind.FULL, Kind.SLIDING) else words


def ranges(numbers: Iterable[int]) -> str:
    """ "0-3, 6, 8-9", "0-78 even", "5-29 every 6th" of ascending numbers."""
    left, runs = list(numbers), []
    while left:
        step = left[1] - left[0] if len(left) > 1 else 1
        length = next((n for n in range(1, len(left)) if left[n] - left[n - 1] != step), len(left))
        if step > 1 and length < SHORTEST_STRIDE:
            step = length = 1
        runs.append(str(left[0]) if length == 1 else f"{left[0]}-{left[length - 1]}{_stride(left[0], step)}")
        del left[:length]
    return ", ".join(runs)


def _stride(first: int, step: int) -> str:
    if step == 1:
        return ""
    if step == 2:
        return " odd" if first % 2 else " even"
    return f" every {step}{'rd' if step == 3 else 'th'}" if step < 20 else f" by {step}"


def parameters(count: int) -> str:
    """ "268 M", "70.6 B"."""
    for unit, name in ((10 ** 12, "T"), (10 ** 9, "B"), (10 ** 6, "M"), (10 ** 3, "K")):
        if count >= unit:
            value = count / unit
            return f"{value:.0f} {name}" if value >= 100 else f"{value:.1f} {name}"
    return str(count)


def tokens(count: int) -> str:
    """ "131,072"."""
    return f"{count:,}"


def detail_lines(title: str, detail: ModelDetail) -> list[str]:
    """What a person reads of a model, in 80 columns."""
    lines = [visible(title, limit=WIDTH)]
    for label, text in _facts(detail):
        if text:
            wrapped = wrap(visible(text, limit=LONGEST), WIDTH - LABEL - 2, break_on_hyphens=False)
            lines += [f"  {label if first else '':<{LABEL}}{line}" for first, line in
                      zip((True, *(False,) * len(wrapped)), wrapped, strict=False)]
    return [*lines, "", *layer_table(detail)]


def _facts(detail: ModelDetail) -> Iterable[tuple[str, str]]:
    header, facts = detail.header, detail.facts
    yield "name", facts.name
    yield "architecture", facts.architecture or "not told"
    files = f" in {header.split_count} files" if header.split_count > 1 else ""
    yield "size", f"{size(header.file_size)}{files}"
    if header.missing_bytes:
        yield "incomplete", f"{size(header.missing_bytes)} of it are missing: fetch it again"
    yield "quantisation", facts.quantisation
    active = f", {parameters(facts.active_parameters)} of them for a token"
    yield "parameters", parameters(facts.parameters) + (active if facts.active_parameters < facts.parameters else "")
    yield "context", f"{tokens(facts.context_length)} tokens" if facts.context_length else ""
    yield "layers", str(facts.n_layers) + (f", the last {facts.draft_layers} of them draft layers (MTP)"
                                           if facts.draft_layers else "")
    yield "attention", _attention(detail.kinds)
    yield "", detail.doubt
    yield "experts", _experts(detail)
    tied = ", the same matrix as the embedding: loaded twice where these are apart" if header.tied_output else ""
    yield "output layer", f"{size(header.output_bytes)}{tied}" if header.n_layers else ""
    yield "vocabulary", (f"{tokens(facts.n_vocab)} tokens" if facts.n_vocab else "none") + (
        f", fingerprint {facts.tokenizer_fingerprint[:16]}" if facts.tokenizer_fingerprint else "")
    yield "chat template", "yes" if facts.chat_template else "none: a base model, or a chat model made without"
    yield "fingerprint", header.fingerprint


def _attention(kinds: Sequence[LayerKind]) -> str:
    counts: dict[str, int] = {}
    for kind in kinds:
        counts[attention_words(kind)] = counts.get(attention_words(kind), 0) + 1
    parts = [words if len(counts) == 1 else f"{count} x {words}" for words, count in counts.items()]
    heads = sorted({kind.kv_heads for kind in kinds if kind.key_width})
    if heads:
        widest = max(kind.key_length for kind in kinds)
        many = str(heads[0]) if len(heads) == 1 else f"{heads[0]} to {heads[-1]}"
        parts.append(f"{many} KV {'head' if heads == [1] else 'heads'} of {widest}")
    return ", ".join(parts)


def _experts(detail: ModelDetail) -> str:
    facts, experts = detail.facts, detail.experts
    if not facts.experts:
        return ""
    words = f"{facts.experts} a layer, {facts.experts_used or 'an unknown number'} of them for a token"
    words += f", {facts.shared_experts} shared" if facts.shared_experts else ""
    return words + (f"; {size(experts.expert_bytes)} each, {size(experts.token_bytes)} for a token, "
                    f"{size(experts.bytes)} in all" if experts else "")


def layer_table(detail: ModelDetail) -> list[str]:
    """Sizes: the embedding, layers that are alike together, the output layer."""
    header = detail.header
    rows = [("embedding", size(header.input_bytes), "", "", "")]
    for group in detail.groups:
        first, *more = wrap(ranges(group.layers), LAYERS) or [""]
        count = len(group.layers)
        rows.append((first, size(group.bytes), size(group.bytes * count) if count > 1 else "", group.attention,
                     _types(group.types)))
        rows += [(line, "", "", "", "") for line in more]
    if header.n_layers:
        rows.append(("output", size(header.output_bytes), "", "", ""))
    return table(("LAYERS", "EACH", "TOGETHER", "ATTENTION", "TYPES"), rows, right=frozenset({1, 2}), indent="  ")


def _types(names: Sequence[str]) -> str:
    return ", ".join(names[:2]) + (" ..." if len(names) > 2 else "")
