"""AMD, Apple, Vulkan and llama.cpp's own list; and how they come together."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.model import Cpu, Device, DeviceKind, Memory
from fleet.nodes.hardware import amd, apple, figures, nvidia, vulkan
from fleet.nodes.hardware.devices import Told, assemble
from fleet.runtimes.devices import parse_device_list

DATA = Path(__file__).parents[1] / "data" / "gpu"
GIB, MIB = 1 << 30, 1 << 20
MEMORY = Memory(64 * GIB, 48 * GIB)


def listed_devices(text: str) -> tuple[Device, ...]:
    return apple.unified(parse_device_list(text))


def read(name: str) -> str:
    return (DATA / name).read_text(encoding="utf-8")


def test_a_warning_before_the_json_is_kept_as_a_note():
    (gpu,), (note,) = amd.read_rocm_smi(read("rocm_smi_lowpower_prefix.txt"))
    assert (gpu.name, gpu.kind) == ("ROCm0", DeviceKind.ROCM)
    assert gpu.memory_total == 21458059264 and gpu.memory_free == 21458059264 - 28995584
    assert not gpu.unified and "low-power" in note.what


def test_lines_before_the_json_are_skipped():
    (gpu,), notes = amd.read_rocm_smi(read("rocm_smi_lines_before_json.txt"))
    assert gpu.memory_total is None and gpu.utilisation == 0.12 and gpu.power == 48.0 and notes == ()


def test_no_json_is_no_gpu_and_no_crash():
    assert amd.read_rocm_smi(read("rocm_smi_no_json.txt")) == ((), ())


def test_an_apu_can_use_its_carve_out_and_what_it_maps():
    (gpu,), _ = amd.read_rocm_smi(read("rocm_smi_strix_halo_gtt.json"))
    assert gpu.unified and (gpu.vram_total, gpu.gtt_total) == (4 * GIB, 96 * GIB)
    assert gpu.memory_total == 100 * GIB
    assert gpu.memory_free == 4294967296 - 352321536 + 103079215104 - 61203283968


def test_the_gtt_of_a_card_is_shown_and_not_counted():
    row = ('{"card0": {"Card Series": "Radeon RX 7600", "VRAM Total Memory (B)": "8589934592", '
           '"VRAM Total Used Memory (B)": "0", '
           '"GTT Total Memory (B)": "34359738368", "GTT Total Used Memory (B)": "0"}}')
    (gpu,), _ = amd.read_rocm_smi(row)
    assert (gpu.memory_total, gpu.gtt_total, gpu.unified, gpu.label) == (8 * GIB, 32 * GIB, False, "Radeon RX 7600")


def test_sysfs_tells_an_apu_from_a_card():
    text = ("card0 8589934592 1073741824 34359738368 0 12 45000 30000000 no \n"
            "card1 4294967296 0 103079215104 1073741824 - 51000 - yes Radeon 8060S\ncard2 garbage\n")
    card, apu = amd.read_cards(text)
    assert (card.name, card.memory_total, card.memory_free, card.unified) == ("ROCm0", 8 * GIB, 7 * GIB, False)
    assert (card.utilisation, card.temperature, card.power) == (0.12, 45.0, 30.0)
    assert (apu.name, apu.memory_total, apu.memory_free, apu.unified) == ("ROCm1", 100 * GIB, 99 * GIB, True)
    assert apu.utilisation is None and apu.label == "Radeon 8060S"


def test_amd_smi_leaves_may_be_of_any_type():
    (gpu,), (note,) = amd.read_amd_smi(read("amd_smi_header_noise.txt"))
    assert gpu.memory_total == (512 + 63488) * MIB and gpu.memory_free is None    # used_gtt is "N/A"
    assert gpu.utilisation == 0.04 and gpu.power is None
    assert "groups" in note.what and "usermod" in note.remedy


def test_apple_silicon_without_any_figure_is_unified_and_estimated():
    (gpu,) = apple.read_system_profiler(read("system_profiler_apple_silicon.json"), 64 * GIB)
    assert (gpu.name, gpu.label, gpu.kind) == ("MTL0", "Apple M3 Max", DeviceKind.METAL)
    assert gpu.unified and gpu.estimated and gpu.memory_total == 48 * GIB
    (small,) = apple.read_system_profiler(read("system_profiler_apple_silicon.json"), 24 * GIB)
    assert small.memory_total == 16 * GIB
    (set_by_hand,) = apple.read_system_profiler(read("system_profiler_apple_silicon.json"), 64 * GIB, 60 * GIB)
    assert set_by_hand.memory_total == 60 * GIB and not set_by_hand.estimated
    (unknown,) = apple.read_system_profiler(read("system_profiler_apple_silicon.json"))
    assert unknown.memory_total is None


def test_an_intel_mac_has_its_card_first_and_its_integrated_gpu_stands_back():
    card, integrated = apple.read_system_profiler(read("system_profiler_intel_dual.json"), 16 * GIB)
    assert (card.name, card.label) == ("MTL0", "AMD Radeon Pro 5300M")
    assert (card.memory_total, card.integrated) == (4 * GIB, False)
    assert (integrated.memory_total, integrated.integrated) == (1536 * MIB, True)


def test_llama_cpp_lists_devices_between_noise():
    (gpu,) = listed_devices(read("list_devices_metal_rpc.txt"))
    assert (gpu.name, gpu.label, gpu.kind, gpu.unified) == ("MTL0", "Apple M1 Max", DeviceKind.METAL, True)
    assert (gpu.memory_total, gpu.memory_free) == (27648 * MIB, 27647 * MIB)


def test_llama_cpps_figures_win_over_those_of_system_profiler():
    listed = listed_devices(read("list_devices_metal_rpc.txt"))
    guessed = apple.read_system_profiler(read("system_profiler_apple_silicon.json"), 32 * GIB)
    gpu, _ = assemble(Told(guessed, listed, full=True), (), Cpu(), Memory(32 * GIB, 20 * GIB))
    assert gpu.memory_total == 27648 * MIB and not gpu.estimated
    assert gpu.memory_free == 20 * GIB         # what Metal may use of a memory that others use as well


def test_the_device_local_heap_is_the_memory_and_the_other_is_shown():
    (gpu,) = vulkan.read_vulkaninfo(read("vulkaninfo_strix_heaps.txt"))
    assert (gpu.name, gpu.memory_total, gpu.memory_free) == ("Vulkan0", 79920742400, 79113216000)
    assert (gpu.vram_total, gpu.gtt_total) == (79920742400, 39963328512)


def test_a_renderer_on_the_cpu_is_no_gpu():
    heading = "\tdeviceType = PHYSICAL_DEVICE_TYPE_CPU\n\tdeviceName = llvmpipe (LLVM 15)\n"
    assert vulkan.read_vulkaninfo(heading + read("vulkaninfo_strix_heaps.txt")) == ()


def test_names_that_llama_cpp_gave_stay_while_figures_move():
    listed = listed_devices(
        "Available devices:\n  CUDA0: NVIDIA GeForce RTX 4090 (24000 MiB, 23000 MiB free)\n"
        "  CUDA1: NVIDIA GeForce RTX 3060 (12000 MiB, 11000 MiB free)\n")
    rows = ("0, NVIDIA GeForce RTX 3060, 12288, 288, 12000, 1, 40, 20\n"
            "1, NVIDIA GeForce RTX 4090, 24564, 20564, 4000, 50, 70, 300\n")
    first = assemble(Told(nvidia.read_query(rows), listed, full=True), (), Cpu(), MEMORY)
    assert [(d.name, d.memory_total, d.utilisation) for d in first[:2]] == [
        ("CUDA0", 24000 * MIB, 0.5), ("CUDA1", 12000 * MIB, 0.01)]
    second = assemble(Told(nvidia.read_query(rows)), first, Cpu(), MEMORY)
    assert [(d.name, d.memory_free) for d in second[:2]] == [("CUDA0", 4000 * MIB), ("CUDA1", 12000 * MIB)]


def test_a_tool_that_is_silent_for_once_takes_no_gpu_away_but_a_full_probe_does():
    told = nvidia.read_query("0, NVIDIA GB10, 1024, 0, 1024, 1, 40, 20\n")
    first = assemble(Told(told, full=True), (), Cpu(), MEMORY)
    assert [d.name for d in assemble(Told(()), first, Cpu(), MEMORY)] == ["CUDA0", "CPU"]
    assert [d.name for d in assemble(Told((), full=True), first, Cpu(), MEMORY)] == ["CPU"]


def test_a_mixed_machine_has_unknown_gpus_of_one_vendor_beside_known_ones_of_another():
    cards = amd.read_cards("card0 8589934592 0 0 0 1 40000 10000000 no RX 6600\n")
    both = nvidia.read_query("0, NVIDIA GeForce RTX 3060, 12288, 288, 12000, 1, 40, 20\n") + cards
    assert [d.name for d in assemble(Told(both, full=True), (), Cpu(), MEMORY)] == ["CUDA0", "ROCm0", "CPU"]


JUNK = st.one_of(st.text(max_size=300), st.sampled_from(sorted(DATA.iterdir())).flatmap(
    lambda path: st.builds(lambda cut, junk, at: path.read_text()[:cut] + junk + path.read_text()[at:],
                           st.integers(0, 900), st.text(max_size=20), st.integers(0, 900))))


@pytest.mark.filterwarnings("error")
@given(JUNK)
def test_no_text_whatsoever_breaks_a_reader(text: str):
    for read_it in (amd.read_cards, amd.read_rocm_smi, amd.read_amd_smi, vulkan.read_vulkaninfo, nvidia.read_query,
                    nvidia.read_compute_apps, apple.read_system_profiler, listed_devices):
        read_it(text)
    nvidia.with_slices(nvidia.read_query(text), text)
    nvidia.failure(text, 1)


KEYS = ["card0", "gpu", "mem_usage", "total_vram", "value", "unit", "usage", "gfx_activity", "SPDisplaysDataType",
        "_name", "spdisplays_vram", "asic", "market_name", "gpu_data", "VRAM Total Memory (B)", "Card Series"]


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
                        st.sampled_from(KEYS), inner, max_size=4),
                    max_leaves=12))
def test_no_json_whatsoever_breaks_a_reader(value: object):
    text = json.dumps(value)
    amd.read_rocm_smi(text)
    amd.read_amd_smi(text, text)
    apple.read_system_profiler(text, 1 << 34)


def test_deep_and_huge_json_is_refused():
    assert figures.json_after_noise("[" * 100_000)[0] is None
    assert amd.read_rocm_smi('{"card0": {"VRAM Total Memory (B)": ' + "9" * 5000 + "}}") == ((), ())
    (gpu,), _ = amd.read_rocm_smi('{"card0": {"VRAM Total Memory (B)": 1e400, "GPU use (%)": NaN}}')
    assert gpu.memory_total is None and gpu.utilisation is None
