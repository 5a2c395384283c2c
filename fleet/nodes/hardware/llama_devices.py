"""What llama.cpp itself lists: `llama-server --list-devices`. Names and memory are trusted over any tool's."""

from __future__ import annotations

import re

from fleet.model import Device, DeviceKind
from fleet.nodes.hardware.figures import MIB, label, whole

_ROW = re.compile(r"^\s*([A-Za-z][A-Za-z0-9_-]{0,31}): (.{1,300}) \(([0-9]{1,12}) MiB, ([0-9]{1,12}) MiB free\)\s*$")
_KINDS = {"CUDA": DeviceKind.CUDA, "ROCM": DeviceKind.ROCM, "HIP": DeviceKind.ROCM, "MTL": DeviceKind.METAL,
          "METAL": DeviceKind.METAL, "VULKAN": DeviceKind.VULKAN, "CPU": DeviceKind.CPU}
_MOST = 64


def read_list_devices(text: str) -> tuple[Device, ...]:
    """The devices of this machine, in llama.cpp's order.

    Left out: noise lines, devices of no memory (BLAS), those of other machines (RPC), the CPU (which
    comes from elsewhere) and backends that we have no word for.
    """
    devices: list[Device] = []
    for line in text.split("\n")[:4096]:
        match = _ROW.match(line)
        if not match:
            continue
        total, free = whole(match[3]), whole(match[4])
        kind = _KINDS.get(match[1].rstrip("0123456789").upper())
        if kind is None or kind is DeviceKind.CPU or not total or len(devices) >= _MOST:
            continue
        devices.append(Device(
            match[1], kind, label(match[2]), memory_total=total * MIB,
            memory_free=min(free or 0, total) * MIB, unified=kind is DeviceKind.METAL and "Apple" in match[2]))
    return tuple(devices)
