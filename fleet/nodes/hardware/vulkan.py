"""GPUs from vulkaninfo: the last resort, where neither llama.cpp nor a vendor's tool tells."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from fleet.model import Device, DeviceKind
from fleet.nodes.hardware.figures import label, whole

_MOST_GPUS = 16
_FIGURE = re.compile(r"^\s*(size|budget|usage)\s*=\s*([0-9]{1,19})\b")
_PROPERTY = re.compile(r"^\s*(deviceName|deviceType)\s*=\s*(.+)$")


@dataclass(slots=True)
class _Gpu:
    name: str = ""
    type: str = ""
    heaps: list[dict[str, int]] = field(default_factory=list)


def read_vulkaninfo(text: str) -> tuple[Device, ...]:
    """GPUs with the heap that is local to the device as their memory, the other heap as `gtt_total`.

    Renderers that run on the CPU (llvmpipe) are left out.
    """
    gpus: list[_Gpu] = []
    for line in text.split("\n")[:20000]:
        if match := _PROPERTY.match(line):
            if match[1] == "deviceName" or not gpus:
                gpus.append(_Gpu())
            if match[1] == "deviceName":
                gpus[-1].name = label(match[2])
            else:
                gpus[-1].type = match[2].strip()
        elif match := _FIGURE.match(line):
            if not gpus:
                gpus.append(_Gpu())
            if match[1] == "size":
                gpus[-1].heaps.append({})
            if gpus[-1].heaps and (amount := whole(match[2])) is not None:
                gpus[-1].heaps[-1].setdefault(match[1], amount)
        elif "MEMORY_HEAP_DEVICE_LOCAL_BIT" in line and gpus and gpus[-1].heaps:
            gpus[-1].heaps[-1]["local"] = 1
    found = []
    for gpu in gpus[:_MOST_GPUS]:
        if not gpu.heaps or gpu.type.endswith("_CPU") or "llvmpipe" in gpu.name.lower():
            continue
        found.append(_device(len(found), gpu))
    # As llama.cpp does it: an integrated GPU stands back where there is another one, and only there.
    if all(device.integrated for device in found):
        return tuple(replace(device, integrated=False) for device in found)
    return tuple(found)


def _device(place: int, gpu: _Gpu) -> Device:
    local = max((heap for heap in gpu.heaps if "local" in heap), key=lambda heap: heap.get("size", 0), default={})
    other = max((heap.get("size", 0) for heap in gpu.heaps if "local" not in heap), default=0)
    total = local.get("size") or None
    free = local.get("budget", local["size"] - local["usage"] if "size" in local and "usage" in local else None)
    if free is not None:
        free = max(0, min(free, total or 0)) if total else None
    return Device(
        f"Vulkan{place}", DeviceKind.VULKAN, gpu.name or "Vulkan GPU", memory_total=total, memory_free=free,
        integrated=gpu.type.endswith("INTEGRATED_GPU"), unified=gpu.type.endswith("INTEGRATED_GPU"),
        vram_total=total, gtt_total=other or None)
