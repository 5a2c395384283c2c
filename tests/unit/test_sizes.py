"""A model as the solver takes it: what is remembered of one range of layers is never given for another."""

from __future__ import annotations

import random

import pytest

from fleet.models.gguf import GgufHeader, TensorInfo
from fleet.models.memory import Ask, compute_bytes
from fleet.planning.sizes import ModelSizes

BASE = {"m.embedding_length": 256, "m.attention.head_count": 8, "m.attention.key_length": 32,
        "m.attention.value_length": 32, "m.attention.head_count_kv": 4, "m.context_length": 4096}
STATE = {"m.ssm.inner_size": 2048, "m.ssm.state_size": 16, "m.ssm.conv_kernel": 4, "m.ssm.group_count": 1,
         "m.ssm.time_step_rank": 8}


def header(architecture: str, n_layers: int, **more: object) -> GgufHeader:
    keys = {key.replace("m.", f"{architecture}.", 1): value for key, value in {**BASE, **more}.items()}
    names = [*(f"blk.{n}.attn_q.weight" for n in range(n_layers)), "output.weight"]
    return GgufHeader(3, {"general.architecture": architecture, f"{architecture}.block_count": n_layers,
                          f"{architecture}.vocab_size": 1000, **keys}, {},
                      tuple(TensorInfo(name, (256, 256), "F16", 0, 131072) for name in names), 0, 1 << 20)


MODELS = {
    "alike": header("llama", 9, **{"m.feed_forward_length": 4096}),
    "wide_at_places": header("llama", 9, **{"m.feed_forward_length": [512, 4096, 512, 9000, 512, 512, 4096, 512, 512]}),
    "attends_at_places": header("granitehybrid", 9, **STATE, **{
        "m.feed_forward_length": 9000, "m.attention.head_count_kv": [0, 0, 4, 0, 0, 0, 4, 0, 0]}),
    "windowed": header("gemma3", 9, **{"m.feed_forward_length": 9000, "m.attention.sliding_window": 512}),
}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("flash_attention", [True, False])
def test_every_range_computes_with_what_it_alone_would(model: str, flash_attention: bool):
    """In any order: which ranges were asked for before must not matter."""
    ask, n_layers = Ask(4096, flash_attention=flash_attention), MODELS[model].n_layers
    compute = ModelSizes(MODELS[model]).compute(ask)
    ranges = [(first, last) for first in range(n_layers + 1) for last in range(first + 1, n_layers + 2)]
    random.Random(3).shuffle(ranges)
    assert {r: compute(*r) for r in ranges} == {r: compute_bytes(MODELS[model], ask, range(*r)) for r in ranges}
