"""The processor: /proc/cpuinfo (x86, ARM and others) with sysfs's topology, or macOS's sysctl."""

from __future__ import annotations

import re

from fleet.model import Cpu
from fleet.nodes.hardware.figures import key_values, label, number, whole

# What llama.cpp has kernels for; a build made for one of these dies on a processor without it.
_FEATURES = {
    "sse4_2": "sse4_2", "avx": "avx", "f16c": "f16c", "fma": "fma", "avx2": "avx2", "bmi2": "bmi2",
    "avx_vnni": "avx_vnni", "avx512f": "avx512f", "avx512bw": "avx512bw", "avx512vbmi": "avx512_vbmi",
    "avx512_vnni": "avx512_vnni", "avx512_bf16": "avx512_bf16", "amx_tile": "amx_tile", "amx_int8": "amx_int8",
    "asimd": "neon", "neon": "neon", "asimdhp": "fp16", "asimddp": "dotprod", "i8mm": "i8mm", "bf16": "bf16",
    "sve": "sve", "sve2": "sve2", "sme": "sme", "vsx": "vsx", "lasx": "lasx", "lsx": "lsx",
}
_MAC_FEATURES = {
    "AVX1.0": "avx", "AVX2": "avx2", "FMA": "fma", "F16C": "f16c", "SSE4.2": "sse4_2", "BMI2": "bmi2",
    "AVX512F": "avx512f",
    "hw.optional.neon": "neon", "hw.optional.AdvSIMD": "neon", "hw.optional.arm.FEAT_FP16": "fp16",
    "hw.optional.arm.FEAT_DotProd": "dotprod", "hw.optional.arm.FEAT_I8MM": "i8mm",
    "hw.optional.arm.FEAT_BF16": "bf16", "hw.optional.arm.FEAT_SME": "sme",
}
# "CPU part" of implementer 0x41 (Arm), for machines whose firmware tells no name.
_ARM_PARTS = {
    "0xd03": "Cortex-A53", "0xd04": "Cortex-A35", "0xd05": "Cortex-A55", "0xd07": "Cortex-A57", "0xd08": "Cortex-A72",
    "0xd09": "Cortex-A73", "0xd0a": "Cortex-A75", "0xd0b": "Cortex-A76", "0xd0c": "Neoverse N1", "0xd0d": "Cortex-A77",
    "0xd40": "Neoverse V1", "0xd41": "Cortex-A78", "0xd42": "Cortex-A78AE", "0xd44": "Cortex-X1",
    "0xd46": "Cortex-A510", "0xd47": "Cortex-A710", "0xd48": "Cortex-X2", "0xd49": "Neoverse N2",
    "0xd4d": "Cortex-A715", "0xd4e": "Cortex-X3", "0xd4f": "Neoverse V2",
    "0xd80": "Cortex-A520", "0xd81": "Cortex-A720", "0xd82": "Cortex-X4", "0xd85": "Cortex-X925",
    "0xd87": "Cortex-A725",
}
_MOST = 4096        # logical processors
_FLAG_LINE = re.compile(r"^(?:flags|Features)\s*:(.*)$", re.MULTILINE)


def read_cpuinfo(text: str, siblings: str = "", threads: str = "") -> Cpu:
    """A processor from the first block of /proc/cpuinfo.

    `siblings` holds the thread_siblings_list of every processor, a line each: as many different ones
    as there are cores. `threads` is nproc's count of those that we may use.
    """
    values = key_values(text[:65536])
    cores = len(set(siblings.split()))
    listed = len(siblings.split())
    usable = whole(threads.strip())
    count = min(usable or listed, _MOST)
    flags = match[1].split() if (match := _FLAG_LINE.search(text[:65536])) else []
    return Cpu(
        model=_model(values, text), cores=min(cores, count) if cores and count else cores, threads=count,
        features=tuple(dict.fromkeys(_FEATURES[flag] for flag in flags if flag in _FEATURES)))


def _model(values: dict[str, str], text: str) -> str:
    for key in ("model name", "cpu model", "cpu", "Model Name"):
        if name := label(values.get(key, "")):
            return name
    parts = dict.fromkeys(re.findall(r"^CPU part\s*:\s*(0x[0-9a-f]{1,8})", text[:65536], re.MULTILINE))
    names = [_ARM_PARTS[part] for part in parts if part in _ARM_PARTS]
    board = label(values.get("Model", "")) or label(values.get("Hardware", ""))
    cores = " + ".join(names[:4])
    return f"{board} ({cores})" if board and cores else board or cores


def read_loadavg(text: str) -> float | None:
    """The 1-minute load from /proc/loadavg, or from sysctl's "{ 1.52 1.60 1.70 }"."""
    words = text.replace("{", " ").replace("}", " ").split()
    load = number(words[0].replace(",", ".")) if words else None
    return load if load is not None and load >= 0 else None


def read_sysctl(values: dict[str, str]) -> Cpu:
    """A Mac's processor, Intel or Apple."""
    flags = f"{values.get('machdep.cpu.features', '')} {values.get('machdep.cpu.leaf7_features', '')}".split()
    flags += [key for key, value in values.items() if key.startswith("hw.optional.") and value == "1"]
    return Cpu(
        model=label(values.get("machdep.cpu.brand_string", "")) or label(values.get("hw.model", "")),
        cores=min(whole(values.get("hw.physicalcpu", "")) or 0, _MOST),
        threads=min(whole(values.get("hw.logicalcpu", "")) or 0, _MOST),
        features=tuple(dict.fromkeys(_MAC_FEATURES[flag] for flag in flags if flag in _MAC_FEATURES)),
        load=read_loadavg(values.get("vm.loadavg", "")))
