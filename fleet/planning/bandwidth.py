"""Memory bandwidth of known devices, by what they call themselves. Pure.

Writing a token reads every weight of the layers once, so what a device reads a second bounds it. Figures are the peaks
that the makers state, in GB/s (10^9 bytes); `fleet.planning.timing` says how much of it arrives. Of a chip that is
sold with several memories the slower one stands here.
"""

from __future__ import annotations

import re

NVIDIA = "NVIDIA's data sheet"
AMD = "AMD's data sheet"
APPLE = "Apple's technical specifications"
INTEL = "Intel's data sheet"
JEDEC = "JEDEC transfer rates"

_RTX = {
    "rtx 2060": 336, "rtx 2060 super": 448, "rtx 2070": 448, "rtx 2070 super": 448, "rtx 2080": 448,
    "rtx 2080 super": 496, "rtx 2080 ti": 616,
    "rtx 3050": 224, "rtx 3060": 360, "rtx 3060 ti": 448, "rtx 3070": 448, "rtx 3070 ti": 608, "rtx 3080": 760,
    "rtx 3080 ti": 912, "rtx 3090": 936, "rtx 3090 ti": 1008,
    "rtx 4060": 272, "rtx 4060 ti": 288, "rtx 4070": 504, "rtx 4070 super": 504, "rtx 4070 ti": 504,
    "rtx 4070 ti super": 672, "rtx 4080": 717, "rtx 4080 super": 736, "rtx 4090": 1008,
    "rtx 5050": 320, "rtx 5060": 448, "rtx 5060 ti": 448, "rtx 5070": 672, "rtx 5070 ti": 896, "rtx 5080": 960,
    "rtx 5090": 1792,
    "rtx 3060 laptop": 336, "rtx 3070 laptop": 448, "rtx 3080 laptop": 448, "rtx 4050 laptop": 192,
    "rtx 4060 laptop": 256, "rtx 4070 laptop": 256, "rtx 4080 laptop": 432, "rtx 4090 laptop": 576,
    "gtx 1060": 192, "gtx 1070": 256, "gtx 1070 ti": 256, "gtx 1080": 320, "gtx 1080 ti": 484, "gtx 1650": 128,
    "gtx 1660": 192, "gtx 1660 super": 336, "gtx 1660 ti": 288,
    "p40": 346, "p100": 732, "quadro p400": 32, "p400": 32, "v100": 900, "t4": 320, "a10": 600, "l4": 300,
    "rtx a2000": 288, "rtx a4000": 448, "rtx a5000": 768, "rtx a6000": 768, "rtx 6000 ada": 960, "a100": 1555,
    "h100": 2000, "gb10": 273,
}
_RADEON = {
    "rx 6600": 224, "rx 6700 xt": 384, "rx 6800": 512, "rx 6800 xt": 512, "rx 6900 xt": 512, "rx 7600": 288,
    "rx 7700 xt": 432, "rx 7800 xt": 624, "rx 7900 gre": 576, "rx 7900 xt": 800, "rx 7900 xtx": 960,
    "rx 9060 xt": 320, "rx 9070": 640, "rx 9070 xt": 640,
    "8060s": 256, "8050s": 256, "ryzen ai max": 256, "strix halo": 256,     # 256 bit of LPDDR5X-8000
}
_MAC = {
    "m1": 68, "m1 pro": 200, "m1 max": 400, "m1 ultra": 800, "m2": 100, "m2 pro": 200, "m2 max": 400, "m2 ultra": 800,
    "m3": 100, "m3 pro": 150, "m3 max": 300, "m3 ultra": 819, "m4": 120, "m4 pro": 273, "m4 max": 410,
}
_ARC = {"arc a750": 512, "arc a770": 512, "arc b570": 380, "arc b580": 456}
KNOWN: dict[str, tuple[int, str]] = {
    **{name: (figure, NVIDIA) for name, figure in _RTX.items()},
    **{name: (figure, AMD) for name, figure in _RADEON.items()},
    **{f"apple {name}": (figure, APPLE) for name, figure in _MAC.items()},
    **{name: (figure, INTEL) for name, figure in _ARC.items()},
}
_LONGEST_FIRST = sorted(KNOWN, key=lambda name: -len(name))

# Processors: channels x 8 bytes x transfers a second. The first rule whose pattern is found counts.
_PROCESSORS: tuple[tuple[str, float, str], ...] = (
    (r"epyc 9\d{3}", 12 * 8 * 4.8, "12 channels of DDR5-4800"),
    (r"epyc", 8 * 8 * 2.667, "8 channels of DDR4-2667"),
    (r"threadripper pro 7|threadripper pro 9", 8 * 8 * 5.2, "8 channels of DDR5-5200"),
    (r"threadripper pro", 8 * 8 * 3.2, "8 channels of DDR4-3200"),
    (r"threadripper (7|9)", 4 * 8 * 5.2, "4 channels of DDR5-5200"),
    (r"threadripper", 4 * 8 * 2.933, "4 channels of DDR4-2933"),
    (r"xeon .*(platinum|gold) (8|6|5)4\d\d|xeon 6", 8 * 8 * 4.8, "8 channels of DDR5-4800"),
    (r"xeon .*(platinum|gold|silver)", 6 * 8 * 2.667, "6 channels of DDR4-2667"),
    (r"xeon", 4 * 8 * 2.133, "4 channels of DDR4-2133"),
    (r"ryzen ai |ryzen \d (pro )?(7|8|9)\d{3}|ryzen \d (pro )?(7|8)\d\d0", 2 * 8 * 4.8, "2 channels of DDR5-4800"),
    (r"ryzen", 2 * 8 * 2.667, "2 channels of DDR4-2667"),
    (r"core ultra", 2 * 8 * 5.6, "2 channels of DDR5-5600"),
    (r"1[234]th gen|core i\d-1[234]\d{3}", 2 * 8 * 3.2, "2 channels of DDR4-3200 (DDR5 gives more)"),
    (r"core i\d|core\(tm\) i\d|intel core", 2 * 8 * 2.4, "2 channels of DDR4-2400"),
    (r"\bn\d{2,3}\b|celeron|pentium|atom", 1 * 8 * 3.2, "1 channel of DDR4-3200"),
    (r"cortex-a76|raspberry pi 5", 4 * 4.267, "32 bit of LPDDR4X-4267"),
    (r"cortex-a72|raspberry pi 4", 4 * 3.2, "32 bit of LPDDR4-3200"),
    (r"neoverse", 8 * 8 * 3.2, "8 channels of DDR4-3200"),
)


def known_bandwidth(label: str) -> tuple[float, str] | None:
    """Peak bytes a second of a GPU or a chip with its memory on it, and whose figure it is; None = not in the table."""
    words = f" {_plain(label)} "
    name = next((name for name in _LONGEST_FIRST if f" {name} " in words), None)
    if name is None or (" laptop " in words and "laptop" not in name):
        return None
    figure, source = KNOWN[name]
    return figure * 1e9, source


def processor_bandwidth(model: str) -> tuple[float, str] | None:
    """Peak bytes a second of a processor's main memory with all channels filled, and the rule; None = no rule."""
    text = " ".join(model.lower().replace("(r)", "").replace("(tm)", "").split())[:200]
    rule = next((rule for rule in _PROCESSORS if re.search(rule[0], text)), None)
    return None if rule is None else (rule[1] * 1e9, f"{rule[2]}, {JEDEC}")


def _plain(label: str) -> str:
    return " ".join(re.findall(r"[a-z0-9]+", label[:200].lower()))
