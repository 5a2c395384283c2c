"""GPUs of Macs, from `system_profiler SPDisplaysDataType -json` and sysctl.

On Apple silicon Metal lets a process use a part of the main memory, its working set:
iogpu.wired_limit_mb where somebody set it, else about two thirds (up to 32 GiB) or three quarters.
llama.cpp's own list knows it exactly and is preferred; this is an estimate and says so.
"""

from __future__ import annotations

from dataclasses import replace

from fleet.model import Device, DeviceKind
from fleet.nodes.hardware.figures import GIB, MIB, inner, json_after_noise, label, size

_MOST_GPUS = 16


def working_set(memsize: int) -> int:
    """Bytes that Metal lets a process use of `memsize`, by rule of thumb."""
    return memsize * 3 // 4 if memsize > 32 * GIB else memsize * 2 // 3


def unified(devices: tuple[Device, ...]) -> tuple[Device, ...]:
    """llama.cpp's list with Apple's own GPUs marked: their memory is the main memory."""
    return tuple(replace(device, unified=True) if device.kind is DeviceKind.METAL and device.label.startswith("Apple")
                 else device for device in devices)


def read_system_profiler(text: str, memsize: int | None = None, wired_limit: int | None = None) -> tuple[Device, ...]:
    """GPUs as Metal sees them, those with their own memory first; integrated ones of Intel Macs last.

    `memsize` and `wired_limit` in bytes; None or 0 when not known or not set.
    """
    value, _ = json_after_noise(text)
    rows = inner(value, "SPDisplaysDataType")
    found: list[Device] = []
    for row in rows[:_MOST_GPUS] if isinstance(rows, list) else []:
        name = label(inner(row, "sppci_model")) or label(inner(row, "_name"))
        if not name:
            continue
        vram = next((amount for key in ("spdisplays_vram", "_spdisplays_vram", "spdisplays_vram_shared")
                     if (amount := size(inner(row, key), MIB))), None)
        vendor = (label(inner(row, "spdisplays_vendor")) + " " + name).lower()
        if "apple" in vendor:
            limit = wired_limit or (working_set(memsize) if memsize else None)
            found.append(Device("MTL0", DeviceKind.METAL, name, memory_total=limit, unified=True,
                                estimated=not wired_limit))
        else:
            found.append(Device("MTL0", DeviceKind.METAL, name, memory_total=vram,
                                integrated="intel" in vendor, vram_total=vram))
    found.sort(key=lambda device: device.integrated)
    return tuple(replace(device, name=f"MTL{place}") for place, device in enumerate(found))
