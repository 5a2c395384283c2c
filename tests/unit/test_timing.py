"""The time of a token: from bytes, bandwidths and links; and what is known of the speed of devices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fleet.model import Cpu, Device, DeviceKind, Link, LinkKind, Node, NodeReading, ObservedSpeed
from fleet.models.gguf import GgufHeader
from fleet.models.header import TensorInfo
from fleet.planning.bandwidth import KNOWN, known_bandwidth, processor_bandwidth
from fleet.planning.timing import ONE_CORE, WORKER_OVERHEAD, Part, Speed, predict, read_bytes, speed_of

SLOW = Speed(10e9, "measured")


def part(node="a", read=250_000_000, sends=2568, link=None) -> Part:
    return Part(node, "RPC0", read, sends, SLOW, link)


def test_a_token_of_one_machine_takes_what_its_weights_take_to_read():
    prediction = predict([part()])
    assert prediction.seconds_per_token == pytest.approx(0.025)
    assert prediction.tokens_per_second == pytest.approx(40)


def test_workers_add_a_round_trip_and_what_they_send_and_work_one_after_another():
    link = Link(0.010, 100e6)
    prediction = predict([part("a", 125_000_000), part("b", 125_000_000, 1_048_584, link)])
    assert prediction.seconds_per_token == pytest.approx(0.025 + 0.010 + WORKER_OVERHEAD + 1_048_584 / 100e6)
    assert sum(seconds for _, seconds in prediction.terms) == pytest.approx(prediction.seconds_per_token)


def test_a_worker_that_holds_nothing_costs_nothing():
    assert predict([part(), part("b", 0, 2568, Link(1.0, 1e6))]) == predict([part()])


def test_a_link_of_unknown_throughput_counts_its_round_trip_alone():
    assert predict([part(link=Link(0.001, 0))]).seconds_per_token == pytest.approx(0.025 + 0.001 + WORKER_OVERHEAD)


def test_nothing_to_do_is_no_speed_and_no_error():
    assert predict([]).tokens_per_second == 0


@pytest.mark.parametrize(("round_trip", "workers", "measured"), [
    (0.020, 1, 57.9), (0.050, 1, 87.4), (0.020, 2, 80.2), (0.050, 2, 142.2)])
def test_the_model_meets_the_measured_delays(round_trip, workers, measured):
    base = {1: 0.0348, 2: 0.0357}[workers] - WORKER_OVERHEAD * workers
    speed = Speed(250e6 / base, "measured")
    parts = [Part("w", "RPC", 250_000_000 // workers, 2568, speed, Link(round_trip, 1e9)) for _ in range(workers)]
    assert predict(parts).seconds_per_token * 1000 == pytest.approx(measured, rel=0.1)


# ---------------------------------------------------------------------------------------------


def header(*tensors: TensorInfo, **numbers: int) -> GgufHeader:
    metadata = {"general.architecture": "x", "x.block_count": 1, **{f"x.{k}": v for k, v in numbers.items()}}
    return GgufHeader(3, metadata, {}, tensors, 0, 0, 0)


def test_of_a_mixture_of_experts_only_those_that_are_used_are_read():
    tensors = (TensorInfo("blk.0.ffn_up_exps.weight", (1,), "f32", 0, 8000),
               TensorInfo("blk.0.attn_q.weight", (1,), "f32", 0, 500),
               TensorInfo("output.weight", (1,), "f32", 0, 70))
    assert read_bytes(header(*tensors, expert_count=8, expert_used_count=2), 0) == 500 + 2000
    assert read_bytes(header(*tensors), 0) == 8500
    assert read_bytes(header(*tensors), 1) == 70


@pytest.mark.parametrize("numbers", [{"expert_count": 8, "expert_used_count": 99}, {"expert_count": 0},
                                     {"expert_used_count": 4}])
def test_counts_of_experts_that_make_no_sense_count_every_byte(numbers):
    tensor = TensorInfo("blk.0.ffn_up_exps.weight", (1,), "f32", 0, 8000)
    assert read_bytes(header(tensor, **numbers), 0) == 8000


# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("label", "gigabytes"), [
    ("NVIDIA GeForce RTX 4070 Ti SUPER", 672), ("NVIDIA GeForce RTX 3060", 360), ("NVIDIA GeForce RTX 2070", 448),
    ("NVIDIA GeForce RTX 4070 Laptop GPU", 256), ("Tesla P40", 346), ("Quadro P400", 32), ("NVIDIA GB10", 273),
    ("Apple M1", 68), ("Apple M2 Max", 400), ("Apple M3 Ultra", 819), ("Apple M4 Pro", 273),
    ("AMD Radeon 8060S Graphics", 256), ("AMD RYZEN AI MAX+ 395 w/ Radeon 8060S", 256),
    ("AMD Radeon RX 7900 XTX (RADV NAVI31)", 960)])
def test_devices_are_known_by_what_they_call_themselves(label, gigabytes):
    assert known_bandwidth(label)[0] == gigabytes * 1e9


@pytest.mark.parametrize("label", ["", "NVIDIA GeForce RTX 9990", "NVIDIA GeForce RTX 2080 Laptop GPU", "x" * 10_000,
                                   "a20001", "m1"])
def test_what_is_not_in_the_table_is_not_guessed_from_it(label):
    assert known_bandwidth(label) is None


def test_the_table_has_only_sensible_figures():
    assert all(16 <= figure <= 4000 and source for figure, source in KNOWN.values())


@pytest.mark.parametrize(("model", "least", "most"), [
    ("AMD Ryzen 9 7950X 16-Core Processor", 70, 90), ("AMD Ryzen 7 5800X 8-Core Processor", 40, 52),
    ("13th Gen Intel(R) Core(TM) i7-13700K", 48, 52), ("Intel(R) Core(TM) i7-6700 CPU @ 3.40GHz", 35, 40),
    ("Intel(R) Xeon(R) CPU E5-2680 v3 @ 2.50GHz", 60, 70), ("AMD EPYC 9354 32-Core Processor", 400, 500),
    ("Raspberry Pi 5 Model B Rev 1.0 (Cortex-A76)", 15, 18), ("Intel(R) N100", 25, 26)])
def test_main_memory_is_rated_by_rule(model, least, most):
    assert least <= processor_bandwidth(model)[0] / 1e9 <= most


def node(model="", cores=0, **speeds: ObservedSpeed) -> Node:
    return Node("n", reading=NodeReading(cpu=Cpu(model, cores)), speeds=speeds)


GPU = Device("CUDA0", DeviceKind.CUDA, "NVIDIA GeForce RTX 3090")


def test_an_observed_speed_counts_before_the_table():
    seen = node(CUDA0=ObservedSpeed(500e9, 200))
    assert speed_of(seen, GPU) == Speed(500e9, "observed over 200 tokens", observed=True)
    assert speed_of(seen, replace(GPU, name="CUDA1")).observed is False


def test_a_speed_that_was_observed_over_a_few_tokens_does_not_count():
    assert speed_of(node(CUDA0=ObservedSpeed(1e9, 3)), GPU) == speed_of(node(), GPU)


def test_a_known_device_gets_its_peak_with_its_source_and_what_of_it_arrives():
    speed = speed_of(node(), GPU)
    assert speed.bytes_per_second == pytest.approx(0.6 * 936e9)
    assert "NVIDIA" in speed.source and not speed.guessed


def test_a_guess_is_named_as_one():
    unknown = speed_of(node(), Device("Vulkan0", DeviceKind.VULKAN, "Something New"))
    assert unknown.guessed and "guess" in unknown.source and "Something New" in unknown.source
    assert speed_of(node(), None).guessed
    assert speed_of(Node("never read"), None).guessed


def test_a_processor_with_few_cores_does_not_reach_what_its_memory_gives():
    few, many = speed_of(node("AMD EPYC", 2), None), speed_of(node("AMD EPYC", 64), None)
    assert few.bytes_per_second == 16e9 < many.bytes_per_second
    assert "2 cores" in few.source


def test_a_chip_with_its_memory_on_it_is_known_as_a_processor_too():
    assert not speed_of(node("Apple M2 Pro", 12), None).guessed


def test_links_are_found_by_head_and_worker():
    from fleet.model import Snapshot
    link = Link(0.001, 1e8, LinkKind.WIRED, 1.0, head="a", worker="b")
    assert Snapshot(links=(link,)).link("a", "b") == link
    assert Snapshot(links=(link,)).link("b", "a") is None


def test_a_virtual_machine_that_tells_no_cores_is_not_as_fast_as_a_whole_server():
    cpu = Cpu(model="AMD EPYC", cores=0, threads=2)
    speed = speed_of(Node("vm", reading=NodeReading(cpu=cpu)), None)
    assert (speed.bytes_per_second, speed.guessed) == (2 * ONE_CORE, True)
    assert speed.source.startswith("2 cores of 8 GB/s each")
