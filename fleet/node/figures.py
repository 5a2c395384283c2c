"""What Linux tells of a process and of the group of memory that it is in."""

from __future__ import annotations

import os
from pathlib import Path


def process_figures(pid: int) -> dict:
    """Bytes that a process read from disk, its page faults and memory; {} when it is gone or another user's."""
    found: dict = {}
    try:
        for line in _lines(f"/proc/{pid}/io"):
            name, _, value = line.partition(":")
            if name in ("read_bytes", "rchar"):
                found[name] = int(value)
        words = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        found["minor_faults"], found["major_faults"] = int(words[7]), int(words[9])
        found["cpu_seconds"] = (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
        for line in _lines(f"/proc/{pid}/status"):
            name, _, value = line.partition(":")
            if name in ("RssAnon", "RssFile"):
                found[name.lower()] = int(value.split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        return found
    return found


_KEPT = {"file": "cache", "cache": "cache", "anon": "anonymous", "rss": "anonymous", "pgmajfault": "major_faults",
         "workingset_refault_file": "refaults", "workingset_refault": "refaults"}


def group_figures(pid: int) -> dict:
    """Limit, use and page cache of the group of memory that a process is in; {} when there is none to be read."""
    found: dict = {}
    try:
        folder = _group_of(pid)
        if folder is None:
            return found
        first = (folder / "memory.limit_in_bytes").exists()
        names = {"limit": "memory.limit_in_bytes" if first else "memory.max",
                 "used": "memory.usage_in_bytes" if first else "memory.current",
                 "peak": "memory.max_usage_in_bytes" if first else "memory.peak"}
        for name, file in names.items():
            if (folder / file).exists():
                text = (folder / file).read_text().strip()
                found[name] = None if text == "max" or int(text) >= 1 << 62 else int(text)
        for line in _lines(str(folder / "memory.stat")):
            name, _, value = line.partition(" ")
            if name in _KEPT:
                found[_KEPT[name]] = int(value)
        for line in _lines(str(folder / ("memory.oom_control" if first else "memory.events"))):
            if line.startswith("oom_kill "):
                found["kills"] = int(line.split()[1])
    except (OSError, ValueError):
        return found
    return found


def _group_of(pid: int) -> Path | None:
    for line in _lines(f"/proc/{pid}/cgroup"):
        number, controllers, path = line.split(":", 2)
        root = "/sys/fs/cgroup/memory" if "memory" in controllers.split(",") else "/sys/fs/cgroup"
        folder = Path(root + path)
        if "memory" in controllers.split(",") or (number == "0" and (folder / "memory.current").exists()):
            return folder
    return None


def _lines(path: str) -> list[str]:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read(65_536).splitlines()
