"""The compatibility rules, each both ways: what it finds, and what it leaves alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fleet.model import Binary, DeviceKind, LinkKind
from fleet.planning.rules import RULES, judge, refusals, warnings
from fleet.planning.situation import (
    Level,
    ModelTraits,
    Place,
    Runtime,
    Situation,
    Speculating,
    Streamed,
    Verdict,
    option,
    option_list,
)
from fleet.planning.speculation_modes import MODES, Drafts, OverRpc


def program(commit: str | None = "571d0d5", build: int | None = 10068, name: str = "llama-server") -> Binary:
    return Binary(f"/opt/llama/{name}", name, build, commit)


HEAD = Place("atlas", 8080, "127.0.0.1", binary=program(), protocol=(4, 0, 3))
WORKER = Place("bolt", 50052, "127.0.0.1", dial="10.0.0.3", binary=program(name="ggml-rpc-server"),
               protocol=(4, 0, 3), link=LinkKind.WIRED)
PLAIN = Situation(Runtime.LLAMA, HEAD, (WORKER,))
PIPELINE = replace(PLAIN, runtime=Runtime.VLLM, head=replace(HEAD, vendors=(DeviceKind.CUDA,)),
                   workers=(replace(WORKER, vendors=(DeviceKind.CUDA,)),))
FEATURES = ("draft-simple", "draft-mtp", "ngram-mod")


def verdicts(situation: Situation, rule: str) -> tuple[Verdict, ...]:
    return tuple(verdict for verdict in judge(situation) if verdict.rule == rule)


def worker(**changes: object) -> Situation:
    return replace(PLAIN, workers=(replace(WORKER, **changes),))


def head(**changes: object) -> Situation:
    return replace(PLAIN, head=replace(HEAD, **changes))


def speculating(*modes: str, **changes: object) -> Situation:
    traits = ModelTraits(draft_head=changes.pop("draft_head", None))
    return replace(PLAIN, model=traits, speculating=Speculating(modes, **changes))


def cache(k: str = "", v: str = "", flash: str = "", **traits: object) -> Situation:
    return replace(PLAIN, kv_type_k=k, kv_type_v=v, flash_attention=flash, model=ModelTraits(**traits))


def by_rule(value: object) -> str:
    """The name of a case: the id of its rule."""
    return value if isinstance(value, str) and " " not in value else ""


OTHER = program("7e4c0a9", 10434, "ggml-rpc-server")
UNTOLD = program(None, None, "ggml-rpc-server")
REFUSED = [
    ("build-mismatch", worker(binary=OTHER), "bolt has llama.cpp b10434 (7e4c0a9), the head atlas has b10068"),
    ("protocol-mismatch", worker(protocol=(5, 0, 0)), "bolt:50052 speaks RPC protocol 5.0.0, the head on atlas 4.0.3"),
    ("protocol-mismatch", worker(protocol=(4, 1, 0)), "4.1.0"),
    ("patch-mismatch", worker(protocol=(4, 0, 2)), "number operations differently"),
    ("speculation-mode", speculating("draft-dspark", draft_model="d.gguf", known_modes=FEATURES), "does not know"),
    ("speculation-needs", speculating("draft-simple"), "a draft model, and none was named"),
    ("speculation-needs", speculating("draft-eagle3"), "trained for this model, and none was named"),
    ("speculation-needs", speculating("draft-dflash"), "none was named"),
    ("speculation-needs", speculating("draft-mtp", draft_head=False), "the model has none"),
    ("speculation-silent", speculating(draft_model="d.gguf"), "never asked for a draft"),
    ("speculation-silent", speculating("ngram-mod", draft_model="d.gguf"), "never asked for a draft"),
    ("speculation-pipeline", replace(PIPELINE, speculating=Speculating(("mtp",))), "in a pipeline over machines"),
    ("one-vendor", replace(PIPELINE, workers=(replace(WORKER, vendors=(DeviceKind.ROCM,)),)), "NVIDIA and AMD"),
    ("split-mode", replace(PLAIN, split_mode="tensor"), "-sm tensor"),
    ("split-mode", replace(PLAIN, split_mode="row"), "-sm row"),
    ("too-many-devices", replace(PLAIN, workers=tuple(replace(WORKER, port=50000 + n) for n in range(16))),
     "16 devices are more than llama.cpp can split over: 15"),
    ("too-many-devices", replace(worker(devices=14), local_devices=2), "16 devices"),
    ("too-many-shares", replace(PLAIN, shares=16), "16 shares"),
    ("states-apart", replace(PLAIN, workers=(WORKER, replace(WORKER, port=50053)),
                             model=ModelTraits("mamba2", scanned=True)), "which llama.cpp b10068 cannot load"),
    ("kv-needs-flash-attention", cache(v="q8_0", flash="off"), "needs flash attention, and that is off"),
    ("kv-needs-flash-attention", cache(v="q4_0", architecture="grok"), "keeps off for grok"),
    ("kv-block-size", cache(k="q8_0", key_lengths=(80,)), "K of 80 values"),
    ("kv-block-size", cache(v="q4_0", value_lengths=(128, 72)), "V of 72 values"),
    ("kv-one-type", cache(k="q8_0", latent=True), "q8_0 and f16"),
]
WARNED = [
    ("states-apart", replace(PLAIN, head=replace(HEAD, binary=program(build=11434)), model=ModelTraits(scanned=True),
                             workers=(WORKER, replace(WORKER, port=50053))), "up to b10068 cannot load"),
    ("build-mismatch", worker(binary=UNTOLD), "the programs on bolt do not say which commit was built"),
    ("build-mismatch", worker(binary=None, managed=False), "which somebody else runs, cannot be told"),
    ("worker-first", worker(running_build="b10000"), "started anew before the head"),
    ("speculation-mode", speculating("draft-new"), "no way to speculate that Quarterdeck has facts about"),
    ("speculation-rpc", speculating("draft-mtp"), "draft-mtp was reported to crash over RPC"),
    ("speculation-rpc", speculating("draft-dspark", draft_model="d.gguf"), "draft-dspark is unproven over RPC"),
    ("speculation-rpc", speculating("draft-dflash", draft_model="d.gguf"), "draft-dflash is unproven over RPC"),
    ("speculation-rpc", speculating("draft-eagle3", draft_model="d.gguf"), "draft-eagle3 is unproven over RPC"),
    ("speculation-streamed", replace(speculating("draft-simple", draft_model="d.gguf"), streamed=Streamed(2)),
     "A pass over 2 tokens reads 1.60 times the experts of one where neighbours share 0.40 of them, as is usual; with "
     "fewer than 0.60 of the drafts right it loses, and no draft saves a read."),
    ("speculation-streamed", replace(speculating("ngram-mod"), streamed=Streamed(2, overlap=0.415, acceptance=0.574)),
     "share 0.41 of them, as was seen; with fewer than 0.58 of the drafts right it loses, and 0.57 were seen"),
    ("speculation-streamed", replace(PLAIN, streamed=Streamed(9, outside=True)), "Drafts from in front of the head"),
    ("one-vendor", worker(vendors=(DeviceKind.CUDA, DeviceKind.ROCM)), "bolt:50052 would use GPUs of NVIDIA and AMD"),
    ("pipeline-bubble", replace(PLAIN, slots=1), "each of the 2 machines waits"),
    ("rdma-address", worker(rdma_addresses=("10.9.0.3",)), "the RDMA address of bolt is 10.9.0.3"),
    ("rdma-address", worker(rdma_build=True, tunnelled=True, rdma_addresses=("10.9.0.3",), dial="127.0.0.1"),
     "by a tunnel"),
    ("rdma-address", replace(head(rdma_build=False), workers=(replace(WORKER, rdma_build=True),)),
     "on atlas was built"),
    ("wireless", worker(link=LinkKind.WIFI), "atlas and bolt are joined by wifi"),
    ("wireless", worker(link=LinkKind.VPN), "a VPN"),
    ("workers-open", worker(bind="10.0.0.3"), "10.0.0.3:50052 (bolt) takes orders"),
    ("stages-open", PIPELINE, "unencrypted"),
    ("head-open", head(bind="0.0.0.0"), "asks nobody for a key"),
]
LEFT_ALONE = [
    ("build-mismatch", worker(binary=program("571d0d54aa", None, "ggml-rpc-server"))),   # one commit, cut differently
    ("build-mismatch", worker(binary=None)),
    ("build-mismatch", head(binary=None)),
    ("protocol-mismatch", worker(protocol=None)),
    ("protocol-mismatch", head(protocol=(4, 1, 0))),                                     # an older worker is taken
    ("patch-mismatch", worker(protocol=(5, 0, 1))),                                      # said by protocol-mismatch
    ("worker-first", worker(running_build="b10068 (571d0d5)")),
    ("worker-first", worker(running_build="b10000", managed=False)),
    ("speculation-mode", speculating("ngram-mod", known_modes=FEATURES)),
    ("speculation-mode", speculating("none")),
    ("speculation-needs", speculating("draft-simple", draft_model="d.gguf")),
    ("speculation-needs", speculating("draft-mtp", draft_head=True)),
    ("speculation-needs", speculating("draft-mtp", draft_head=False, draft_model="mtp.gguf")),
    ("speculation-needs", speculating("draft-mtp")),                                     # not known: not refused
    ("speculation-needs", speculating("ngram-mod")),
    ("speculation-silent", speculating("ngram-mod", "draft-simple", draft_model="d.gguf")),
    ("speculation-silent", speculating(draft_model="d.gguf", has_modes=False)),          # before there were modes
    ("speculation-rpc", speculating("draft-simple", draft_model="d.gguf")),
    ("speculation-rpc", speculating("ngram-mod")),
    ("speculation-rpc", replace(speculating("draft-dspark", draft_model="d.gguf"), workers=())),
    ("speculation-streamed", speculating("draft-simple", draft_model="d.gguf")),         # all of it is in memory
    ("speculation-streamed", replace(PLAIN, streamed=Streamed(4))),
    ("speculation-streamed", replace(speculating("none"), streamed=Streamed(4))),
    ("speculation-streamed", replace(speculating("ngram-mod"), streamed=Streamed(2, overlap=0.415, acceptance=0.7))),
    ("speculation-pipeline", PIPELINE),
    ("speculation-pipeline", replace(PIPELINE, workers=(), speculating=Speculating(("mtp",)))),
    ("one-vendor", worker(vendors=(DeviceKind.CUDA, DeviceKind.VULKAN))),                # Vulkan drives any maker's
    ("one-vendor", replace(head(vendors=(DeviceKind.CUDA,)), workers=(replace(WORKER, vendors=(DeviceKind.METAL,)),))),
    ("split-mode", replace(PLAIN, split_mode="layer")),
    ("split-mode", replace(PLAIN, split_mode="row", workers=())),
    ("too-many-devices", worker(devices=15)),
    ("too-many-shares", replace(PLAIN, shares=15)),
    ("states-apart", replace(PLAIN, model=ModelTraits("mamba2", scanned=True))),
    ("pipeline-bubble", replace(PLAIN, slots=4)),
    ("pipeline-bubble", PLAIN),
    ("pipeline-bubble", replace(PLAIN, slots=1, workers=(replace(WORKER, node="atlas"),))),
    ("kv-needs-flash-attention", cache(v="q8_0")),
    ("kv-needs-flash-attention", cache(k="q8_0", flash="off")),
    ("kv-needs-flash-attention", cache(v="bf16", flash="off")),
    ("kv-block-size", cache(k="q8_0", v="q8_0", key_lengths=(64, 256), value_lengths=(128,))),
    ("kv-block-size", cache(k="q8_0", flash="off", key_lengths=(80,))),
    ("kv-block-size", cache(k="q8_0", v="q8_0")),
    ("kv-one-type", cache(k="q8_0", v="q8_0", latent=True)),
    ("kv-one-type", cache(k="q8_0")),
    ("rdma-address", worker(rdma_build=True, rdma_addresses=("10.0.0.3",))),
    ("rdma-address", worker(rdma_addresses=("10.9.0.3",), rdma_off=True)),
    ("rdma-address", replace(head(rdma_off=True), workers=(replace(WORKER, rdma_addresses=("10.9.0.3",)),))),
    ("rdma-address", PLAIN),
    ("wireless", PLAIN),
    ("wireless", worker(link=LinkKind.UNKNOWN)),
    ("workers-open", PLAIN),
    ("stages-open", replace(PIPELINE, workers=())),
    ("head-open", head(bind="0.0.0.0", key_file=True)),
]


@pytest.mark.parametrize(("rule", "situation", "says"), REFUSED, ids=by_rule)
def test_what_cannot_work_is_refused_and_says_what_to_do(rule: str, situation: Situation, says: str) -> None:
    found = verdicts(situation, rule)
    assert [verdict.level for verdict in found] == [Level.REFUSAL]
    assert says in found[0].sentence and found[0].remedy and found[0].source
    assert found[0] in refusals(judge(situation))


@pytest.mark.parametrize(("rule", "situation", "says"), WARNED, ids=by_rule)
def test_what_a_person_should_know_is_a_warning(rule: str, situation: Situation, says: str) -> None:
    found = verdicts(situation, rule)
    assert [verdict.level for verdict in found] == [Level.WARNING]
    assert says in str(found[0])
    assert found[0] in warnings(judge(situation))


@pytest.mark.parametrize(("rule", "situation"), LEFT_ALONE, ids=by_rule)
def test_what_is_in_order_or_not_known_is_ok(rule: str, situation: Situation) -> None:
    assert [verdict.level for verdict in verdicts(situation, rule)] == [Level.OK]


def test_a_plain_fleet_has_nothing_against_it_and_every_rule_says_what_it_looked_at() -> None:
    found = judge(PLAIN)
    assert refusals(found) == warnings(found) == ()
    assert [verdict.rule for verdict in found] == [rule.id for rule in RULES if Runtime.LLAMA in rule.runtimes]
    assert all(verdict.sentence and verdict.source for verdict in found)


def test_every_rule_has_a_name_and_a_source_and_is_tested_both_ways() -> None:
    assert len({rule.id for rule in RULES}) == len(RULES)
    assert all(rule.source and rule.demand.endswith(".") for rule in RULES)
    assert {rule.id for rule in RULES} == {case[0] for case in (*REFUSED, *WARNED)} == {case[0] for case in LEFT_ALONE}


def test_several_wrong_things_are_all_said() -> None:
    found = refusals(judge(replace(worker(binary=OTHER, protocol=(7, 0, 0)), split_mode="row")))
    assert [verdict.rule for verdict in found] == ["build-mismatch", "protocol-mismatch", "split-mode"]


def test_every_mode_says_what_it_drafts_with_and_what_is_known_of_it_over_rpc() -> None:
    assert len({mode.name for mode in MODES}) == len(MODES)
    for mode in MODES:
        assert mode.source
        assert (mode.over_rpc is OverRpc.WORKS) == (mode.note == "")
        assert mode.name.startswith("ngram") == (mode.drafts is Drafts.TOKENS)


def test_options_are_read_as_the_programs_do() -> None:
    arguments = ("-fa", "on", "--spec-type", "ngram-mod,draft-simple", "-fa", "off", "--cache-type-v=q8_0", "-sm")
    assert option(arguments, "-fa", "--flash-attn") == "off"
    assert option(arguments, "-ctv", "--cache-type-v") == "q8_0"
    assert option(arguments, "-sm") == "" and option(arguments, "-md") is None
    assert option_list(arguments, "--spec-type") == ("ngram-mod", "draft-simple")
