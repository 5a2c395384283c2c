"""Flags for the wire: which are chosen for which link, model and build, and that every one says what it gives up."""

from __future__ import annotations

import re

import pytest

from fleet.model import Link
from fleet.models.gguf import GgufHeader
from fleet.models.header import TensorInfo
from fleet.planning.wire import remembers_sizes, wire_flags
from fleet.runtimes.binaries import Flags

HELP = """
-fa,   --flash-attn [on|off|auto]       set Flash Attention use
-ot,   --override-tensor <tensor name pattern>=<buffer type>,...
-ctxcp, --ctx-checkpoints, --swa-checkpoints N
                                        max number of context checkpoints
--swa-full                              use full-size SWA cache
-cram, --cache-ram N                    set the maximum cache size
"""
OLD = Flags.parse(HELP)
NEW = Flags.parse(HELP + "-lm, --load-mode MODE                   how to load\n")
NEAR, FAR = Link(0.0002, 110e6), Link(0.010, 40e6)


def model(architecture: str = "gemma3", *, tied: bool = True, vocabulary: int = 262_144, **more: object) -> GgufHeader:
    metadata = {"general.architecture": architecture, f"{architecture}.block_count": 12,
                f"{architecture}.attention.head_count": 4, f"{architecture}.attention.head_count_kv": 1,
                f"{architecture}.embedding_length": 640, f"{architecture}.attention.sliding_window": 512,
                **{f"{architecture}.{key}": value for key, value in more.items()}}
    names = ["token_embd.weight", *([] if tied else ["output.weight"])]
    return GgufHeader(3, metadata, {"tokenizer.ggml.tokens": vocabulary},
                      tuple(TensorInfo(name, (1,), "f32", 0, 100) for name in names))


def test_a_head_without_workers_gets_no_flags():
    assert wire_flags(model(), [], OLD).argv == ()


def test_a_slow_link_to_a_windowed_model_gets_all_of_them_each_with_its_reason():
    choice = wire_flags(model(), [FAR], OLD, context=4096)
    assert choice.argv == ("-ctxcp", "0", "--swa-full", "-ot", r"^token_embd\.weight$=CPU", "-fa", "off")
    assert choice.output_on_head
    assert len(choice.reasons) == 3 and all("." in reason for reason in choice.reasons)


def test_on_a_cable_checkpoints_and_flash_attention_stay():
    argv = wire_flags(model(), [NEAR], OLD, context=4096).argv
    assert "-ctxcp" not in argv and "-fa" not in argv and "-ot" in argv


def test_checkpoints_are_never_switched_off_without_the_full_window():
    for flags, room in ((Flags.parse(HELP.replace("--swa-full", "--no-such")), True), (OLD, False)):
        argv = wire_flags(model(), [FAR], flags, context=4096, room_for_full_window=room).argv
        assert "-ctxcp" not in argv and "--swa-full" not in argv


def test_flash_attention_is_never_switched_off_while_checkpoints_are_made():
    argv = wire_flags(model(), [FAR], OLD, context=4096, room_for_full_window=False).argv
    assert "-fa" not in argv


def test_a_model_without_a_window_makes_no_checkpoints():
    argv = wire_flags(model("llama"), [FAR], OLD, context=4096).argv
    assert "-ctxcp" not in argv and argv[-2:] == ("-fa", "off")


def test_a_recurrent_model_keeps_its_checkpoints():
    argv = wire_flags(model("mamba", **{"ssm.conv_kernel": 4, "ssm.inner_size": 64, "ssm.state_size": 16,
                                        "ssm.time_step_rank": 4}), [FAR], OLD, context=4096).argv
    assert "-ctxcp" not in argv and "-fa" not in argv


@pytest.mark.parametrize("more", [
    {"kv_type_v": "q8_0"}, {"given": ("-ctv", "q4_0")}, {"flash_attention": "on"}, {"given": ("-fa", "on")},
    {"context": 8192}, {"context": None}])
def test_flash_attention_stays_where_it_is_needed_or_was_asked_for(more):
    assert "-fa" not in wire_flags(model(), [FAR], OLD, **{"context": 4096, **more}).argv


def test_a_build_that_remembers_allocation_sizes_keeps_flash_attention():
    assert remembers_sizes(NEW) and not remembers_sizes(OLD)
    assert "-fa" not in wire_flags(model(), [FAR], NEW, context=4096).argv


def test_what_the_user_decides_is_left_to_them():
    given = ("-ot", "blk.0.*=CPU", "--ctx-checkpoints", "8")
    argv = wire_flags(model(), [FAR], OLD, given=given, context=4096).argv
    assert argv == ()


def test_the_output_pattern_means_one_tensor_and_no_layers():
    argv = wire_flags(model(tied=False), [FAR], OLD, output_on_head=True).argv
    pattern = argv[argv.index("-ot") + 1].removesuffix("=CPU")
    assert re.search(pattern, "output.weight")
    assert not re.search(pattern, "blk.0.attn_output.weight")


def test_the_output_follows_the_planner_or_else_what_the_link_makes_of_it():
    assert "-ot" not in wire_flags(model(), [FAR], OLD, output_on_head=False).argv
    assert "-ot" in wire_flags(model(), [Link(0.01, 0)], OLD, output_on_head=True).argv
    assert "-ot" not in wire_flags(model(vocabulary=1000), [FAR], OLD).argv


def test_a_build_without_these_flags_gets_none():
    assert wire_flags(model(), [FAR], Flags(), context=4096).argv == ()
