"""What a head's log tells: real logs of b10068, older forms, damaged and hostile ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.model import PlacementState, Share
from fleet.runtimes.head_lines import FaultKind, Lines, body, buffer_of
from fleet.runtimes.head_log import HeadLog, LoadPhase, judge_placement, real_shares

DATA = Path(__file__).parents[1] / "data/server"
MIB = 1024 * 1024
ONE, TWO = "127.0.0.1:31951", "127.0.0.1:31952"
NODES = {ONE: "atlas", TWO: "bolt"}


def text_of(name: str) -> str:
    return (DATA / name).read_text()


def log_of(text: str) -> HeadLog:
    log = HeadLog()
    log.feed(text)
    return log


def mib(shares: tuple[Share, ...]) -> list[tuple[str, str, float, float, float]]:
    return [
        (
            s.node,
            s.device,
            round((s.model_bytes or 0) / MIB, 2),
            round((s.kv_bytes or 0) / MIB, 2),
            round((s.compute_bytes or 0) / MIB, 2),
        )
        for s in shares
    ]


def test_a_split_over_two_workers_is_read_by_their_addresses():
    """The second worker's device is RPC1, and logs as RPC0[its address]."""
    log = log_of(text_of("b10068_two.log"))
    assert mib(real_shares(log, NODES, "head")) == [
        ("atlas", "RPC0", 25.15, 14.0, 20.52),
        ("bolt", "RPC1", 210.01, 22.0, 20.52),
        ("head", "CPU", 170.0, 0.0, 6.52),
    ]
    assert (log.phase, log.progress, log.url) == (LoadPhase.READY, 1.0, "http://127.0.0.1:31955")
    assert (log.n_layers, log.context, log.offloaded) == (18, 2048, (19, 19))
    assert log.model_path == "/models/gemma-3-270m-q4_k_m.gguf"
    assert round((log.file_bytes or 0) / MIB, 2) == 235.16
    assert log.faults == ()


def test_layers_that_stay_on_the_head_are_its_main_memory_mapped_and_repacked():
    shares = real_shares(log_of(text_of("b10068_part.log")), NODES, "head")
    assert mib(shares)[-1] == ("head", "CPU", round(202.39 + 6.68, 2), 18.0, 21.77)


def test_a_log_in_single_characters_tells_the_same():
    whole, pieces = log_of(text_of("b10068_two.log")), HeadLog()
    for character in text_of("b10068_two.log"):
        pieces.feed(character)
    assert pieces.buffers == whole.buffers and pieces.phase is whole.phase


def test_a_log_that_starts_midway_still_tells_where_things_are():
    text = text_of("b10068_two.log")
    shares = real_shares(log_of(text[text.index("offloaded 19/19") + 5 :]), NODES, "head")
    assert [(s.node, s.model_bytes and s.model_bytes // MIB) for s in shares] == [
        ("atlas", 25),
        ("bolt", 210),
        ("head", 170),
    ]
    assert judge_placement(PLANNED, shares).state is PlacementState.MATCHES


def test_progress_only_grows_while_a_log_grows():
    log, last, phases = HeadLog(), 0.0, []
    for line in text_of("b10068_one.log").splitlines(keepends=True):
        log.feed(line)
        assert log.progress >= last
        last = log.progress
        if log.phase not in phases:
            phases.append(log.phase)
    assert phases == list(LoadPhase)


def moving() -> HeadLog:
    text = text_of("b10068_two.log")
    return log_of(text[: text.index("llama_context: constructing")])


def test_progress_while_weights_move_is_what_arrived_at_the_workers():
    log = moving()
    assert log.phase is LoadPhase.MOVING
    before = log.progress
    log.note_arrived({ONE: 25 * MIB, TWO: 93 * MIB})
    half = log.progress
    assert before < half < 0.7
    log.note_arrived({ONE: 25 * MIB, TWO: 500 * MIB})  # a tensor in flight is counted twice by the node
    assert half < log.progress <= 0.92
    full = log.progress
    log.note_arrived({TWO: 10})
    assert log.progress == full
    log.note_arrived({"elsewhere:1": 5})
    assert log.progress == full


def test_the_dots_of_older_builds_are_progress():
    log = log_of("llm_load_tensors: ggml ctx size =    0.27 MiB\nllm_load_tensors: offloaded 33/33 layers to GPU\n")
    before = log.progress
    for _ in range(50):
        log.feed(".")
    assert before < log.progress < 0.6
    log.feed("." * 50 + "\n")


def test_older_lines_without_prefix_are_read():
    log = log_of(
        "llm_load_print_meta: n_layer          = 32\n"
        "llm_load_print_meta: model size       = 3.83 GiB (4.54 BPW)\n"
        "llm_load_tensors: offloading 32 repeating layers to GPU\n"
        "llm_load_tensors:        CPU buffer size =    70.31 MiB\n"
        "llm_load_tensors:      CUDA0 buffer size =  3847.55 MiB\n"
        "llama_new_context_with_model: n_ctx      = 4096\n"
        "llama_kv_cache_init:      CUDA0 KV buffer size =   512.00 MiB\n"
        "llama_new_context_with_model:      CUDA0 compute buffer size =   296.00 MiB\n"
        "llama_new_context_with_model:  CUDA_Host compute buffer size =    16.01 MiB\n"
        "main: model loaded\n"
        "main: server is listening on http://127.0.0.1:8080 - starting the main loop\n"
    )
    assert mib(real_shares(log, {}, "head")) == [
        ("head", "CUDA0", 3847.55, 512.0, 296.0),
        ("head", "CPU", 70.31, 0.0, 16.01),
    ]
    assert (log.n_layers, log.context, log.url) == (32, 4096, "http://127.0.0.1:8080")
    assert log.phase is LoadPhase.READY


def test_several_devices_of_one_worker_are_told_apart():
    log = log_of(
        "llama_prepare_model_devices: using device RPC0 (h:1) (unknown id) - 8000 MiB free\n"
        "llama_prepare_model_devices: using device RPC1 (h:2) (unknown id) - 8000 MiB free\n"
        "llama_prepare_model_devices: using device RPC2 (h:2) (unknown id) - 8000 MiB free\n"
        "llama_prepare_model_devices: using device CUDA0 (NVIDIA GeForce RTX 3090) (0000:01:00.0) - 23800 MiB free\n"
        "load_tensors: RPC0[h:1] model buffer size =     1.00 MiB\n"
        "load_tensors: RPC0[h:2] model buffer size =     2.00 MiB\n"
        "load_tensors: RPC1[h:2] model buffer size =     3.00 MiB\n"
        "load_tensors: CUDA0 model buffer size =     4.00 MiB\n"
    )
    assert [(s.node, s.device, s.endpoint) for s in real_shares(log, {"h:1": "a", "h:2": "b"}, "c")] == [
        ("a", "RPC0", "h:1"),
        ("b", "RPC1", "h:2"),
        ("b", "RPC2", "h:2"),
        ("c", "CUDA0", ""),
    ]


def test_layers_are_counted_where_the_log_assigns_them():
    log = log_of(
        "".join(
            f"0.00.381.797 D load_tensors: layer  {n:2} assigned to device RPC{n // 7}, is_swa = 1\n" for n in range(10)
        )
    )
    assert (log.layers_of("RPC0"), log.layers_of("RPC1"), log.layers_of("CPU")) == (7, 3, 0)
    assert log_of("").layers_of("RPC0") is None


def test_a_second_load_in_one_log_starts_afresh():
    """A server that slept loads again."""
    text = text_of("b10068_two.log")
    assert log_of(text + text).buffers == log_of(text).buffers


@pytest.mark.parametrize(
    ("name", "kinds", "subjects"),
    [
        ("b10068_mismatch.log", [FaultKind.MISMATCH, FaultKind.CONNECT], ["7.0.0", "127.0.0.1:31957"]),
        ("silent_version_mismatch.log", [FaultKind.MISMATCH, FaultKind.CONNECT], ["7.0.0", "10.20.0.14:50052"]),
        ("b10068_dead.log", [FaultKind.CONNECT], ["127.0.0.1:31990"]),
        ("worker_unreachable_still_healthy.log", [FaultKind.CONNECT], ["10.20.0.15:50052"]),
        ("worker_died_abort.log", [FaultKind.CRASH], [""]),
    ],
)
def test_what_went_wrong_is_named(name: str, kinds: list[FaultKind], subjects: list[str]):
    faults = log_of(text_of(name)).faults
    assert [fault.kind for fault in faults] == kinds
    assert [fault.subject for fault in faults] == subjects


@pytest.mark.parametrize("name", ["b10068_two.log", "b10068_one.log", "b10068_part.log", "new_log_format_timings.log"])
def test_a_good_log_complains_of_nothing(name: str):
    assert log_of(text_of(name)).faults == ()


def test_memory_stays_bounded_whatever_a_log_says():
    log = HeadLog()
    for n in range(2000):
        log.feed(
            f"load_tensors: RPC0[h:{n}] model buffer size = 1.00 MiB\nE Failed to connect to h:{n}\n"
            f"x: using device RPC{n} (h:{n}) (x) - 1 MiB free\n"
            f"load_tensors: layer {n} assigned to device D{n}, is_swa = 0\n"
        )
    log.feed("x" * 1_000_000)
    assert len(log.buffers) <= 64 and len(log.faults) <= 64 and len(log.devices) <= 64
    assert len(Lines(100).part) == 0


def test_a_colour_or_an_absurd_number_does_not_confuse():
    assert body("\x1b[0m0.01.264.921 D \x1b[1mload_tensors: x") == "load_tensors: x"
    assert buffer_of("load_tensors: CPU model buffer size = 1.2.3 MiB") is None
    assert buffer_of("load_tensors: CPU model buffer size = ....... MiB") is None


@given(st.lists(st.text(max_size=60) | st.sampled_from(text_of("b10068_two.log").splitlines()), max_size=40))
def test_any_log_is_read_without_an_error(lines: list[str]):
    log = log_of("\n".join(lines))
    assert 0.0 <= log.progress <= 1.0
    judge_placement(PLANNED, real_shares(log, NODES, "head"))


# --- planned and real

PLANNED = (
    Share("atlas", "RPC0", ONE, 7 / 19, 7, int(25.15 * MIB)),
    Share("bolt", "RPC1", TWO, 12 / 19, 12, int(210.01 * MIB)),
    Share("head", "CPU", layers=0, model_bytes=170 * MIB),
)


def real(*sizes: float) -> tuple[Share, ...]:
    return tuple(
        replace(share, model_bytes=int(size * MIB)) for share, size in zip(PLANNED, sizes, strict=True) if size
    )


def test_a_real_split_matches_its_plan():
    placement = judge_placement(PLANNED, real_shares(log_of(text_of("b10068_two.log")), NODES, "head"))
    assert placement.state is PlacementState.MATCHES and placement.problem is None


@pytest.mark.parametrize("name", ["b10068_alldead.log", "b10068_mismatch.log"])
def test_a_healthy_head_that_holds_everything_itself_is_red(name: str):
    log = log_of(text_of(name))
    placement = judge_placement(PLANNED, real_shares(log, NODES, "head"))
    assert placement.state is PlacementState.LOCAL
    assert placement.problem is not None and placement.problem.code == "healthy-but-local"
    assert "RPC0 on atlas, RPC1 on bolt hold nothing" in placement.problem.what


def test_a_worker_without_a_byte_is_named_though_the_head_numbered_the_others_anew():
    """The real log of a head that went on without its first worker: the second one is RPC0 then."""
    first = "127.0.0.1:31990"
    planned = (replace(PLANNED[0], endpoint=first), *PLANNED[1:])
    log = log_of(text_of("b10068_dead.log"))
    placement = judge_placement(planned, real_shares(log, {first: "atlas", TWO: "bolt"}, "head"))
    assert placement.state is PlacementState.PARTIAL
    assert placement.problem is not None and placement.problem.what.startswith("RPC0 on atlas should hold")


@pytest.mark.parametrize(
    ("sizes", "state"),
    [
        ((25.15, 210.01, 170), PlacementState.MATCHES),
        ((25.15, 210.01, 405), PlacementState.MATCHES),  # a mapped file counts from its first to its last tensor
        ((40, 214, 170), PlacementState.MATCHES),
        ((25.15, 260, 170), PlacementState.OVER),
        ((60, 175, 170), PlacementState.OVER),
        ((25.15, 100, 280), PlacementState.OVER),
        ((25.15, 0, 380), PlacementState.PARTIAL),
        ((0, 0, 405), PlacementState.LOCAL),
    ],
)
def test_differences_beyond_the_tolerance_are_told(sizes: tuple[float, ...], state: PlacementState):
    placement = judge_placement(PLANNED, real(*sizes))
    assert placement.state is state
    assert (placement.problem is None) == (state is PlacementState.MATCHES)


def test_a_device_that_was_given_nothing_may_hold_nothing():
    planned = (PLANNED[0], replace(PLANNED[1], layers=0, model_bytes=0), PLANNED[2])
    assert judge_placement(planned, real(25.15, 0, 170)).state is PlacementState.MATCHES


def test_without_a_plan_or_a_log_nothing_is_claimed():
    assert judge_placement((), real(1, 1, 1)).state is PlacementState.UNKNOWN
    assert judge_placement(PLANNED, ()).state is PlacementState.UNKNOWN


def test_a_local_plan_matches_a_local_head():
    planned = (Share("head", "CPU", layers=19, model_bytes=int(235.16 * MIB)),)
    assert judge_placement(planned, real_shares(log_of(text_of("b10068_alldead.log")), {}, "head")).state is (
        PlacementState.MATCHES
    )


@pytest.mark.parametrize(("planned", "held", "larger"), [
    (100, 100, False), (100, 133, False), (100, 140, True), (2000, 2100, False), (2000, 2200, True),
    (None, 900, False)])
def test_a_larger_kv_cache_than_planned_is_told_while_all_is_in_its_place(planned, held, larger):
    plan = (Share("atlas", "RPC0", ONE, 1.0, 4, 100 * MIB, None if planned is None else planned * MIB),)
    there = (Share("atlas", "RPC0", ONE, model_bytes=100 * MIB, kv_bytes=held * MIB),)
    placement = judge_placement(plan, there)
    assert placement.state is PlacementState.MATCHES
    assert (placement.problem is not None) == larger
    if larger:
        assert placement.problem.what == f"RPC0 on atlas holds {held} MiB of KV cache where {planned} MiB were planned."


WITH_DRAFT = """\
srv    load_model: loading model '/m/big.gguf'
load_tensors:   CPU_Mapped model buffer size =   235.16 MiB
llama_context: constructing llama_context
llama_kv_cache:        CPU KV buffer size =     6.00 MiB
sched_reserve:        CPU compute buffer size =    21.77 MiB
sched_reserve:        CPU compute buffer size =    22.00 MiB
common_speculative_init_result: loading draft model '/m/small.gguf'
load_tensors:   CPU_Mapped model buffer size =   100.00 MiB
llama_context: constructing llama_context
llama_kv_cache:        CPU KV buffer size =     3.00 MiB
sched_reserve:        CPU compute buffer size =    10.00 MiB
alloc_compute_meta:        CPU compute buffer size =     5.00 MiB
alloc_compute_meta:        CPU compute buffer size =     7.00 MiB
"""


def test_a_draft_model_and_a_projector_compute_beside_the_model_and_not_instead():
    """What is reserved anew counts once, what another context reserves counts too; a load after a sleep begins anew."""
    for text in (WITH_DRAFT, WITH_DRAFT + WITH_DRAFT):
        sizes = next(iter(log_of(text).buffers.values()))
        assert (sizes.compute / MIB, sizes.kv / MIB) == (22 + 10 + 7, 9)
