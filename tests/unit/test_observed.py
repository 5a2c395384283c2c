"""The speed of devices, learned from what a head has counted."""

from __future__ import annotations

import pytest

from fleet.events import SpeedsObserved
from fleet.facts import HeadFacts, head_facts
from fleet.model import Cpu, Device, DeviceKind, DeviceReads, Link, Node, NodeReading, ObservedSpeed, Snapshot
from fleet.planning.observed import observe
from fleet.planning.timing import WORKER_OVERHEAD, speed_of
from fleet.reduce import reduce

LINK = Link(0.005, 100e6, head="head", worker="a")


def fleet(*links: Link, gpu: str = "") -> Snapshot:
    device = (Device("CUDA0", DeviceKind.CUDA, gpu),) if gpu else ()
    return Snapshot(links=links, nodes={
        "head": Node("head", reading=NodeReading(cpu=Cpu("AMD EPYC", 2), devices=device)),
        "a": Node("a", reading=NodeReading(cpu=Cpu("AMD EPYC", 2)))})


def test_one_device_is_as_fast_as_its_tokens_say():
    found = observe(fleet(), "head", [DeviceReads("head", "CPU", 250_000_000)], 100, 2.5, 7.0)
    assert found == {"head": {"CPU": ObservedSpeed(pytest.approx(10e9), 100, 7.0)}}


def test_what_the_network_took_is_not_counted():
    reads = [DeviceReads("a", "CPU", 250_000_000, 1_000_000)]
    seconds = 0.025 + LINK.round_trip + WORKER_OVERHEAD + 0.01
    found = observe(fleet(LINK), "head", reads, 100, 100 * seconds, 7.0)
    assert found["a"]["CPU"].bytes_per_second == pytest.approx(10e9)


def test_equal_devices_share_what_is_left_equally_and_unequal_ones_by_what_is_known_of_them():
    reads = [DeviceReads("a", "CPU", 100_000_000, 2568), DeviceReads("head", "CPU", 150_000_000)]
    found = observe(fleet(LINK), "head", reads, 100, 100 * (0.025 + LINK.round_trip + WORKER_OVERHEAD), 7.0)
    assert found["a"]["CPU"].bytes_per_second == pytest.approx(found["head"]["CPU"].bytes_per_second)
    state = fleet(gpu="NVIDIA GeForce RTX 3090")
    found = observe(state, "head", [DeviceReads("head", "CUDA0", 10**9), DeviceReads("head", "CPU", 10**8)], 100, 1, 0)
    ratio = found["head"]["CUDA0"].bytes_per_second / found["head"]["CPU"].bytes_per_second
    assert ratio == pytest.approx(0.6 * 936e9 / 16e9)


@pytest.mark.parametrize(("tokens", "seconds", "reads", "links"), [
    (3, 1.0, [DeviceReads("head", "CPU", 10**9)], ()),                       # too few tokens
    (100, 0.0, [DeviceReads("head", "CPU", 10**9)], ()),
    (100, 1.0, [], ()),
    (100, 1.0, [DeviceReads("gone", "CPU", 10**9)], ()),
    (100, 1.0, [DeviceReads("a", "CPU", 10**9, 100)], ()),                   # a link that nobody measured
    (100, 0.75, [DeviceReads("a", "CPU", 10**9, 100)], (LINK,)),             # all of it was the network
])
def test_where_the_counters_say_too_little_nothing_is_claimed(tokens, seconds, reads, links):
    assert observe(fleet(*links), "head", reads, tokens, seconds, 0.0) == {}


def test_what_was_seen_is_remembered_by_node_and_device_and_used_for_plans():
    state = reduce(fleet(), SpeedsObserved(1.0, "head", {"CPU": ObservedSpeed(10e9, 100, 1.0)}))
    assert speed_of(state.nodes["head"], None).bytes_per_second == 10e9
    again = reduce(state, SpeedsObserved(2.0, "head", {"CUDA0": ObservedSpeed(500e9, 50, 2.0)}))
    assert again.nodes["head"].speeds.keys() == {"CPU", "CUDA0"}
    assert reduce(state, SpeedsObserved(2.0, "nobody", {})) is state


def test_what_each_device_reads_is_written_beside_the_head_and_read_without_trust():
    reads = (DeviceReads("a", "CPU", 5, 6), DeviceReads("head", "CUDA0", 7))
    assert head_facts(HeadFacts(reads=reads).to_json()).reads == reads
    assert head_facts({"reads": [{"node": 1, "bytes_read": -5, "sends_bytes": "x"}, "y"]}).reads == (
        DeviceReads("", "", 0, 0),)
