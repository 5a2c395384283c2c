"""What a person wants to know of a model, from its header."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from fleet.models.experts import experts_of
from fleet.models.header import GgufHeader
from fleet.models.tensor_types import file_types
from fleet.models.tokenizer import tokenizer_fingerprint

GUESSED = 1024          # a bit of general.file_type: written by a tool that was not told
_DRAFT_ONLY = ("eagle3", "dflash")    # architectures of b10068 that are nothing but a draft head


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """One model in short."""

    architecture: str
    name: str                      # its maker's; "" = none given
    size_label: str                # its maker's: "270M", "128x2.4B"
    quantisation: str              # "Q4_K - Medium"; "mostly Q4_K" where the file does not say
    parameters: int
    active_parameters: int         # that one token passes through: fewer in a mixture of experts
    n_layers: int                  # blocks, draft layers among them
    n_embd: int | None
    n_vocab: int | None
    context_length: int | None     # tokens that it was trained for
    experts: int                   # routed, a layer; 0 = dense
    experts_used: int              # of them for each token
    shared_experts: int
    draft_layers: int              # of the blocks the last so many: they guess further tokens (MTP)
    has_draft_head: bool           # such blocks are in the file, or it is nothing but a draft head
    tokenizer_fingerprint: str     # hex, "" = it has no vocabulary; `fleet.models.tokenizer` says what equal means
    chat_template: bool


def facts_of(header: GgufHeader) -> ModelFacts:
    """The facts of a header; of several shards, of the combined one."""
    parameters = sum(math.prod(tensor.shape) for tensor in header.tensors)
    experts = experts_of(header)
    told, used = header.number("{arch}.expert_count"), header.number("{arch}.expert_used_count") or 0
    count = told or (experts.count if experts else 0)
    draft_layers = header.number("{arch}.nextn_predict_layers") or 0
    in_file = any(".nextn." in tensor.name for tensor in header.tensors)
    return ModelFacts(
        header.architecture, header.name, header.text("general.size_label"), quantisation_of(header), parameters,
        _active(header, parameters), header.n_layers, header.number("{arch}.embedding_length"), header.n_vocab,
        header.context_length, count, min(used, count), experts.shared if experts else 0,
        min(draft_layers, header.n_layers) if in_file else 0,
        in_file or header.architecture in _DRAFT_ONLY, tokenizer_fingerprint(header), header.has_chat_template)


def quantisation_of(header: GgufHeader) -> str:
    """How the weights are stored, as llama.cpp writes it; by the bytes of the tensors where the file does not tell."""
    told = header.number("general.file_type")
    if told is not None and (name := file_types().get(told & ~GUESSED)):
        return name
    by_type: Counter[str] = Counter()
    for tensor in header.tensors:
        if len(tensor.shape) > 1:
            by_type[tensor.type] += tensor.bytes
    return f"mostly {by_type.most_common(1)[0][0]}" if by_type else ""


def _active(header: GgufHeader, parameters: int) -> int:
    """Parameters without the experts that a token does not use."""
    used, count = header.number("{arch}.expert_used_count") or 0, header.number("{arch}.expert_count") or 0
    if not 0 < used < count:
        return parameters
    routed = sum(math.prod(tensor.shape) for tensor in header.tensors if "_exps." in tensor.name)
    return parameters - routed + routed * used // count
