"""NVIDIA GPUs, from nvidia-smi's CSV and its list.

A cell that cannot be read makes that figure unknown and touches nothing else. nvidia-smi prints
its failures on stdout.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from fleet.model import Device, DeviceKind, Problem, Severity
from fleet.nodes.hardware.figures import GIB, MIB, fraction, label, lines_of, number, size, whole

FIELDS = ("index", "name", "memory.total", "memory.used", "memory.free", "utilization.gpu", "temperature.gpu",
          "power.draw")
_FAULTS = ("err!", "[unknown error]", "unknown error", "[gpu requires reset]")
_UNTOLD = ("[n/a]", "n/a")
_MOST_GPUS = 64
_GPU_LINE = re.compile(r"^GPU ([0-9]{1,3}): (.*?)(?: \(UUID: [^)]*\))?$")
_SLICE_LINE = re.compile(r"^\s+MIG (\S{1,40})\s+Device\s+([0-9]{1,3}): \(UUID: (MIG-[0-9A-Za-z/-]{1,80})\)")
_SLICE_MEMORY = re.compile(r"([0-9]{1,4})gb", re.IGNORECASE)


def read_query(text: str, fields: Sequence[str] = FIELDS) -> tuple[Device, ...]:
    """GPUs from `--query-gpu=... --format=csv`, with or without header line and units.

    A header in the text wins over `fields`. Memory that is [N/A] throughout is no failure: such a
    GPU (GB10, Orin) shares the main memory, and comes out `unified` with no figures of its own.
    """
    devices: list[Device] = []
    columns = list(fields)
    for line in lines_of(text):
        cells = [cell.strip() for cell in line.split(",")]
        names = [cell.partition(" [")[0].strip() for cell in cells]
        if "index" in names and "name" in names:
            columns = names
            continue
        row = dict(zip(columns, cells, strict=False))
        index = whole(row.get("index", ""))
        if index is None or not row.get("name") or index >= _MOST_GPUS or len(devices) >= _MOST_GPUS:
            continue
        devices.append(_device(index, row))
    return tuple(devices)


def _device(index: int, row: dict[str, str]) -> Device:
    name = label(row["name"])
    memory = [row.get(key, "").lower() for key in ("memory.total", "memory.used", "memory.free")]
    total, used, free = (size(cell, MIB) for cell in memory)
    unified = memory[0] in _UNTOLD and all(cell in _UNTOLD or not cell for cell in memory)
    if free is None and total is not None and used is not None:
        free = max(0, total - used)
    if total and free is not None:
        free = min(free, total)
    problems = []
    if faulty := [key for key, cell in row.items() if cell.lower() in _FAULTS]:
        problems.append(Problem(
            "gpu-fault", f"{name} does not tell its {', '.join(faulty)}: the driver answers with an error.",
            "A restart of the machine often helps; if it comes back, look at its cooling, its power and `dmesg`.",
            Severity.WARNING))
    if row.get("mig.mode.current", "").lower() == "enabled":
        problems.append(_mig_problem(name, ()))
    return Device(
        f"CUDA{index}", DeviceKind.CUDA, name, memory_total=total or None, memory_free=free if total else None,
        unified=unified, utilisation=fraction(row.get("utilization.gpu", "")),
        temperature=number(row.get("temperature.gpu", "")), power=number(row.get("power.draw", "")),
        problems=tuple(problems))


def _mig_problem(name: str, slices: Sequence[str]) -> Problem:
    listed = f" ({', '.join(slices)})" if slices else ""
    return Problem(
        "mig", f"{name} is cut into MIG slices{listed}: a process gets one slice, not the memory of the whole GPU.",
        "Choose a slice with CUDA_VISIBLE_DEVICES=MIG-... in the worker's env, or switch MIG off.", Severity.WARNING)


def with_slices(devices: Sequence[Device], listing: str) -> tuple[Device, ...]:
    """The same GPUs, those that `nvidia-smi -L` shows cut into slices with the memory of their first slice.

    CUDA gives a process the first slice unless told otherwise, so that is what a worker can use.
    """
    slices: dict[str, list[tuple[str, str]]] = {}
    current = ""
    for line in listing.split("\n")[:1024]:
        if match := _GPU_LINE.match(line.rstrip()):
            current = f"CUDA{int(match[1])}"
        elif current and (match := _SLICE_LINE.match(line)):
            slices.setdefault(current, []).append((match[1], match[3]))
    return tuple(_sliced(device, slices.get(device.name, [])) for device in devices)


def _sliced(device: Device, slices: list[tuple[str, str]]) -> Device:
    if not slices:
        return device
    profiles = [profile for profile, _ in slices]
    memory = int(match[1]) * GIB if (match := _SLICE_MEMORY.search(profiles[0])) else None
    others = tuple(problem for problem in device.problems if problem.code != "mig")
    return Device(
        device.name, device.kind, label(f"{device.label} MIG {profiles[0]}"), memory_total=memory, memory_free=None,
        estimated=True, utilisation=device.utilisation, temperature=device.temperature, power=device.power,
        problems=(*others, _mig_problem(device.label, profiles)))


def read_compute_apps(text: str) -> tuple[int, bool]:
    """GPU memory that processes hold, from `--query-compute-apps=pid,process_name,used_memory`.

    Returns (bytes, whole): where a process does not tell, `whole` is False and the sum a lower bound.
    """
    total, complete = 0, True
    for line in lines_of(text)[:4096]:
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) < 3 or whole(cells[0]) is None:
            continue
        used = size(cells[-1], MIB)
        complete = complete and used is not None
        total += used or 0
    return total, complete


def failure(text: str, status: int | None) -> Problem | None:
    """Why nvidia-smi told nothing; None when it did."""
    if read_query(text):
        return None
    said = label(" ".join(lines_of(text)))
    low = said.lower()
    if status in (124, 137):
        return Problem("gpu-slow", "nvidia-smi did not answer in time.",
                       "The driver may hang; see `dmesg`. Persistence mode (`nvidia-smi -pm 1`) makes it faster.",
                       Severity.WARNING)
    if "version mismatch" in low:
        return Problem("driver-mismatch", f"nvidia-smi fails: {said}",
                       "The driver was updated under the running kernel: restart this machine.")
    if "couldn't communicate" in low or "nvml" in low:
        return Problem("no-driver", f"nvidia-smi is installed, but its driver does not run: {said}",
                       "Load or reinstall the NVIDIA driver of this kernel; without it the CPU alone is used.",
                       Severity.WARNING)
    if "no devices" in low:
        return Problem("no-gpu", "nvidia-smi finds no NVIDIA GPU.", "Check that the card sits and has power.",
                       Severity.INFO)
    return Problem("gpu-unreadable", f"nvidia-smi gave no list of GPUs: {said or 'nothing at all'}",
                   "Run nvidia-smi on that machine.", Severity.WARNING)
