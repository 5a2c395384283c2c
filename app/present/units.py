"""Figures for people."""

from __future__ import annotations

import math

GIB = 1024 ** 3
MIB = 1024 ** 2
UNKNOWN = "–"
FRESH = 2.5                    # refreshes: a reading of that age is as new as it can be


def size(count: int | None) -> str:
    """Bytes to a tenth of a GiB, or whole MiB or KiB below one."""
    if count is None:
        return UNKNOWN
    if count < 0:
        return "0 KiB"
    if count < MIB:
        return f"{round(count / 1024)} KiB"
    if count < GIB:
        return f"{round(count / MIB)} MiB"
    if count < 1000 * GIB:
        return f"{count / GIB:.1f} GiB"
    return f"{count / GIB / 1024:.1f} TiB"


def gib(count: int | None) -> str:
    """Bytes in GiB without the unit, five cells wide."""
    return f"{UNKNOWN:>5}" if count is None else f"{max(count, 0) / GIB:5.1f}"


def used_of(total: int | None, free: int | None) -> int | None:
    """Bytes in use; None when either is not known. Free above total happens (containers) and is none in use."""
    return None if total is None or free is None else min(max(total - free, 0), total)


def fraction(part: int | None, whole: int | None) -> float | None:
    """A share to a two-hundredth, so that a bar does not move for a page or two."""
    if part is None or not whole or whole < 0:
        return None
    return round(min(max(part / whole, 0.0), 1.0) * 200) / 200


def percent(share: float | None) -> str:
    """A fraction of one as a whole percentage."""
    return UNKNOWN if share is None or share != share else f"{round(share * 100)}%"


def span(seconds: float) -> str:
    """A length of time in one coarse unit; below a minute in fives."""
    if not math.isfinite(seconds):
        return UNKNOWN
    seconds = max(seconds, 0.0)
    if seconds < 60:
        return f"{int(seconds // 5 * 5)} s" if seconds >= 5 else "a moment"
    if seconds < 3600:
        return f"{int(seconds // 60)} min"
    if seconds < 48 * 3600:
        return f"{int(seconds // 3600)} h"
    return f"{int(seconds // 86400)} d"


def duration(seconds: float) -> str:
    """How long something took, once it is over."""
    if seconds < 1:
        return "<1 s"
    if seconds < 90:
        return f"{round(seconds)} s"
    return f"{int(seconds // 60)} min {round(seconds % 60):02d} s"


def age(now: float, then: float | None, refresh: float) -> str:
    """How old a reading is: "live" while it is as new as readings come, then coarse."""
    if then is None:
        return UNKNOWN
    old = now - then
    return "live" if old <= FRESH * refresh else span(max(old, 5))


def is_live(now: float, then: float | None, refresh: float) -> bool:
    """Whether `age` says "live"."""
    return then is not None and now - then <= FRESH * refresh


def milliseconds(seconds: float | None) -> str:
    """A round trip in steps that do not jump about: 1, 2, 5, 10, 20, 50 ... ms."""
    if seconds is None:
        return UNKNOWN
    value = seconds * 1000
    for step in (1, 2, 5, 10, 20, 50, 100, 200, 500):
        if value <= step:
            return f"≤{step} ms"
    return f"{seconds:.0f} s" if seconds >= 1.5 else "≤1 s"


def rate(tokens_per_second: float | None) -> str:
    """Tokens a second."""
    value = tokens_per_second
    if value is None or value != value:
        return UNKNOWN
    return f"{value:.1f} tok/s" if value < 100 else f"{value:.0f} tok/s"


def speed(bits: int | None) -> str:
    """A link's bits a second."""
    if not bits or bits < 0:
        return ""
    return f"{bits / 1e9:g} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:g} Mbit/s"


def count(number: int, one: str, many: str = "") -> str:
    """ "1 node", "2 nodes"."""
    return f"{number} {one if number == 1 else many or one + 's'}"
