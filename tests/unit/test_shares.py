"""How much the devices of a worker can take."""

import pytest

from fleet.model import Device, DeviceKind, Memory, Node, NodeReading, Process, ServiceKind, ServiceRecord
from fleet.planning.shares import UNKNOWN_ROOM, expected_rooms, worker_room

GIB = 1 << 30


def node(*, ram=16 * GIB, gpu=None, free=None, held=0, told=True) -> Node:
    devices = (Device("CUDA0", DeviceKind.CUDA, memory_total=gpu, memory_free=free),) if gpu else ()
    record = ServiceRecord("worker-50052", ServiceKind.WORKER, 7, "t", ("w",), 50052, "10.0.0.3", True, 1.0, "/s")
    return Node("bolt", reading=NodeReading(
        memory=Memory(ram, ram) if told else Memory(), devices=devices, services=(record,) if held else (),
        processes=(Process(7, "t", "S", ("ggml-rpc-server",), rss=held),) if held else ()))


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
