"""How much of a model a worker's devices can take, by what is known of them before and after it runs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fleet.model import Device, DeviceKind, Node

RESERVE = 256 * 1024 * 1024   # bytes a device keeps free for its driver and what no plan knows of
UNKNOWN_ROOM = 1 << 50        # bytes: where nothing is known of a device, only the load itself can refuse


def worker_room(node: Node, vram: Mapping[str, int], devices: Sequence[str], *, sharing: int, index: int,
                told_free: int) -> int:
    """Bytes that a worker's device can take.

    A worker tells its free memory itself, but for a processor that is always the total
    (ggml-cpu reports free = total), so a processor's comes from the probe, divided among the workers that share it.
    """
    name = told_name(node, devices, index)
    if name in vram:
        return vram[name]
    if name == "CPU" or name not in {d.name for d in _gpus(node)}:
        available = node.reading.memory.available if node.reading else None
        return (told_free if available is None else min(told_free, available)) // max(1, sharing)
    return told_free


def expected_rooms(node: Node, vram: Mapping[str, int], devices: Sequence[str], *,
                   sharing: int) -> list[tuple[str, int]]:
    """The devices that a worker of `node` will most likely offer, and bytes that each can take at best.

    What services of ours hold there now counts as free: it may be theirs again. A plan that does not fit even so
    cannot work.
    """
    gpus = {device.name: device for device in _gpus(node)}
    names = tuple(devices) or tuple(gpus) or ("CPU",)
    held = held_by_ours(node)
    found = []
    for name in names:
        if name in vram:
            found.append((name, vram[name]))
        elif name in gpus and (size := gpus[name].memory_total if held else gpus[name].memory_free) is not None:
            found.append((name, size))
        elif node.reading is not None and (free := node.reading.memory.available) is not None:
            found.append((name, (free + held) // max(1, sharing)))
        else:
            found.append((name, UNKNOWN_ROOM))
    return found


def held_by_ours(node: Node) -> int:
    """Bytes of a node's main memory that services of ours fill now."""
    if node.reading is None:
        return 0
    pids = {record.pid for record in node.reading.services if record.alive}
    return sum(process.rss for process in node.reading.processes if process.pid in pids)


def _gpus(node: Node) -> list[Device]:
    return [d for d in (node.reading.devices if node.reading else ())
            if d.kind is not DeviceKind.CPU and not d.integrated]


def told_name(node: Node, devices: Sequence[str], index: int) -> str:
    """What the node calls the device that its worker tells of as number `index`: RPC knows no names."""
    if index < len(devices):
        return devices[index]
    gpus = _gpus(node)
    return gpus[index].name if index < len(gpus) else "CPU"
