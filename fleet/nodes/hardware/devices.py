"""All that was said of a machine's GPUs, brought together: the devices as llama.cpp would list them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fleet.model import Cpu, Device, DeviceKind, Memory, Problem

_COMMON_WORDS = frozenset({"nvidia", "amd", "graphics", "radeon"})


@dataclass(frozen=True, slots=True)
class Told:
    """What the sources said. None: a source was not asked this time."""

    vendors: tuple[Device, ...] | None = None        # nvidia-smi, amdgpu, system_profiler
    listed: tuple[Device, ...] | None = None         # llama-server --list-devices
    vulkan: tuple[Device, ...] | None = None         # vulkaninfo
    full: bool = False                               # a full probe: what no source names is not there


def assemble(told: Told, before: Sequence[Device], cpu: Cpu, memory: Memory) -> tuple[Device, ...]:
    """The devices of a node, the CPU last.

    llama.cpp's own list gives names and totals, for good: it is asked once for each program, so
    what it said before stays and only takes its figures of the moment from the vendor's tool. A GPU
    that a vendor's tool no longer shows is gone.
    """
    gpus = [device for device in before if device.kind is not DeviceKind.CPU]
    vendors = told.vendors
    if told.listed:
        gpus = _refreshed(told.listed, vendors or (), trusted=True)
    elif vendors:
        same = sorted(map(_key, vendors)) == sorted(map(_key, gpus))
        gpus = _refreshed(gpus, vendors) if same else list(vendors)
    elif told.vulkan or told.listed is not None:
        gpus = list(told.vulkan or ())
    elif vendors is not None and told.full:
        # A tool that had told of them before tells of none now.
        gpus = [device for device in gpus if device.utilisation is None and device.temperature is None]
    return (*(_in_main_memory(device, memory) for device in gpus), _cpu(cpu, memory))


def _key(device: Device) -> str:
    """A name to match by: llama.cpp and the tools spell one GPU in slightly different ways."""
    text = re.sub(r"\(.*?\)", " ", device.label.lower())
    return " ".join(word for word in re.findall(r"[a-z0-9]+", text) if word not in _COMMON_WORDS)


def _refreshed(known: Sequence[Device], vendors: Sequence[Device], *, trusted: bool = False) -> list[Device]:
    """`known` with the vendor's figures; `trusted`: its memory was read just now, by llama.cpp itself."""
    left = list(vendors)
    result = []
    for device in known:
        match = next((other for other in left if _key(other) == _key(device)), None)
        if match is None and len(known) == len(vendors) and left:
            match = left[0]
        if match is None:
            result.append(device)
            continue
        left.remove(match)
        total = device.memory_total or match.memory_total
        free = device.memory_free if trusted and device.memory_free is not None else match.memory_free
        if free is not None and total is not None:
            free = min(free, total)
        result.append(replace(
            device, memory_total=total, memory_free=free, unified=device.unified or match.unified,
            estimated=device.estimated and match.estimated, integrated=match.integrated, vram_total=match.vram_total,
            gtt_total=match.gtt_total, utilisation=match.utilisation, temperature=match.temperature, power=match.power,
            problems=match.problems))
    return result


def _in_main_memory(device: Device, memory: Memory) -> Device:
    """A unified GPU has what main memory has: its own figures where it has any, bounded by it."""
    if not device.unified:
        return device
    total = device.memory_total or memory.total
    free = device.memory_free if device.kind is DeviceKind.ROCM else None
    if memory.available is not None:
        limit = memory.available + (device.vram_total or 0)     # a carve-out is no part of main memory
        free = limit if free is None else min(free, limit)
    if free is not None and total is not None:
        free = min(free, total)
    return replace(device, memory_total=total, memory_free=free)


def _cpu(cpu: Cpu, memory: Memory) -> Device:
    return Device("CPU", DeviceKind.CPU, cpu.model or "CPU", memory_total=memory.total, memory_free=memory.available)


def problems_of(devices: Sequence[Device]) -> tuple[Problem, ...]:
    """What is wrong with single devices, for the node's own list."""
    return tuple(problem for device in devices for problem in device.problems)
