"""Plans for fleets that are only described: who gets what, and the reason that a person reads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fleet.config.load import ConfigErrors
from fleet.config.schema import SplitMode
from fleet.errors import PlanRefused
from fleet.planning.described import described
from fleet.planning.ladder import Rung
from fleet.planning.propose import Proposal, WhatIf, propose

GIB = 1 << 30
BIG = "{layers: 80, width: 8192, vocabulary: 128256, kv_heads: 8, size: 40GiB, parameters: 70.6, context: 131072}"
MIDDLE = ("{layers: 64, width: 5120, vocabulary: 152064, heads: 40, kv_heads: 8, size: 19.85GB, parameters: 32.8, "
          "context: 131072}")
SMALL = "{layers: 32, width: 4096, vocabulary: 128256, kv_heads: 8, size: 4.9GB, parameters: 8.03, context: 131072}"
MIXTURE = ("{layers: 36, width: 2880, vocabulary: 201088, kv_heads: 8, head_size: 64, size: 63GB, parameters: 117, "
           "context: 131072, experts: 128, experts_used: 4}")
MODELS = f"models: {{big: {BIG}, middle: {MIDDLE}, small: {SMALL}, mixture: {MIXTURE}}}\n"

TI_SUPER = "{memory: 16GiB, name: NVIDIA GeForce RTX 4070 Ti Super}"
RTX_3060 = "{memory: 12GiB, name: NVIDIA GeForce RTX 3060}"
RTX_2070 = "{memory: 8GiB, name: NVIDIA GeForce RTX 2070}"
MAC = "{ram: 16GiB, unified: true, cpu: Apple M2, devices: {MTL0: {memory: 11GiB, name: Apple M2}}}"
DESK = f"{{ram: 64GiB, cpu: AMD Ryzen 7 7700, devices: {{CUDA0: {TI_SUPER}, CUDA1: {RTX_3060}}}}}"
OLD = f"{{ram: 32GiB, devices: {{CUDA0: {RTX_2070}}}}}"
NAS = "{ram: 128GiB, cpu: Intel Xeon E5-2680, devices: {CUDA0: {memory: 2GiB, name: NVIDIA Quadro P400}}}"
FOUR = f"nodes: {{desk: {DESK}, old: {OLD}, mac: {MAC}}}\n"


def plan(fleet: str, model: str, **what_if: object) -> Proposal:
    found = described(fleet + MODELS)
    return propose(found.snapshot, found.config, found.headers[model], model, WhatIf(**what_if))


def layers(proposal: Proposal) -> dict[str, int]:
    return {f"{d.node}:{d.device}": d.layers for d in (*proposal.devices, proposal.host) if d.layers}


def says(proposal: Proposal, text: str) -> bool:
    return any(text in sentence for sentence in (*proposal.sentences, *proposal.suggestions))


def is_sound(proposal: Proposal, n_layers: int) -> None:
    devices = (proposal.host, *proposal.devices)
    assert sum(device.layers for device in devices) == n_layers + 1
    assert all(device.free >= device.reserve for device in devices if device.layers)
    assert abs(sum(device.fraction for device in devices) - 1) < 1e-9


# --- the given ones


@pytest.mark.parametrize("model", ["big", "middle", "small"])
def test_four_gpus_in_three_machines_share_by_memory(model):
    """16, 12, 8 and 11 GB: shares of 0.34, 0.26, 0.17 and 0.23, whatever the model."""
    proposal = plan(FOUR, model, mode=SplitMode.MEMORY)
    shares = {f"{d.node}:{d.device}": round(d.fraction, 2) for d in proposal.devices}
    assert shares == {"desk:CUDA0": 0.34, "desk:CUDA1": 0.26, "old:CUDA0": 0.17, "mac:MTL0": 0.23}
    assert proposal.head == "desk" and says(proposal, "in proportion to what each device may hold (mode memory)")
    is_sound(proposal, {"big": 80, "middle": 64, "small": 32}[model])


def test_a_store_with_much_memory_and_a_tiny_card_is_the_head_and_its_card_gets_no_layer():
    """No workstation's memory holds the file, so it is mapped on the store; its 2 GB card cannot hold its share."""
    fleet = FOUR.replace("ram: 64GiB", "ram: 32GiB").replace("nodes: {", f"nodes: {{nas: {NAS}, ")
    proposal = plan(fleet, "big", mode=SplitMode.MEMORY)
    assert proposal.head == "nas"
    assert says(proposal, "nas is the head since it has the most main memory, 128 GiB: the model's file of 40 GiB")
    by_device = {f"{d.node}:{d.device}": d for d in proposal.devices}
    assert by_device["nas:CUDA0"].layers == 0 and by_device["nas:CUDA0"].fraction == 0.0
    assert says(proposal, "CUDA0 on nas gets no layer: its share of 2.0 GiB would not fit it")
    assert {name: round(d.fraction, 2) for name, d in by_device.items() if d.layers} == {
        "desk:CUDA0": 0.34, "desk:CUDA1": 0.26, "old:CUDA0": 0.17, "mac:MTL0": 0.23}
    is_sound(proposal, 80)


def test_unified_memory_is_counted_once_on_the_head():
    """A working set of 96 of 128 GiB: what layers fill there is no longer main memory."""
    strix = ("{ram: 128GiB, free: 100GiB, unified: true, cpu: AMD Ryzen AI Max+ 395, "
             "devices: {ROCm0: {memory: 96GiB, name: Radeon 8060S Graphics}}}")
    proposal = plan(f"nodes: {{strix: {strix}}}\n", "mixture")
    assert layers(proposal) == {"strix:ROCm0": 37} and proposal.context == 131072
    device = proposal.devices[0]
    assert device.limit + proposal.host.limit <= 100 * GIB
    crowded = plan(f"nodes: {{strix: {strix.replace('free: 100GiB', 'free: 48GiB')}}}\n", "mixture")
    assert not crowded.fits and "does not fit" in crowded.problem.what, "48 GiB hold no 63 GB under any name"


def test_two_machines_with_unified_memory_hold_together_what_neither_holds_alone():
    studio = "{ram: 64GiB, unified: true, cpu: Apple M2 Max, devices: {MTL0: {memory: 48GiB, name: Apple M2 Max}}}"
    spark = "{ram: 24GiB, unified: true, devices: {CUDA0: {memory: 24GiB, name: NVIDIA GB10}}}"
    proposal = plan(f"nodes: {{studio: {studio}, spark: {spark}}}\n", "mixture", context=8192)
    assert proposal.fits and set(layers(proposal)) == {"studio:MTL0", "spark:CUDA0"}
    assert proposal.devices[-1].has_output and proposal.devices[-1].node == "studio", "on the head, the last device"
    assert proposal.context == 8192 and says(proposal, "held as asked for (-fit off)")
    is_sound(proposal, 36)


def test_what_cannot_fit_is_refused_with_figures_and_ways_out():
    proposal = plan(f"nodes: {{old: {OLD}}}\n", "big")
    assert not proposal.fits and proposal.problem.code == "no-room"
    assert "big does not fit: with a context of 4096 tokens it takes 40." in proposal.problem.what
    assert says(proposal, "of the same model, about ") and says(proposal, "more memory in the fleet would do")


# --- from the field


def test_splitting_is_not_done_where_one_card_holds_it_all():
    """Two nodes ran at a third of one's speed, three at a fifth: what fits stays on the fastest card."""
    proposal = plan(FOUR, "small")
    assert layers(proposal) == {"desk:CUDA0": 33}
    assert says(proposal, "they fit, and so no layer crosses the network")
    assert says(proposal, "CUDA0 on old gets no layer: the others have room, and it would add 2.5 ms to every token")
    forced = plan(FOUR, "small", nodes=("old",), mode=SplitMode.MEMORY)
    assert says(forced, "desk alone is faster: ")


def test_out_of_memory_at_a_split_whose_sum_fits_does_not_happen():
    """KV and buffers count: by weights alone 19.85 GB go on 12 + 12 GiB, with 32768 tokens they do not."""
    card = f"{{ram: 8GiB, devices: {{CUDA0: {RTX_3060}}}}}"
    two = f"nodes: {{a: {card}, b: {card}}}\n"
    assert not plan(two, "middle", context=32768).fits
    assert says(plan(two, "middle", context=32768), "With --kv q8_0 it fits, at a context of 32768 tokens")
    free = plan(two, "middle")
    assert free.fits and 8192 <= free.context < 32768
    is_sound(free, 64)
    is_sound(plan(two, "middle", context=32768, type_k="q8_0", type_v="q8_0"), 64)


def test_a_fast_cable_that_is_not_used_is_seen_in_the_prediction():
    """24 fell to 2.5 to 7.9 tokens a second with the VPN in the cable's place."""
    def over(link: str) -> Proposal:
        mac = "{ram: 64GiB, unified: true, cpu: Apple M2 Max, devices: {MTL0: {memory: 30GiB, name: Apple M2 Max}}"
        return plan(f"nodes: {{one: {mac}}}, two: {mac}, link: {link}}}}}\n", "big")

    cable = over("{kind: wired, round_trip_ms: 0.2, mbit: 10000}")
    vpn = over("{kind: vpn, round_trip_ms: 40, mbit: 20}")
    assert cable.fits and vpn.fits and vpn.prediction.seconds_per_token > cable.prediction.seconds_per_token + 0.04


def test_fifteen_devices_at_most_and_those_with_the_most_memory():
    cards = ", ".join(f"n{number}: {{ram: 8GiB, devices: {{CUDA0: {4 + number // 10}GiB}}}}" for number in range(20))
    proposal = plan(f"nodes: {{{cards}}}\n", "big", head="n0", mode=SplitMode.MEMORY)
    used = [device for device in proposal.devices if device.layers]
    assert len(used) == 15 and sum(device.limit == 5 * GIB for device in used) == 10
    assert [device.name for device in used[:-1]] == [f"RPC{number}" for number in range(14)]


# --- the ladder


def test_when_memory_is_short_context_goes_first_then_slots_then_layers():
    def with_card(gib: float) -> Proposal:
        return plan(f"nodes: {{a: {{ram: 64GiB, devices: {{CUDA0: {gib}GiB}}}}}}\n", "small")

    assert with_card(6.5).given_up == () and with_card(6.5).context >= 8192
    assert with_card(5.4).given_up == (Rung.CONTEXT,) and 4096 <= with_card(5.4).context < 8192
    short = with_card(4)
    assert Rung.LAYERS in short.given_up and 0 < short.host.layers < 33
    assert says(short, f"Memory is short: {short.host.layers} of 33 layers are on the processor of a")
    assert says(short, "of the same model, about ")
    is_sound(short, 32)


def test_a_pinned_context_is_held_and_layers_go_to_the_processor_instead():
    card = "nodes: {a: {ram: 64GiB, devices: {CUDA0: 6GiB}}}\n"
    proposal = plan(card, "small", context=32768)
    assert proposal.context == 32768 and proposal.host.layers > 0 and proposal.context_pinned


def test_smaller_kv_is_suggested_and_then_true():
    card = "nodes: {a: {ram: 64GiB, devices: {CUDA0: 8GiB}}}\n"
    proposal = plan(card, "small")
    wished = plan(card, "small", type_k="q8_0", type_v="q8_0")
    assert says(proposal, f"With --kv q8_0 the context could be {wished.context} tokens")
    assert wished.context > 1.5 * proposal.context


def test_a_model_that_is_all_on_one_processor_is_planned_too():
    proposal = plan("nodes: {a: {ram: 16GiB, cpu: AMD Ryzen 7 7700}}\n", "small")
    assert proposal.fits and layers(proposal) == {"a:CPU": 33} and proposal.devices == ()
    assert proposal.host.free >= proposal.host.reserve
    assert says(proposal, "All layers are on the processor of a")


def test_experts_that_are_not_used_are_held_but_not_read():
    card = "nodes: {a: {ram: 128GiB, devices: {CUDA0: {memory: 80GiB, name: NVIDIA A100}}}}\n"
    proposal = plan(card, "mixture", context=8192)
    assert proposal.devices[0].weights > 57 * GIB
    assert proposal.prediction.seconds_per_token * proposal.devices[0].speed.bytes_per_second < 10 * GIB


# --- what if


def test_devices_and_nodes_can_be_left_out_and_the_head_named():
    assert "old:CUDA0" not in layers(plan(FOUR, "big", mode=SplitMode.MEMORY, context=2048,
                                          without=frozenset({("old", "")})))
    assert plan(FOUR, "small", without=frozenset({("desk", "CUDA0")})).devices[-1].device == "CUDA1"
    assert plan(FOUR, "small", head="mac").head == "mac"
    alone = plan(FOUR, "small", nodes=())
    assert {device.node for device in alone.devices} == {"desk"}


def test_a_card_of_the_head_that_its_own_worker_offers_too_is_counted_once():
    proposal = plan(FOUR, "small", nodes=("desk", "old"), mode=SplitMode.MEMORY)
    assert proposal.head == "desk"
    cards = [device for device in proposal.devices if device.node == "desk" and device.limit]
    assert sorted(device.device for device in cards) == ["CUDA0", "CUDA1"]
    assert all(device.link is None for device in cards)


@pytest.mark.parametrize(("what_if", "sentence"), [
    ({"nodes": ("bolt",)}, "No node is called bolt"), ({"head": "bolt"}, "No node is called bolt"),
    ({"without": frozenset({("bolt", "CUDA0")})}, "No node is called bolt"),
    ({"type_k": "q7"}, "'q7' is no type of KV")])
def test_what_there_is_not_is_refused(what_if, sentence):
    with pytest.raises(PlanRefused, match=sentence):
        plan(FOUR, "small", **what_if)


def test_a_quantised_v_without_flash_attention_is_told_and_not_thrown():
    found = described(FOUR + MODELS)
    models = {"small": replace(found.config.models["small"], flash_attention="off", kv_type_v="q8_0")}
    proposal = propose(found.snapshot, replace(found.config, models=models), found.headers["small"], "small")
    assert not proposal.fits and "flash attention" in proposal.problem.what


@pytest.mark.parametrize(("text", "sentence"), [
    ("nodes: {a: {rom: 1GiB}}", "unknown key; did you mean 'ram'"),
    ("nodes: {a: {devices: {GPU: 8GiB}}}", "'GPU' is no device of llama.cpp"),
    ("nodes: {a: {devices: {CUDA0: {name: x}}}}", "'memory' is missing"),
    ("nodes: {a: {ram: 8}}", "did you mean '8GiB'"),
    ("nodes: {}", "no node is described"),
    ("head: b\nnodes: {a: {ram: 8GiB}}", "no node is called 'b'"),
    ("nodes: {a: {ram: 8GiB}}\nmodels: {m: {layers: 3}}", "'size' is missing"),
    ("nodes: {a: {link: {round_trip_ms: soon}}}", "Expected milliseconds")])
def test_a_description_that_cannot_be_is_refused_with_its_place(text, sentence):
    with pytest.raises(ConfigErrors, match=sentence):
        described(text)


# --- what an expert would do


def test_a_card_slower_than_the_processor_that_has_to_work_anyway_gets_nothing():
    """Nearly all layers are the processor's: the card's 32 GB/s would only slow the rest and keep the context small."""
    proposal = plan(f"nodes: {{nas: {NAS}}}\n", "middle")
    assert layers(proposal) == {"nas:CPU": 65}
    assert proposal.context == 131072 and proposal.slots == 4, "main memory is not short"
    assert says(proposal, "the other devices would only slow it down") and not says(proposal, "Memory is short")
    is_sound(proposal, 64)


def test_a_slower_machine_does_not_help_a_processor_that_holds_all():
    laptop, pi = "{ram: 32GiB, cpu: Intel Core i7-1260P}", "{ram: 8GiB, cpu: Raspberry Pi 5}"
    proposal = plan(f"head: laptop\nnodes: {{laptop: {laptop}, pi: {pi}}}\n", "middle")
    assert layers(proposal) == {"laptop:CPU": 65} and not says(proposal, "alone is faster")


def test_a_machine_more_is_used_where_it_saves_more_than_a_prediction_is_exact():
    cards = "{{ram: 64GiB, devices: {{CUDA0: {{memory: 24GiB, name: {}}}}}}}"
    for far, used in (("NVIDIA GeForce RTX 3090", False), ("NVIDIA GeForce RTX 5090", True)):
        fleet = f"head: desk\nnodes: {{desk: {cards.format('NVIDIA GeForce RTX 3090')}, far: {cards.format(far)}}}\n"
        proposal = plan(fleet, "middle", context=8192)
        assert ("far:CUDA0" in layers(proposal)) is used, far
        assert used or says(proposal, "a machine more is used where it saves 5%")


def test_the_memory_of_a_chip_is_as_fast_for_its_gpu_that_nobody_named():
    mac = "{ram: 16GiB, unified: true, cpu: Apple M2, devices: {MTL0: 11GiB}}"
    speed = plan(f"nodes: {{mac: {mac}}}\n", "small").devices[0].speed
    assert not speed.guessed and speed.bytes_per_second == 0.6 * 100e9


@pytest.mark.parametrize("mode", SplitMode)
def test_devices_that_get_nothing_have_a_share_of_nothing_in_either_mode(mode):
    proposal = plan(f"nodes: {{nas: {NAS.replace('2GiB', '300MiB')}}}\n", "middle", mode=mode)
    assert layers(proposal) == {"nas:CPU": 65} and [device.fraction for device in proposal.devices] == [0.0]
    is_sound(proposal, 64)
