"""Figures for people: bytes, seconds and shares as short words. No look, no layout, nothing imported."""

from __future__ import annotations

UNKNOWN = "–"
_STEPS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def size(count: int | None) -> str:
    """Bytes: "812 B", "4.0 KiB", "23.7 GiB"; three digits are enough to compare by."""
    if count is None:
        return UNKNOWN
    value, step = float(count), 0
    while abs(value) >= 1023.95 and step < len(_STEPS) - 1:
        value, step = value / 1024, step + 1
    return f"{count} B" if step == 0 else f"{value:.1f} {_STEPS[step]}" if abs(value) < 99.95 else (
        f"{value:.0f} {_STEPS[step]}")


def duration(seconds: float | None) -> str:
    """A length of time: "0.4 s", "12 s", "3 min", "5 h", "2 d"."""
    if seconds is None:
        return UNKNOWN
    seconds = max(0.0, seconds)
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    if seconds < 36 * 3600:
        return f"{seconds / 3600:.0f} h"
    return f"{seconds / 86400:.0f} d"


def share(fraction: float | None) -> str:
    """A fraction of one: "42%"."""
    return UNKNOWN if fraction is None else f"{fraction * 100:.0f}%"
