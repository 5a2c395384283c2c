"""Main memory: /proc/meminfo, the limits of control groups, macOS's vm_stat."""

from __future__ import annotations

import re

from fleet.model import Memory
from fleet.nodes.hardware.figures import KIB, key_values, size, whole

_PAGE = re.compile(r"page size of ([0-9]{1,9}) bytes")
_RECLAIMABLE_PAGES = ("Pages free", "Pages inactive", "Pages speculative", "Pages purgeable")


def read_meminfo(text: str) -> Memory:
    """Memory as /proc/meminfo has it. lxcfs can show a blank file or zeros: unknown then, never 0."""
    values = {key: size(value.replace("kB", "").strip(), KIB) for key, value in key_values(text[:65536]).items()}
    total = values.get("MemTotal") or None
    if total is None:
        return Memory()
    available = values.get("MemAvailable")
    if available is None:      # kernels before 3.14, and old lxcfs
        parts = [values.get(key) for key in ("MemFree", "Buffers", "Cached")]
        available = sum(part or 0 for part in parts) if parts[0] is not None else None
    return Memory(total, min(available, total) if available else None)


def with_limits(memory: Memory, text: str) -> Memory:
    """The same, cut to the tightest control group that the shell lives in.

    `text` has groups of lines: "limit N", "used N", then lines of memory.stat. What a group holds of
    the page cache can be taken back, so it counts as available (a mapped model is page cache).
    """
    total, available = memory.total, memory.available
    for limit, used, cache in _limits(text):
        total = limit if total is None else min(total, limit)
        if used is not None:
            left = max(0, limit - max(0, used - cache))
            available = left if available is None else min(available, left)
    if total is not None and available is not None:
        available = min(available, total)
    return Memory(total, available, memory.unified)


def _limits(text: str) -> list[tuple[int, int | None, int]]:
    groups: list[tuple[int, int | None, int]] = []
    for line in text[:65536].split("\n"):
        key, _, value = line.strip().partition(" ")
        amount = whole(value)
        if key == "limit" and amount:
            groups.append((amount, None, 0))
        elif groups and amount is not None:
            limit, used, cache = groups[-1]
            if key == "used":
                groups[-1] = (limit, amount, cache)
            elif key in ("inactive_file", "active_file"):
                groups[-1] = (limit, used, cache + amount)
    return groups


def read_vm_stat(text: str, memsize: int | None) -> Memory:
    """Memory of a Mac: hw.memsize, and from vm_stat what is free or can be taken back at once."""
    page = int(match[1]) if (match := _PAGE.search(text)) else None
    values = {key: whole(value.rstrip(".")) for key, value in key_values(text[:16384]).items()}
    pages = [values.get(key) for key in _RECLAIMABLE_PAGES]
    available = None
    if page and pages[0] is not None:
        available = sum(count or 0 for count in pages) * page
    total = memsize or None
    return Memory(total, min(available, total) if available and total else available or None)
