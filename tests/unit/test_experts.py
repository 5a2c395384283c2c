"""Where experts lie in a file."""

from __future__ import annotations

import asyncio
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_gguf import Maker, number, string

from fleet.models.experts import ByteRange, experts_of
from fleet.models.facts import facts_of
from fleet.models.gguf import GgufHeader, combined, read_header

EXPERTS, FF, EMBD = 8, 32, 64


def header_of(made: Maker) -> GgufHeader:
    data = made.bytes()

    async def read(offset: int, length: int) -> bytes:
        return data[offset:offset + length]

    return asyncio.run(read_header(read, len(data)))


def mixture(layers: int = 2, *, used: int = 2, shared: int = 0, dense: int = 0) -> Maker:
    made = Maker(string("general.architecture", "qwen3moe"), number("qwen3moe.block_count", layers),
                 number("qwen3moe.expert_count", EXPERTS), number("qwen3moe.expert_used_count", used),
                 *([number("qwen3moe.expert_shared_count", shared)] if shared else []))
    made.tensor("token_embd.weight", (EMBD, 32))
    for layer in range(layers):
        block = f"blk.{layer}."
        made.tensor(f"{block}attn_q.weight", (EMBD, EMBD)).tensor(f"{block}ffn_gate_inp.weight", (EMBD, EXPERTS))
        if layer < dense:
            made.tensor(f"{block}ffn_up.weight", (EMBD, FF))
            continue
        made.tensor(f"{block}ffn_gate_exps.weight", (EMBD, FF, EXPERTS), "Q8_0")
        made.tensor(f"{block}ffn_up_exps.weight", (EMBD, FF, EXPERTS), "Q8_0")
        made.tensor(f"{block}ffn_down_exps.weight", (FF, EMBD, EXPERTS), "F16")
        if shared:
            made.tensor(f"{block}ffn_up_shexp.weight", (EMBD, FF))
    return made


def test_a_fused_tensor_is_one_slice_after_the_other():
    header = header_of(mixture(dense=1, layers=3))
    experts = experts_of(header)
    assert experts is not None
    assert (experts.count, experts.used, experts.shared, [layer.layer for layer in experts.layers]) == (8, 2, 0, [1, 2])
    gate, down = EMBD * FF // 32 * 34, FF * EMBD * 2
    layer = experts.layers[0]
    assert layer.expert_bytes == experts.expert_bytes == 2 * gate + down
    assert experts.token_bytes == 2 * 2 * layer.expert_bytes and experts.bytes == 2 * 8 * layer.expert_bytes
    tensors = {tensor.name: tensor for tensor in header.tensors}
    start = tensors["blk.1.ffn_down_exps.weight"].offset
    assert layer.ranges(3) == tuple(
        ByteRange(0, tensors[f"blk.1.ffn_{part}_exps.weight"].offset + 3 * size, size)
        for part, size in (("gate", gate), ("up", gate), ("down", down)))
    assert layer.tensors[2].slice(7) == ByteRange(0, start + 7 * down, down)
    with pytest.raises(IndexError):
        layer.ranges(8)


def test_shared_experts_are_told_apart():
    experts = experts_of(header_of(mixture(shared=1)))
    assert experts is not None
    assert experts.shared == 1 and experts.layers[0].shared_bytes == EMBD * FF * 4
    assert all("shexp" not in tensor.name for tensor in experts.layers[0].tensors)


def test_one_tensor_an_expert_is_understood_too():
    made = Maker(string("general.architecture", "llama"), number("llama.block_count", 1),
                 number("llama.expert_count", 4), number("llama.expert_used_count", 2))
    for part in ("gate", "up", "down"):
        for expert in range(4):
            made.tensor(f"blk.0.ffn_{part}.{expert}.weight", (32, 8))
    header = header_of(made)
    experts = experts_of(header)
    assert experts is not None and experts.expert_bytes == 3 * 1024 and experts.count == 4
    assert experts.layers[0].ranges(2)[0] == ByteRange(
        0, next(t.offset for t in header.tensors if t.name == "blk.0.ffn_gate.2.weight"), 1024)


def test_experts_of_later_files_say_which_file():
    def shard(index: int) -> GgufHeader:
        own = [string("general.architecture", "qwen3moe"), number("qwen3moe.block_count", 2),
               number("qwen3moe.expert_count", 8), number("qwen3moe.expert_used_count", 2)] if index == 0 else []
        made = Maker(*own, number("split.no", index), number("split.count", 2))
        return header_of(made.tensor(f"blk.{index}.ffn_gate_exps.weight", (64, 32, 8)))

    experts = experts_of(combined([shard(0), shard(1)]))
    assert experts is not None
    assert [layer.ranges(1)[0].file for layer in experts.layers] == [0, 1]


def test_a_dense_model_has_none():
    header = header_of(Maker(string("general.architecture", "llama")).tensor("blk.0.ffn_up.weight", (8, 8)))
    assert experts_of(header) is None and facts_of(header).experts == 0


def test_a_mixture_counts_what_one_token_passes_through():
    facts = facts_of(header_of(mixture()))
    routed = 2 * 3 * EMBD * FF * EXPERTS
    assert facts.parameters - facts.active_parameters == routed * 6 // 8
    assert (facts.experts, facts.experts_used) == (8, 2)


NAMES = [f"blk.{name}" for name in (
    "0.ffn_gate_exps.weight", "1.ffn_up_exps.bias", "0.ffn_up.0.weight", "0.ffn_up.1.weight", "7.ffn_up.3.weight",
    "0.ffn_down_exps.scale", "0.ffn_up_shexp.weight")]


@given(st.lists(st.tuples(st.sampled_from(NAMES),
                          st.lists(st.integers(1, 2 ** 20), min_size=1, max_size=4)), unique_by=lambda item: item[0]),
       st.integers(0, 2 ** 32 - 1))
def test_no_header_makes_experts_that_cost_memory_or_overlap(tensors, used):
    made = Maker(string("general.architecture", "x"), number("x.expert_used_count", used))
    for name, shape in tensors:
        made.data = 0
        if math.prod(shape) < 2 ** 40:
            made.tensor(name, tuple(shape))
    head = made.head()

    async def read(at: int, length: int) -> bytes:
        return head[at:at + length]

    experts = experts_of(asyncio.run(read_header(read, len(head))))
    if experts is not None:
        assert experts.used <= experts.count and experts.expert_bytes >= 0
        for layer in experts.layers:
            assert len(layer.ranges(layer.count - 1)) == len(layer.tensors)
