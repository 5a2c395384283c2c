"""The devices of a machine as its own llama-server lists them: the names and sizes that a split is made of."""

from __future__ import annotations

import re

from fleet.errors import CommandTimeout, StartFailed
from fleet.model import Binary, Device, DeviceKind
from fleet.nodes.transport import Transport

LIST_LIMIT = 64 * 1024       # bytes of output that are read
MIB = 1024 * 1024

_SCRIPT = 'exec "$1" --list-devices </dev/null 2>&1'
_DEVICE = re.compile(r"^\s+([A-Za-z][\w.-]{0,31}): (.{0,200}) \((\d{1,9}) MiB, (\d{1,9}) MiB free\)\s*$")
_KINDS = {"CUDA": DeviceKind.CUDA, "ROCm": DeviceKind.ROCM, "HIP": DeviceKind.ROCM, "MTL": DeviceKind.METAL,
          "Metal": DeviceKind.METAL, "Vulkan": DeviceKind.VULKAN, "CPU": DeviceKind.CPU}


def parse_device_list(text: str) -> tuple[Device, ...]:
    """Devices of `--list-devices`, GPUs alone: no processor, no worker's, none without memory (BLAS)."""
    devices = []
    for line in text[:LIST_LIMIT].partition("Available devices:")[2].splitlines():
        match = _DEVICE.match(line)
        if match is None:
            continue
        name, label, total, free = match[1], match[2], int(match[3]), int(match[4])
        kind = next((kind for start, kind in _KINDS.items() if name.startswith(start)), None)
        if kind in (None, DeviceKind.CPU) or total == 0:
            continue
        devices.append(Device(name, kind, label, total * MIB, free * MIB))
    return tuple(devices)


async def list_devices(transport: Transport, binary: Binary, *, timeout: float = 20.0) -> tuple[Device, ...]:
    """The GPUs that this llama-server would use on its node; () when it has none.

    Raises:
        StartFailed: it does not run there.
        NodeError: the node does not answer.
    """
    try:
        done = await transport.run(_SCRIPT, (binary.path,), timeout=timeout, limit=LIST_LIMIT)
    except CommandTimeout as error:
        raise StartFailed(f"{binary.path} on {transport.name} did not list its devices within {timeout:.0f} s.",
                          "Run it there with --list-devices: a GPU driver that hangs does this.") from error
    if "Available devices:" not in done.text:
        last = next((line.strip() for line in reversed(done.text.splitlines()) if line.strip()), "nothing")
        raise StartFailed(f"{binary.path} --list-devices on {transport.name} ended with status {done.status} and "
                          f"listed no devices. It said: {last[:200]}", "Run it there by hand: does it start?")
    return parse_device_list(done.text)
