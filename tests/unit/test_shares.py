"""From devices and their memory to shares and bytes."""

import pytest

from fleet.errors import PlanRefused
from fleet.model import Device, DeviceKind, Memory, Node, NodeReading, Process, ServiceKind, ServiceRecord
from fleet.models.gguf import GgufHeader, TensorInfo
from fleet.planning.shares import UNKNOWN_ROOM, Room, alone, expected_rooms, plan_shares, worker_room

GIB = 1 << 30


def header(layers=10, *, tied=False) -> GgufHeader:
    """A model of 1 GiB a layer, as much for the embedding and for the output."""
    names = ["token_embd.weight", *(f"blk.{number}.ffn.weight" for number in range(layers))]
    return GgufHeader(3, tensors=tuple(TensorInfo(name, (1,), "F16", 0, GIB)
                                       for name in (names if tied else [*names, "output.weight"])))


def node(*, ram=16 * GIB, gpu=None, free=None, held=0, told=True) -> Node:
    devices = (Device("CUDA0", DeviceKind.CUDA, memory_total=gpu, memory_free=free),) if gpu else ()
    record = ServiceRecord("worker-50052", ServiceKind.WORKER, 7, "t", ("w",), 50052, "10.0.0.3", True, 1.0, "/s")
    return Node("bolt", reading=NodeReading(
        memory=Memory(ram, ram) if told else Memory(), devices=devices, services=(record,) if held else (),
        processes=(Process(7, "t", "S", ("ggml-rpc-server",), rss=held),) if held else ()))


def test_layers_go_where_the_memory_is():
    split, shares = plan_shares(header(), [Room("RPC0", "bolt", "b:1", 4 * GIB), Room("RPC1", "cone", "c:1", 12 * GIB)],
                                gpu_layers=None, head="atlas")
    assert sum(split) == 11 and [s.layers for s in shares] == [3, 8, 0]
    assert [s.model_bytes for s in shares] == [3 * GIB, 8 * GIB, GIB]
    assert (shares[-1].node, shares[-1].device) == ("atlas", "CPU")


def test_what_does_not_fit_is_refused_with_figures():
    with pytest.raises(PlanRefused, match=r"bolt would have to hold 11\.0 GiB on RPC0, but has 8\.0 GiB free"):
        plan_shares(header(), [Room("RPC0", "bolt", "b:1", 8 * GIB)], gpu_layers=None, head="atlas")
    with pytest.raises(PlanRefused, match="No device has memory free for a single layer"):
        plan_shares(header(), [Room("RPC0", "bolt", "b:1", 1 << 20)], gpu_layers=None, head="atlas")


def test_a_part_may_stay_on_the_head():
    _, shares = plan_shares(header(), [Room("RPC0", "bolt", "b:1", 8 * GIB)], gpu_layers=6, head="atlas")
    assert [s.layers for s in shares] == [6, 5]
    assert shares[1].model_bytes == 6 * GIB, "five layers and the embedding"


def test_a_share_that_the_user_said_is_not_argued_with():
    rooms = [Room("RPC0", "bolt", "b:1", GIB, weight=1.0), Room("RPC1", "cone", "c:1", 64 * GIB, weight=0.0)]
    _, shares = plan_shares(header(), rooms, gpu_layers=None, head="atlas")
    assert [s.layers for s in shares[:2]] == [11, 0]


def test_alone_all_is_on_the_head_and_a_tied_embedding_counts_once():
    assert alone(header(), "atlas")[0].model_bytes == 12 * GIB
    assert alone(header(tied=True), "atlas")[0].model_bytes == 11 * GIB


def test_a_processor_that_claims_all_memory_is_not_believed():
    assert worker_room(node(ram=6 * GIB), {}, ("CPU",), sharing=2, index=0, told_free=64 * GIB) == 3 * GIB
    assert worker_room(node(gpu=24 * GIB, free=20 * GIB), {}, (), sharing=1, index=0, told_free=20 * GIB) == 20 * GIB
    assert worker_room(node(), {"CPU": GIB}, ("CPU",), sharing=1, index=0, told_free=64 * GIB) == GIB


@pytest.mark.parametrize(("known", "devices", "expected"), [
    (node(ram=6 * GIB), (), [("CPU", 6 * GIB)]),
    (node(ram=6 * GIB, held=2 * GIB), (), [("CPU", 8 * GIB)]),
    (node(gpu=24 * GIB, free=20 * GIB), (), [("CUDA0", 20 * GIB)]),
    (node(gpu=24 * GIB, free=2 * GIB, held=GIB), (), [("CUDA0", 24 * GIB)]),
    (node(gpu=24 * GIB, free=20 * GIB), ("CPU", "CUDA0"), [("CPU", 16 * GIB), ("CUDA0", 20 * GIB)]),
    (node(told=False), (), [("CPU", UNKNOWN_ROOM)]),
])
def test_what_a_worker_will_most_likely_offer(known, devices, expected):
    """Before it runs: what our own services hold may be theirs again, and what is not known refuses nothing."""
    assert expected_rooms(known, {}, devices, sharing=1) == expected


def test_a_wish_for_a_device_wins_and_workers_share_a_processor():
    assert expected_rooms(node(), {"CPU": GIB}, ("CPU",), sharing=2) == [("CPU", GIB)]
    assert expected_rooms(node(ram=6 * GIB), {}, ("CPU",), sharing=2) == [("CPU", 3 * GIB)]
