"""Memory by layer: what must hold for every model, and the figures of known ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import PlanRefused
from fleet.models.attention import Kind, attention_of, doubt
from fleet.models.gguf import GgufHeader, TensorInfo
from fleet.models.memory import (
    KV_TYPES,
    Ask,
    compute_bytes,
    host_bytes,
    kv_by_layer,
    kv_bytes,
    output_bytes,
    projector_bytes,
    row_bytes,
    weight_bytes,
)

MIB = 1024 * 1024


def header(architecture: str = "llama", *, layers: int = 4, tensors: tuple[TensorInfo, ...] = (),
           **figures: object) -> GgufHeader:
    """A header of those figures; `__` in a name stands for the dot in a key."""
    told = {"block_count": layers, "embedding_length": 1024, "attention.head_count": 16, "attention.head_count_kv": 4,
            "feed_forward_length": 4096, "vocab_size": 32_000}
    told |= {name.replace("__", "."): value for name, value in figures.items()}
    metadata = {f"{architecture}.{key}": value for key, value in told.items() if value is not None}
    return GgufHeader(3, {"general.architecture": architecture, **metadata}, {}, tensors)


def kinds(made: GgufHeader) -> str:
    """A letter a layer: Full, Sliding, Recurrent, - for none."""
    return "".join("-" if layer.kind is Kind.NONE else layer.kind.name[0] for layer in attention_of(made))


# ---------------------------------------------------------------------------------------------
# Kinds


@pytest.mark.parametrize(("architecture", "figures", "expected"), [
    ("llama", {}, "FFFFFFFF"),
    ("llama", {"attention__sliding_window": 512}, "FFFFFFFF"),         # its code does not read it
    ("phi3", {"attention__sliding_window": 512}, "FFFFFFFF"),          # reads it and drops it
    ("gemma3", {"attention__sliding_window": 512}, "SSSSSFSS"),
    ("gemma3", {}, "FFFFFFFF"),
    ("gemma2", {}, "SFSFSFSF"),
    ("cohere2", {"attention__sliding_window": 512}, "SSSFSSSF"),
    ("cohere2moe", {"attention__sliding_window": 512}, "FSSSFSSS"),
    ("gpt-oss", {"attention__sliding_window": 128}, "SFSFSFSF"),
    ("llama4", {}, "SSSFSSSF"),
    ("llama4", {"attention__sliding_window": 0}, "FFFFFFFF"),
    ("smallthinker", {"attention__sliding_window": 100}, "FSSSFSSS"),
    ("exaone4", {"attention__sliding_window": 100}, "FFFFFFFF"),       # only the one of 64 layers
    ("plamo3", {"attention__sliding_window": 100}, "SSSSSSSF"),
    ("gemma3", {"attention__sliding_window": 9, "attention__sliding_window_pattern": 2}, "SFSFSFSF"),
    ("gemma3", {"attention__sliding_window": 9, "attention__sliding_window_pattern": 1}, "FFFFFFFF"),
    ("gemma3", {"attention__sliding_window": 9, "attention__sliding_window_pattern": 0}, "SSSSSSSS"),
    ("mimo2", {"attention__sliding_window": 9, "attention__sliding_window_pattern": (True, False) * 4}, "SFSFSFSF"),
    ("gpt-oss", {"attention__sliding_window": 9, "attention__sliding_window_pattern": (1, 0)}, "SFFFFFFF"),
    ("deci", {"attention__head_count_kv": (4, 0, 4, 0, 4, 4, 4, 4)}, "F-F-FFFF"),
    ("mamba", {"attention__head_count": 0, "attention__head_count_kv": 0}, "RRRRRRRR"),
    ("rwkv7", {"attention__head_count": 0, "attention__head_count_kv": 0}, "RRRRRRRR"),
    ("jamba", {"attention__head_count_kv": (0, 0, 0, 8, 0, 0, 0, 0)}, "RRRFRRRR"),
    ("qwen3next", {}, "RRRFRRRF"),
    ("qwen3next", {"full_attention_interval": 2}, "RFRFRFRF"),
    ("qwen35", {"attention__recurrent_layers": (True, True, False) * 2 + (False, True)}, "RRFRRFFR"),
    ("nemotron_h", {"attention__head_count_kv": (0, 0, 4, 0, 0, 0, 4, 0),
                    "feed_forward_length": (0, 9, 0, 9, 0, 9, 0, 9)}, "R-F-R-F-"),
    ("falcon-h1", {}, "FFFFFFFF"),
    ("lfm2", {"attention__head_count_kv": (0, 0, 4, 0, 0, 4, 0, 0), "attention__sliding_window": 64}, "RRSRRSRR"),
    ("gemma4", {"attention__sliding_window": 9, "attention__sliding_window_pattern": (True, True, True, False) * 2,
                "attention__shared_kv_layers": 4}, "SSSF----"),
    ("glm4moe", {"nextn_predict_layers": 1}, "FFFFFFF-"),
    ("bert", {}, "--------"),
])
def test_layers_are_of_the_kind_that_the_architecture_makes_them(architecture: str, figures: dict[str, object],
                                                                 expected: str) -> None:
    assert kinds(header(architecture, layers=8, **figures)) == expected


def test_a_model_that_shares_its_cache_has_one_for_its_first_layers_only() -> None:
    assert kinds(header("gemma3n", layers=30, attention__sliding_window=512)) == "SSSSF" * 4 + "-" * 10


def test_windowed_layers_may_have_heads_of_another_width() -> None:
    made = header("gemma4", attention__sliding_window=9, attention__sliding_window_pattern=(True, False, True, False),
                  attention__key_length=512, attention__value_length=512, attention__key_length_swa=256,
                  attention__value_length_swa=128)
    assert [(layer.key_width, layer.value_width) for layer in attention_of(made)] == [(1024, 512), (2048, 2048)] * 2


def test_latent_attention_keeps_keys_alone() -> None:
    made = header("deepseek2", attention__head_count_kv=1, attention__key_length=576, attention__value_length=512,
                  attention__key_length_mla=192, attention__value_length_mla=128)
    assert kv_bytes(made, Ask(4096), 0) == 576 * 2 * 4096


def test_a_layer_with_attention_and_a_state_keeps_both() -> None:
    made = header("falcon-h1", ssm__conv_kernel=4, ssm__inner_size=1024, ssm__state_size=128, ssm__group_count=1)
    state = 4 * (3 * (1024 + 256) + 1024 * 128)
    assert attention_of(made)[0].state_bytes == state
    assert kv_bytes(made, Ask(512, 2, unified=False), 0) == 2 * state + 512 * 2 * 2 * 4 * 64


@pytest.mark.parametrize(("architecture", "figures", "values"), [
    ("mamba", {"ssm__conv_kernel": 4, "ssm__inner_size": 2048, "ssm__state_size": 16}, 3 * 2048 + 2048 * 16),
    ("rwkv6", {"wkv__head_size": 64}, 2 * 1024 + 1024 * 64),
    ("rwkv7", {"wkv__head_size": 64, "token_shift_count": 1}, 1024 + 1024 * 64),
    ("lfm2", {"shortconv__l_cache": 3, "attention__head_count_kv": 0}, 1024 * 2),
    ("kimi-linear", {"kda__head_dim": 128, "ssm__conv_kernel": 4, "attention__head_count_kv": 0},
     3 * 3 * 16 * 128 + 128 * 128 * 16),
    ("minimax-01", {"attention__key_length": 64}, 64 * 64 * 16),
])
def test_states_have_the_size_of_their_formula(architecture: str, figures: dict[str, object], values: int) -> None:
    layer = attention_of(header(architecture, **figures))[0]
    assert (layer.kind, layer.state_bytes) == (Kind.RECURRENT, 4 * values)


def test_what_is_not_known_is_said() -> None:
    assert doubt(header("llama")) == doubt(header("gemma3")) == doubt(header("mamba2")) == ""
    assert "not known here" in doubt(header("brand-new"))
    assert "of its own make" in doubt(header("deepseek32"))
    assert kinds(header("brand-new")) == "FFFF"
    assert kinds(header("brand-new", attention__sliding_window=64, attention__sliding_window_pattern=2)) == "SFSF"


@given(st.dictionaries(
    st.sampled_from(["attention.head_count", "attention.head_count_kv", "attention.key_length", "block_count",
                     "attention.sliding_window", "attention.sliding_window_pattern", "ssm.state_size", "ssm.inner_size",
                     "wkv.head_size", "token_shift_count", "nextn_predict_layers", "full_attention_interval",
                     "attention.shared_kv_layers", "embedding_length", "expert_count", "expert_used_count",
                     "feed_forward_length", "expert_feed_forward_length", "attention.recurrent_layers"]),
    st.one_of(st.integers(-2, 1 << 63), st.text(max_size=3), st.booleans(), st.floats(),
              st.lists(st.one_of(st.integers(-1, 1 << 40), st.booleans(), st.text(max_size=2)), max_size=9)
              .map(tuple)), max_size=12),
    st.sampled_from(["llama", "gemma3", "jamba", "qwen3next", "mamba", "rwkv6", "nemotron_h", "gemma4", "odd", "lfm2"]))
def test_a_hostile_header_gives_figures_and_no_crash(figures: dict[str, object], architecture: str) -> None:
    figures["block_count"] = min(n, 64) if isinstance(n := figures.get("block_count"), int) and n > 0 else 3
    made = GgufHeader(3, {"general.architecture": architecture,
                          **{f"{architecture}.{key}": value for key, value in figures.items()}})
    layers = range(made.n_layers + 1)
    assert len(attention_of(made)) == made.n_layers
    for ask in (Ask(4096), Ask(4096, 3, flash_attention=False, unified=False)):
        assert all(size >= 0 for size in kv_by_layer(made, ask))
        assert 0 <= compute_bytes(made, ask, layers) <= host_bytes(made, ask, layers)


# ---------------------------------------------------------------------------------------------
# The cache

MODELS = [
    header(),
    header("gemma3", layers=8, attention__sliding_window=512),
    header("gpt-oss", attention__sliding_window=128),
    header("jamba", attention__head_count_kv=(0, 0, 8, 0), ssm__conv_kernel=4, ssm__inner_size=2048,
           ssm__state_size=16),
    header("mamba", attention__head_count=0, ssm__conv_kernel=4, ssm__inner_size=2048, ssm__state_size=16),
    header("qwen3moe", expert_count=8, expert_used_count=2, expert_feed_forward_length=512),
]
models = st.sampled_from(MODELS)
contexts = st.integers(1, 1 << 18)
asks = st.builds(Ask, contexts, st.integers(1, 8), st.sampled_from(sorted(KV_TYPES)), st.just("f16"), st.booleans(),
                 st.booleans(), st.booleans(), st.sampled_from([64, 256, 512, 2048]))


@given(models, asks, contexts)
def test_more_context_never_takes_less(made: GgufHeader, ask: Ask, context: int) -> None:
    less, more = (replace(ask, context=tokens) for tokens in sorted((ask.context, context)))
    layers = range(made.n_layers + 1)
    assert sum(kv_by_layer(made, less)) <= sum(kv_by_layer(made, more))
    assert compute_bytes(made, less, layers) <= compute_bytes(made, more, layers)
    assert host_bytes(made, less) <= host_bytes(made, more)


@given(models, asks)
def test_layers_sum_to_the_whole(made: GgufHeader, ask: Ask) -> None:
    by_layer = kv_by_layer(made, ask)
    assert len(by_layer) == made.n_layers + 1
    assert by_layer[-1] == 0
    assert [kv_bytes(made, ask, layer) for layer in range(made.n_layers + 1)] == list(by_layer)


@given(models, asks, st.data())
def test_a_device_computes_with_no_more_than_the_one_that_holds_all(made: GgufHeader, ask: Ask,
                                                                    data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, made.n_layers + 1))
    whole = compute_bytes(made, ask, range(made.n_layers + 1))
    for part in (range(cut), range(cut, made.n_layers + 1)):
        assert 0 <= compute_bytes(made, ask, part) <= whole
    assert compute_bytes(made, ask, ()) == 0


@given(models, asks)
def test_types_below_f16_take_less_and_f32_twice_as_much(made: GgufHeader, ask: Ask) -> None:
    def taken(name: str) -> int:
        ours = replace(ask, type_k=name, type_v=name, flash_attention=True)
        states = sum(layer.state_bytes for layer in attention_of(made)) * ask.slots
        return sum(kv_by_layer(made, ours)) - states

    assert taken("f32") == 2 * taken("f16") == 2 * taken("bf16")
    for name in ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"):
        assert taken(name) < taken("f16") or not taken("f16")
    assert taken("q4_0") == taken("iq4_nl") <= taken("q4_1") <= taken("q5_1") <= taken("q8_0")


@given(models, asks)
def test_a_full_sliding_cache_is_never_smaller(made: GgufHeader, ask: Ask) -> None:
    whole = replace(ask, swa_full=True)
    # A windowed cache is rounded up by itself, so at most by one step beyond the full one.
    assert all(full >= some for full, some in zip(kv_by_layer(made, whole), kv_by_layer(made, ask), strict=True))


@pytest.mark.parametrize(("name", "size"), [("f32", 1024), ("f16", 512), ("bf16", 512), ("q8_0", 272), ("q4_0", 144),
                                            ("q4_1", 160), ("q5_0", 176), ("q5_1", 192), ("iq4_nl", 144)])
def test_blocks_of_the_cache_have_their_exact_size(name: str, size: int) -> None:
    assert row_bytes(name, 256) == size


@pytest.mark.parametrize(("ask", "cells"), [
    (Ask(1), 256), (Ask(4096), 4096), (Ask(4097), 4352), (Ask(4096, 4, unified=False), 1024),
    (Ask(1000, 3, unified=False), 512), (Ask(4096, 4), 4096)])
def test_contexts_are_rounded_as_llama_cpp_rounds_them(ask: Ask, cells: int) -> None:
    assert ask.cells == cells


@pytest.mark.parametrize(("ask", "cells"), [
    (Ask(4096), 1024), (Ask(512), 512), (Ask(4096, 4), 2560), (Ask(4096, 4, unified=False), 1024),
    (Ask(32768, ubatch=256), 768), (Ask(32768, swa_full=True), 32768)])
def test_a_window_holds_itself_and_one_pass(ask: Ask, cells: int) -> None:
    assert ask.window_cells(512) == cells


def test_without_flash_attention_values_are_as_wide_in_every_layer_as_in_the_widest() -> None:
    made = header("deci", attention__head_count_kv=(4, 8, 0, 4))
    flat = kv_by_layer(made, Ask(256, flash_attention=False))
    assert flat[0] == 256 * 2 * (4 * 64 + 8 * 64)
    assert flat[1] == 256 * 2 * (8 * 64 + 8 * 64)


@pytest.mark.parametrize(("figures", "words"), [
    ({"type_k": "q9"}, "no type"), ({"type_v": "q8_0", "flash_attention": False}, "without flash attention"),
    ({"slots": 0}, "1 or more"), ({"context": 0}, "1 or more")])
def test_what_llama_server_would_refuse_is_refused(figures: dict[str, object], words: str) -> None:
    with pytest.raises(PlanRefused, match=words):
        Ask(**{"context": 4096, **figures})


# ---------------------------------------------------------------------------------------------
# Weights, and what is computed with


def test_weights_are_those_of_the_file_and_a_tied_output_counts_again() -> None:
    tied = header(layers=1, tensors=(TensorInfo("token_embd.weight", (64, 10), "F16", 0, 1280),
                                     TensorInfo("blk.0.attn_q.weight", (64, 64), "F16", 1280, 8192),
                                     TensorInfo("output_norm.weight", (64,), "F32", 9472, 256)))
    assert [weight_bytes(tied, layer) for layer in range(2)] == [8192, 1280 + 256]
    assert host_bytes(tied, Ask(256)) > tied.input_bytes == 1280


def test_logits_are_a_row_a_slot() -> None:
    assert output_bytes(header(), Ask(512, 3)) == 3 * 4 * 32_000


def test_drafts_that_are_verified_want_a_row_of_logits_each() -> None:
    # gemma-3-270m with -np 4 and 15 drafted: 64 rows, a compute buffer of 65.4 MiB (b10068)
    made = header("gemma3", attention__sliding_window=512, vocab_size=262_144)
    assert output_bytes(made, Ask(4096, 4, drafted=15)) == 64 * MIB
    assert compute_bytes(made, Ask(4096, 4, drafted=15), range(5)) == 64 * MIB


def test_a_draft_head_in_use_keeps_a_cache_and_states_to_go_back_to() -> None:
    made = header("qwen35", layers=5, nextn_predict_layers=1, ssm__conv_kernel=4, ssm__inner_size=1024,
                  ssm__state_size=128, ssm__group_count=1)
    asleep, used = (kv_by_layer(made, Ask(4096, drafted=3, draft_head=on)) for on in (False, True))
    assert kinds(made) == "RRRF-"
    assert used[:3] == tuple(4 * size for size in asleep[:3])
    assert asleep[4] == 0
    assert used[4] == used[3] == asleep[3]


def test_scores_are_kept_without_flash_attention_alone() -> None:
    made, layers = header(), range(5)
    without, with_it = (compute_bytes(made, Ask(32_768, flash_attention=on), layers) for on in (False, True))
    assert without - with_it > 16 * 512 * 32_768 * 4


def test_a_projector_takes_its_weights_and_more() -> None:
    made = header("clip", layers=0, tensors=(TensorInfo("v.patch_embd.weight", (64,), "F32", 0, 4096),),
                  vision__image_size=896, vision__patch_size=14, vision__embedding_length=1152,
                  vision__feed_forward_length=4304, vision__attention__head_count=16)
    assert projector_bytes(made) - 4096 == int(121.25 * MIB)                             # both measured, b10068
    assert projector_bytes(made, flash_attention=False) - 4096 == 1132 * MIB
    assert projector_bytes(header("clip", layers=0)) == 0
