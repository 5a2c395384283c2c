"""What nvidia-smi prints, in its many moods."""

from pathlib import Path

import pytest

from fleet.model import Cpu, DeviceKind, Memory
from fleet.nodes.hardware import nvidia
from fleet.nodes.hardware.devices import Told, assemble

DATA = Path(__file__).parents[1] / "data" / "gpu"
MIB = 1024 * 1024


def read(name: str) -> str:
    return (DATA / name).read_text(encoding="utf-8")


def test_a_gpu_without_memory_of_its_own_stays_and_is_unified():
    (gpu,) = nvidia.read_query(read("nvidia_smi_gb10_unified_na.csv"))
    assert (gpu.name, gpu.label, gpu.kind) == ("CUDA0", "NVIDIA GB10", DeviceKind.CUDA)
    assert gpu.unified and gpu.memory_total is None and gpu.memory_free is None
    assert gpu.utilisation == pytest.approx(0.07) and gpu.temperature == 43 and gpu.power == pytest.approx(11.2)


def test_the_memory_of_a_unified_gpu_is_the_main_memory():
    gpus = nvidia.read_query(read("nvidia_smi_gb10_unified_na.csv"))
    gpu, cpu = assemble(Told(gpus, full=True), (), Cpu("Cortex-X925"), Memory(128 << 30, 90 << 30))
    assert (gpu.memory_total, gpu.memory_free, gpu.unified) == (128 << 30, 90 << 30, True)
    assert (cpu.name, cpu.memory_total, cpu.memory_free) == ("CPU", 128 << 30, 90 << 30)


def test_memory_by_process_is_a_lower_bound_where_one_does_not_tell():
    assert nvidia.read_compute_apps(read("nvidia_smi_gb10_compute_apps.csv")) == (38114 * MIB, False)
    assert nvidia.read_compute_apps("1, a, 5\n2, b, 7\n") == (12 * MIB, True)


def test_one_bad_cell_is_unknown_and_touches_no_other():
    fields = ("index", "name", "memory.total", "memory.used", "memory.free", "utilization.gpu", "fan.speed",
              "power.draw", "power.limit")
    gpus = nvidia.read_query(read("nvidia_smi_partial_failures.csv"), fields)
    assert [gpu.name for gpu in gpus] == ["CUDA0", "CUDA1", "CUDA2", "CUDA3"]
    assert [gpu.memory_total for gpu in gpus] == [24576 * MIB, 23040 * MIB, 4096 * MIB, 8192 * MIB]
    assert [gpu.memory_free for gpu in gpus] == [4466 * MIB, 23037 * MIB, 3584 * MIB, 8074 * MIB]
    assert [gpu.power for gpu in gpus] == [318.44, 9.71, None, None]
    assert [gpu.utilisation for gpu in gpus] == [0.96, 0.0, None, 0.0]
    assert [[problem.code for problem in gpu.problems] for gpu in gpus] == [["gpu-fault"], [], [], ["gpu-fault"]]
    assert "fan.speed" in gpus[0].problems[0].what and "power.draw" in gpus[3].problems[0].what


def test_header_and_units_are_tolerated():
    gpus = nvidia.read_query(read("nvidia_smi_with_header_units.csv"))
    assert [(gpu.label, gpu.memory_total, gpu.memory_free) for gpu in gpus] == [
        ("NVIDIA GeForce RTX 4090", 24564 * MIB, (24564 - 812) * MIB),
        ("NVIDIA GeForce RTX 2070 SUPER", 8192 * MIB, (8192 - 7701) * MIB)]
    assert [gpu.power for gpu in gpus] == [27.91, None]


def test_a_gpu_cut_into_slices_says_so():
    fields = (*nvidia.FIELDS[:6], "mig.mode.current")
    (gpu,) = nvidia.read_query(read("nvidia_smi_mig_query.csv"), fields)
    assert gpu.utilisation is None and [problem.code for problem in gpu.problems] == ["mig"]


def test_the_slices_of_a_gpu_are_named_and_the_first_is_what_a_process_gets():
    gpus = nvidia.read_query("0, NVIDIA A100-PCIE-40GB, 40960, 10412, 30017, [N/A], 40, 60\n"
                             "1, NVIDIA GeForce RTX 3060, 12288, 0, 12288, 0, 30, 9\n")
    first, second = nvidia.with_slices(gpus, read("nvidia_smi_mig_L.txt"))
    assert first.memory_total == 20 << 30 and first.estimated and "MIG 3g.20gb" in first.label
    assert "1g.5gb" in first.problems[0].what and "CUDA_VISIBLE_DEVICES" in first.problems[0].remedy
    assert second == gpus[1]


@pytest.mark.parametrize(("said", "status", "code"), [
    ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", 9, "no-driver"),
    ("Failed to initialize NVML: Driver/library version mismatch", 18, "driver-mismatch"),
    ("Failed to initialize NVML: Unknown Error", 255, "no-driver"),
    ("No devices were found", 6, "no-gpu"),
    ("", 124, "gpu-slow"),
    ("Segmentation fault", 139, "gpu-unreadable"),
])
def test_why_nothing_was_told(said: str, status: int, code: str):
    problem = nvidia.failure(said, status)
    assert problem is not None and problem.code == code and problem.remedy
    assert nvidia.failure("0, NVIDIA GB10, 1, 1, 1, 1, 1, 1", 0) is None
