"""The devices that a head lists."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import StartFailed
from fleet.model import Binary, DeviceKind
from fleet.nodes.local import LocalTransport
from fleet.runtimes.binaries import bundled
from fleet.runtimes.devices import MIB, list_devices, parse_device_list

NODE = LocalTransport("here")
METAL = """load_backend: loaded RPC backend from /opt/llama/libggml-rpc.so
ggml_metal_device_init: recommendedMaxWorkingSetSize  = 28991.03 MB
Available devices:
  MTL0: Apple M1 Max (27648 MiB, 27647 MiB free)
  BLAS: Accelerate (0 MiB, 0 MiB free)
  RPC0: 10.20.0.14:50052 (24105 MiB, 23890 MiB free)
"""


def test_a_gpu_is_listed_and_noise_workers_and_blas_are_not():
    (device,) = parse_device_list(METAL)
    assert (device.name, device.kind, device.label) == ("MTL0", DeviceKind.METAL, "Apple M1 Max")
    assert (device.memory_total, device.memory_free) == (27648 * MIB, 27647 * MIB)


def test_several_makes_are_told_apart():
    text = ("Available devices:\n  CUDA0: NVIDIA GeForce RTX 3090 (24124 MiB, 23800 MiB free)\n"
            "  Vulkan0: AMD (RADV) (x) (98304 MiB, 97011 MiB free)\n  ROCm1: AMD (16 MiB, 16 MiB free)\n"
            "  CPU: EPYC (24105 MiB, 24105 MiB free)\n")
    assert [(d.name, d.kind) for d in parse_device_list(text)] == [
        ("CUDA0", DeviceKind.CUDA), ("Vulkan0", DeviceKind.VULKAN), ("ROCm1", DeviceKind.ROCM)]


@given(st.text(max_size=300))
def test_any_text_is_read_without_an_error(text: str):
    parse_device_list("Available devices:\n" + text)


async def test_a_program_that_lists_nothing_says_why(tmp_path: Path):
    program = tmp_path / "llama-server"
    program.write_text("#!/bin/sh\necho 'boom'; exit 134\n")
    program.chmod(0o755)
    with pytest.raises(StartFailed, match=r"status 134 .* It said: boom"):
        await list_devices(NODE, Binary(str(program), "llama-server"))


@pytest.mark.engine
async def test_a_real_head_lists_its_devices():
    folder = bundled()
    if folder is None:
        pytest.skip("the engine extra is not installed")
    devices = await list_devices(NODE, Binary(f"{folder}/llama-server", "llama-server"))
    assert all(device.memory_total for device in devices)
