"""AMD GPUs: amdgpu's files in sysfs, rocm-smi's JSON, amd-smi's JSON.

An APU (Strix Halo and its like) holds models in GTT, main memory that the GPU maps, beside a small
carve-out of VRAM: what it can use is the sum. A card's GTT is slow memory across the bus and is
shown, not counted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from fleet.model import Device, DeviceKind, Problem, Severity
from fleet.nodes.hardware.figures import MIB, fraction, inner, json_after_noise, label, lines_of, number, size, whole

_CARD = re.compile(r"card([0-9]{1,3})$")
_MOST_GPUS = 64
NAMELESS = "AMD GPU"        # a card whose name nobody told
_MEMORY_KEYS = ("total_vram", "used_vram", "total_gtt", "used_gtt")
_SEPARATE = re.compile(r"\b(?:RX|Instinct|MI[0-9]{2,3}\w*|VII|Pro W\w+|WX|Vega (?:56|64)|FirePro)\b", re.IGNORECASE)


def read_cards(text: str) -> tuple[Device, ...]:
    """GPUs from the probe's rows of sysfs: card, VRAM total and used, GTT total and used, busy
    percent, millidegrees, microwatts, whether it is an APU, product name; "-" where unknown."""
    devices: list[Device] = []
    for line in text.split("\n")[:_MOST_GPUS]:
        words = line.split(" ", 9)
        if len(words) < 9 or not _CARD.match(words[0]):
            continue
        vram, vram_used, gtt, gtt_used = (whole(word) for word in words[1:5])
        heat, watts = number(words[6]), number(words[7])
        devices.append(_device(
            len(devices), label(words[9] if len(words) > 9 else ""), vram, vram_used, gtt, gtt_used,
            apu=words[8] == "yes", utilisation=fraction(words[5]),
            temperature=None if heat is None else heat / 1000, power=None if watts is None else watts / 1_000_000))
    return tuple(devices)


def read_rocm_smi(text: str) -> tuple[tuple[Device, ...], tuple[Problem, ...]]:
    """GPUs from `rocm-smi ... --json`, and what the tool said before its JSON."""
    value, noise = json_after_noise(text)
    problems = _notes(noise) if value is not None else ()
    if not isinstance(value, Mapping):
        return (), problems
    cards = sorted((int(match[1]), row) for key, row in value.items()
                   if isinstance(key, str) and (match := _CARD.match(key)) and isinstance(row, Mapping))
    devices = []
    for place, (_, row) in enumerate(cards[:_MOST_GPUS]):
        low = {str(key).lower(): cell for key, cell in row.items()}
        name = next((text for key in ("card series", "card model", "device name", "market name")
                     if (text := label(low.get(key))) and not text.lower().startswith(("0x", "n/a"))), "")
        devices.append(_device(
            place, name, whole(low.get("vram total memory (b)")), whole(low.get("vram total used memory (b)")),
            whole(low.get("gtt total memory (b)")), whole(low.get("gtt total used memory (b)")), apu=None,
            utilisation=fraction(low.get("gpu use (%)")), temperature=_first(low, "temperature"),
            power=_first(low, "power")))
    return tuple(devices), problems


def _first(row: Mapping[str, object], word: str) -> float | None:
    """The first figure whose name speaks of `word`, an edge sensor or an average before others."""
    keys = sorted((key for key in row if word in key and "max" not in key),
                  key=lambda key: (not ("edge" in key or "average" in key), key))
    return next((value for key in keys if (value := number(row[key])) is not None), None)


def read_amd_smi(text: str, static: str = "") -> tuple[tuple[Device, ...], tuple[Problem, ...]]:
    """GPUs from `amd-smi metric --json`, with names from `amd-smi static --asic --json`."""
    value, noise = json_after_noise(text)
    rows = value if isinstance(value, list) else inner(value, "gpu_data")
    if not isinstance(rows, list):
        return (), _notes(noise) if value is not None else ()
    names = _names(static)
    devices = []
    for place, row in enumerate(rows[:_MOST_GPUS]):
        if not isinstance(row, Mapping):
            continue
        amounts = [_amount(inner(row, "mem_usage", key)) for key in _MEMORY_KEYS]
        index = whole(row.get("gpu"))
        devices.append(_device(
            place, names.get(place if index is None else index, ""), *amounts, apu=None,
            utilisation=fraction(inner(row, "usage", "gfx_activity", "value")),
            temperature=number(inner(row, "temperature", "edge", "value")),
            power=number(inner(row, "power", "socket_power", "value"))))
    return tuple(devices), _notes(noise)


def _amount(cell: object) -> int | None:
    if not isinstance(cell, Mapping):
        return None
    value, unit = cell.get("value"), cell.get("unit")
    return size(f"{value} {unit}") if isinstance(unit, str) and not isinstance(value, bool) else size(value, MIB)


def _names(text: str) -> dict[int, str]:
    value, _ = json_after_noise(text)
    rows = value if isinstance(value, list) else inner(value, "gpu_data")
    names: dict[int, str] = {}
    for place, row in enumerate(rows[:_MOST_GPUS] if isinstance(rows, list) else []):
        name = label(inner(row, "asic", "market_name"))
        if name and name.upper() != "N/A":
            index = whole(inner(row, "gpu"))
            names[place if index is None else index] = name
    return names


def _notes(noise: str) -> tuple[Problem, ...]:
    """What a tool said before its JSON, where it is a warning."""
    said = [line for line in lines_of(noise) if "warning" in line.lower()]
    if not said:
        return ()
    remedy = ("Add your user to them: sudo usermod -aG render,video $USER, then sign in again."
              if "groups" in said[0] else "It wakes up with the first work that it gets."
              if "low-power" in said[0] else "")
    return (Problem("gpu-note", label(said[0]), remedy, Severity.INFO),)


def _device(place: int, name: str, vram: int | None, vram_used: int | None, gtt: int | None, gtt_used: int | None, *,
            apu: bool | None, utilisation: float | None, temperature: float | None, power: float | None) -> Device:
    if apu is None:      # the tools do not tell: by name, else a GTT larger than the VRAM speaks for an APU
        apu = not _SEPARATE.search(name) and vram is not None and gtt is not None and gtt > vram
    counted = [(vram, vram_used)] + ([(gtt, gtt_used)] if apu else [])
    known = [(total, used) for total, used in counted if total]
    total = sum(total for total, _ in known) or None
    free = None
    if known and all(used is not None for _, used in known):
        free = sum(max(0, total - (used or 0)) for total, used in known)
    return Device(
        f"ROCm{place}", DeviceKind.ROCM, name or NAMELESS, memory_total=total, memory_free=free, unified=apu,
        vram_total=vram or None, gtt_total=gtt or None, utilisation=utilisation, temperature=temperature, power=power)


def with_names(devices: tuple[Device, ...], named: tuple[Device, ...]) -> tuple[Device, ...]:
    """Figures of sysfs with the names that a tool or an earlier probe gave, where the number of cards agrees."""
    if len(devices) != len(named):
        return devices
    return tuple(
        replace(device, label=other.label) if device.label == NAMELESS and other.kind is DeviceKind.ROCM else device
        for device, other in zip(devices, named, strict=True))
