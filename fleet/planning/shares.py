"""The planned placement of a model: from devices and their memory to shares, layers and bytes. Pure.

A first, memory-proportional split: layers in proportion to what each device can hold. A planner that also weighs
speed and links builds on this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fleet.errors import PlanRefused
from fleet.model import Device, DeviceKind, Node, Share
from fleet.models.gguf import GgufHeader
from fleet.planning.split import fractions, layer_map, layers_by_weight

RESERVE = 256 * 1024 * 1024   # bytes a device keeps free: compute buffers and the driver (gemma-3-270m took 62 MiB)
GIB = 1024 ** 3
UNKNOWN_ROOM = 1 << 50        # bytes: where nothing is known of a device, only the worker itself can refuse


@dataclass(frozen=True, slots=True)
class Room:
    """A device that can take layers, as the head will name it."""

    device: str                # "RPC0", "CUDA0"
    node: str
    endpoint: str = ""         # of the worker it is on; "" = on the head
    free: int = 0              # bytes
    weight: float | None = None   # the user's own share, where fleet.yaml has one


def plan_shares(header: GgufHeader, rooms: Sequence[Room], *, gpu_layers: int | None,
                head: str) -> tuple[tuple[int, ...], tuple[Share, ...]]:
    """The tensor split (whole layer counts, one a room) and what it puts where.

    Raises:
        PlanRefused: the model does not fit.
    """
    weights = [room.weight if room.weight is not None else max(0.0, float(room.free - RESERVE)) for room in rooms]
    if not any(weights):
        raise PlanRefused("No device has memory free for a single layer.", "Free memory, or name other workers.")
    split = layers_by_weight(header.n_layers, weights)
    layers = header.n_layers + 1 if gpu_layers is None else gpu_layers
    dealt = layer_map(header.n_layers, split, layers)
    parts = fractions(split)
    shares = []
    for index, room in enumerate(rooms):
        mine = [layer for layer, device in enumerate(dealt) if device == index]
        size = sum(bytes_of(header, layer) for layer in mine)
        if room.weight is None and size > room.free:
            raise PlanRefused(f"{room.node} would have to hold {size / GIB:.1f} GiB on {room.device}, but has "
                              f"{room.free / GIB:.1f} GiB free.", "Add a worker, take a smaller quantisation, or set "
                              "`split:` of the model yourself.")
        shares.append(Share(room.node, room.device, room.endpoint, fraction=parts[index], layers=len(mine),
                            model_bytes=size))
    local = [layer for layer, device in enumerate(dealt) if device < 0]
    head_bytes = header.input_bytes + sum(bytes_of(header, layer) for layer in local)
    shares.append(Share(head, "CPU", layers=len(local), model_bytes=head_bytes))
    return split, tuple(shares)


def bytes_of(header: GgufHeader, layer: int) -> int:
    """Bytes of a layer's tensors; the layer after the last is the output layer."""
    return header.layer_bytes[layer] if layer < header.n_layers else header.output_bytes


def alone(header: GgufHeader, head: str) -> tuple[Share, ...]:
    """The placement of a head with no worker and no GPU: all on its processor."""
    size = header.input_bytes + sum(header.layer_bytes) + (0 if header.tied_output else header.output_bytes)
    return (Share(head, "CPU", fraction=1.0, layers=header.n_layers + 1, model_bytes=size),)


def worker_room(node: Node, vram: Mapping[str, int], devices: Sequence[str], *, sharing: int, index: int,
                told_free: int) -> int:
    """Bytes that a worker's device can take.

    A worker tells its free memory itself, but for a processor that is always the total
    (ggml-cpu reports free = total), so a processor's comes from the probe, divided among the workers that share it.
    """
    name = devices[index] if index < len(devices) else _device_name(node, index)
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
    held = 0
    if node.reading is not None:
        pids = {record.pid for record in node.reading.services if record.alive}
        held = sum(process.rss for process in node.reading.processes if process.pid in pids)
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


def _gpus(node: Node) -> list[Device]:
    return [d for d in (node.reading.devices if node.reading else ())
            if d.kind is not DeviceKind.CPU and not d.integrated]


def _device_name(node: Node, index: int) -> str:
    gpus = _gpus(node)
    return gpus[index].name if index < len(gpus) else "CPU"
