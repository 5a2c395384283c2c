"""The GPUs that vendors' tools told of in one probe: NVIDIA first, then AMD, then Apple."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fleet.model import Device, DeviceKind, Problem
from fleet.nodes.hardware import amd, apple, nvidia
from fleet.nodes.hardware.figures import MIB, key_values, whole
from fleet.nodes.sections import Sections


def vendors_of(given: Sections, before: Sequence[Device]) -> tuple[tuple[Device, ...] | None, list[Problem]]:
    """GPUs as the vendors' tools tell, and what is wrong; None when no tool answered."""
    found: list[Device] = []
    problems: list[Problem] = []
    asked = False
    if (told := given.tool("nvidia")) is not None:
        asked = not told.timed_out      # its GPUs are still there
        gpus = nvidia.read_query(told.text)
        if (slices := given.tool("nvidia-list")) is not None:
            gpus = nvidia.with_slices(gpus, slices.text)
        elif not given.full:
            gpus = _slices_kept(gpus, before)
        found += gpus
        if (failure := nvidia.failure(told.text, told.status)) is not None:
            problems.append(failure)
    amds, notes = _amds(given, before)
    asked = asked or amds is not None
    found += amds or ()
    problems += notes
    if (told := given.tool("profiler")) is not None:
        values = key_values(given.get("sysctl"))
        memsize, limit = (whole(values.get(key, "")) for key in ("hw.memsize", "iogpu.wired_limit_mb"))
        asked = True
        found += apple.read_system_profiler(told.text, memsize, limit * MIB if limit else None)
    return (tuple(found) if asked else None), problems


def _slices_kept(gpus: Sequence[Device], before: Sequence[Device]) -> tuple[Device, ...]:
    """A GPU that a full probe saw cut into slices stays so between full probes."""
    cut = {device.name: device for device in before if any(problem.code == "mig" for problem in device.problems)}
    return tuple(
        replace(cut[gpu.name], utilisation=gpu.utilisation, temperature=gpu.temperature, power=gpu.power)
        if gpu.name in cut else gpu for gpu in gpus)


def _amds(given: Sections, before: Sequence[Device]) -> tuple[tuple[Device, ...] | None, tuple[Problem, ...]]:
    cards = amd.read_cards(given.get("amd-cards"))
    named: tuple[Device, ...] = ()
    notes: tuple[Problem, ...] = ()
    if (told := given.tool("rocm")) is not None:
        named, notes = amd.read_rocm_smi(told.text)
    if not any(device.memory_total for device in named) and (told := given.tool("amd")) is not None:
        static = given.tool("amd-static")
        named, notes = amd.read_amd_smi(told.text, static.text if static else "")
    if cards:
        names = named or tuple(device for device in before if device.kind is DeviceKind.ROCM)
        return amd.with_names(cards, names), notes
    if "rocm" in given.texts or "amd" in given.texts:
        return named, notes
    return None, ()
