"""The devices of a fleet that can take layers: how much each may hold, how fast it is, what lies between. Pure.

Memory, in this order: what the user says (`vram:`), what the worker itself tells once it runs (but not for a
processor, which always tells its total), what the probe read. VRAM and GTT, Metal's working set and unified memory are
already summed and told apart by the probe; what is one memory under two names is counted once here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fleet.config.schema import FleetConfig
from fleet.model import Device, DeviceKind, Interface, Link, LinkKind, Node, Snapshot
from fleet.models.gguf import GgufHeader
from fleet.planning.choose import Choice, node_config
from fleet.planning.shares import RESERVE, UNKNOWN_ROOM, expected_rooms, held_by_ours
from fleet.planning.timing import Speed, speed_of

_WIRED = (0.0005, 112e6)       # seconds, bytes a second: gigabit Ethernet over a home switch
_ASSUMED = {LinkKind.LOOPBACK: (0.0001, 2e9), LinkKind.WIRED: _WIRED, LinkKind.WIFI: (0.004, 25e6),
            LinkKind.VPN: (0.01, 20e6)}
_USABLE = 0.9                  # of a cable's bits: the rest is headers


@dataclass(frozen=True, slots=True)
class Room:
    """One device that can take layers."""

    node: str
    device: str                    # as its own node names it: "CUDA0", "CPU"
    worker: int | None             # which worker of the choice it is on, by number; None = the head itself
    limit: int                     # bytes that may be filled, the reserve included
    speed: Speed
    reserve: int = RESERVE
    link: Link | None = None       # to the head; None = it is a device of the head itself
    label: str = ""                # "NVIDIA GeForce RTX 3060"
    source: str = ""               # who says how much it may hold: "fleet.yaml", "worker", "probe"
    named: bool = False            # the user named its node as a worker: it takes part
    weight: float | None = None    # the user's own share

    @property
    def where(self) -> str:
        """For sentences."""
        return f"{self.device} on {self.node}"


@dataclass(frozen=True, slots=True)
class Rooms:
    """All of them: the head's processor, and the others in the order in which layers are dealt."""

    host: Room
    devices: tuple[Room, ...] = ()
    left_out: tuple[str, ...] = ()     # sentences


def rooms_expected(snapshot: Snapshot, config: FleetConfig, choice: Choice, header: GgufHeader, *,
                   local: Sequence[tuple[str, int]] | None = None,
                   without: frozenset[tuple[str, str]] = frozenset()) -> Rooms:
    """The devices before anything runs, by what the probes saw.

    Workers come first in the order of the choice, then the head's own GPUs: the last device has the output layer,
    whose logits are then already where they are wanted.

    Args:
        local: the head's GPUs and bytes free of each, as its llama-server lists them; None = as the probe lists them.
        without: (node, device) to leave out; device "" = all of a node's workers and GPUs.
    """
    head = choice.head
    devices: list[Room] = []
    for number, worker in enumerate(choice.workers):
        node = worker.node
        sharing = sum(1 for other in choice.workers if other.node.name == node.name)
        own = node_config(config, node)
        for name, free in expected_rooms(node, own.vram, worker.config.devices, sharing=sharing):
            devices.append(room_of(node, name, number, own.vram, free, link_of(snapshot, head, node), choice))
    own = node_config(config, head)
    listed = local if local is not None else local_gpus(head)
    devices += [room_of(head, name, None, own.vram, free, None, choice) for name, free in listed]
    devices = [room for room in devices if not {(room.node, room.device), (room.node, "")} & without]
    return together(head, own.vram, weighted(devices, choice.model.split), header)


def weighted(devices: Sequence[Room], split: Mapping[str, float]) -> tuple[Room, ...]:
    """The devices with the shares that fleet.yaml gives their nodes, where it gives any."""
    if not split:
        return tuple(devices)
    counts = {room.node: sum(1 for other in devices if other.node == room.node) for room in devices}
    return tuple(replace(room, weight=split.get(room.node, 0.0) / counts[room.node]) for room in devices)


def together(head: Node, vram: Mapping[str, int], devices: tuple[Room, ...], header: GgufHeader) -> Rooms:
    """The devices and the head's processor, with memory that several of them share counted once.

    The head's main memory also holds the model's input (and is what a GPU with unified memory uses).
    """
    devices = _each_once(devices)
    memory = head.reading.memory if head.reading else None
    available = vram.get("CPU")
    if available is None and memory is not None and memory.available is not None:
        available = memory.available + held_by_ours(head)
    left = max(0, available - header.input_bytes) if available is not None else None
    workers = sum(1 for room in devices if room.node == head.name and device_of(head, room.device) is None)
    part = None if left is None else left // (workers + 1)      # of main memory, for each that computes on it
    shared = []
    for room in devices:
        if left is not None and part is not None and room.node == head.name and _uses_main_memory(head, room.device):
            most = part if device_of(head, room.device) is None else left
            limit = room.limit if room.source == "fleet.yaml" else min(room.limit, most)
            left = max(0, left - limit)
            room = replace(room, limit=limit)
        shared.append(room)
    host = Room(head.name, "CPU", None, left if left is not None else UNKNOWN_ROOM, speed_of(head, None),
                0 if "CPU" in vram else RESERVE, label=head.reading.cpu.model if head.reading else "",
                source="fleet.yaml" if "CPU" in vram else "probe")
    return Rooms(host, tuple(shared))


def _each_once(devices: tuple[Room, ...]) -> tuple[Room, ...]:
    """A GPU that is offered twice, by two workers or by the head and a worker beside it, holds what it holds once.

    The head itself comes first (no wire), then the first worker. Processors are divided among their workers already.
    """
    first: dict[tuple[str, str], Room] = {}
    for room in sorted(devices, key=lambda room: room.worker is not None):
        first.setdefault((room.node, room.device), room)
    return tuple(room if room.device == "CPU" or first[room.node, room.device] is room
                 else replace(room, limit=0, named=False) for room in devices)


def room_of(node: Node, name: str, worker: int | None, vram: Mapping[str, int], free: int, link: Link | None,
            choice: Choice) -> Room:
    """A device of a node; `free` bytes are what it can hold where the user says nothing."""
    device = device_of(node, name)
    pinned = name in vram
    return Room(node.name, name, worker, vram.get(name, free), speed_of(node, device), 0 if pinned else RESERVE, link,
                device.label if device else (node.reading.cpu.model if node.reading else ""),
                "fleet.yaml" if pinned else "probe",
                worker is not None and choice.model.workers is not None)


def device_of(node: Node, name: str) -> Device | None:
    """A node's GPU by the name that llama.cpp gives it; None for its processor."""
    devices = node.reading.devices if node.reading else ()
    return next((d for d in devices if d.name == name and d.kind is not DeviceKind.CPU), None)


def local_gpus(head: Node) -> list[tuple[str, int]]:
    """The head's own GPUs and what each can take; what services of ours hold there now may be its again."""
    reading = head.reading
    if reading is None:
        return []
    held = any(record.alive for record in reading.services)
    found = [(d.name, d.memory_total if held else d.memory_free) for d in reading.devices
             if d.kind is not DeviceKind.CPU and not d.integrated]
    return [(name, size) for name, size in found if size]


def _uses_main_memory(node: Node, name: str) -> bool:
    device = device_of(node, name)
    return device is None or device.unified or bool(node.reading and node.reading.memory.unified)


# ---------------------------------------------------------------------------------------------
# Links


def link_of(snapshot: Snapshot, head: Node, worker: Node) -> Link:
    """The way between two nodes: as measured, or what their interfaces let expect."""
    measured = snapshot.link(head.name, worker.name)
    return measured if measured is not None else assumed_link(head, worker)


def assumed_link(head: Node, worker: Node) -> Link:
    """A link that was never measured: of the kind that the slower end has, with that kind's usual figures."""
    if head.name == worker.name:
        return _assumed(LinkKind.LOOPBACK, None, head, worker)
    ends = [_best(node) for node in (head, worker)]
    order = tuple(LinkKind)
    kind = max((end.kind for end in ends if end), key=order.index, default=LinkKind.UNKNOWN)
    speeds = [end.speed for end in ends if end and end.speed]
    return _assumed(kind, min(speeds) if speeds and kind is LinkKind.WIRED else None, head, worker)


def _assumed(kind: LinkKind, bits: int | None, head: Node, worker: Node) -> Link:
    round_trip, rate = _ASSUMED.get(kind, _WIRED)
    return Link(round_trip, bits / 8 * _USABLE if bits else rate, kind, head=head.name, worker=worker.name)


def _best(node: Node) -> Interface | None:
    """The interface that RPC will most likely use."""
    order = tuple(LinkKind)
    usable = [i for i in (node.reading.interfaces if node.reading else ())
              if i.up and i.addresses and i.kind in (LinkKind.WIRED, LinkKind.WIFI, LinkKind.VPN)]
    return min(usable, key=lambda interface: order.index(interface.kind), default=None)
