"""Little memory: everything that runs in a node shares a control group with a limit, as in a small container.

Version 1 or 2 of control groups, whichever this kernel has a memory controller in. The node sees its own limit and
what it holds under /sys/fs/cgroup, as programs in a container do; /proc/meminfo stays the host's. What takes more is
ended by the kernel (SIGKILL), as on a machine without swap.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from pathlib import Path

from .base import DIR, Json, LabError, run
from .netns import pids_in

_TRAIT = re.compile(r"mem([1-9]\d{1,6})")
_MOUNT_INSIDE = {
    1: """mountpoint -q /sys/fs/cgroup || mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
mkdir -p /sys/fs/cgroup/memory
mountpoint -q /sys/fs/cgroup/memory || mount -t cgroup -o ro,memory cgroup /sys/fs/cgroup/memory""",
    2: "mountpoint -q /sys/fs/cgroup || mount -t cgroup2 -o ro cgroup2 /sys/fs/cgroup",
}
_FILES = {1: ("memory.limit_in_bytes", "cgroup.procs", "-1"), 2: ("memory.max", "cgroup.procs", "max")}


def of_traits(traits: list[str]) -> int:
    """The MiB of a node with a trait like mem512; 0 = no limit."""
    return next((int(match[1]) for trait in traits if (match := _TRAIT.fullmatch(trait))), 0)


def is_trait(trait: str) -> bool:
    """Whether this is such a trait."""
    return _TRAIT.fullmatch(trait) is not None


def hierarchy() -> tuple[int, Path] | None:
    """Version and mount point of the control groups that can limit memory; None where there are none."""
    found = None
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, where, kind, options, *_ = line.split()
        if kind == "cgroup" and "memory" in options.split(","):
            return 1, Path(where)
        with suppress(OSError):
            if kind == "cgroup2" and "memory" in Path(where, "cgroup.controllers").read_text().split():
                found = 2, Path(where)
    return found


def can_limit() -> bool:
    """Whether this machine lets us limit memory."""
    made = hierarchy()
    return made is not None and os.access(made[1], os.W_OK)


def limit(node: Json, mib: int) -> None:
    """From now on everything in the node has so much memory together; 0 = as much as there is."""
    made = hierarchy()
    if made is None:
        raise LabError("this kernel has no control groups that limit memory")
    version, mount = made
    group = _group(mount, node)
    amount, procs, none = _FILES[version]
    if not mib and not group.exists():
        return
    try:
        if version == 2:
            (mount / "cgroup.subtree_control").write_text("+memory")
        group.mkdir(exist_ok=True)
        (group / amount).write_text(str(mib << 20) if mib else none)
        _move(node["name"], group / procs)
    except OSError as error:
        raise LabError(f"memory of {node['name']}: {error.strerror or error}") from error
    node["memory_mib"] = mib
    from .node import enter, init_of

    if mib and init_of(node["name"]):
        run(" ".join(enter(node, [], "root")), "/bin/sh", "-c", _MOUNT_INSIDE[version])


def killed(node: Json) -> int:
    """How many processes of the node the kernel has ended for want of memory, since its limit was set."""
    made = hierarchy()
    if made is None:
        return 0
    group = _group(made[1], node)
    told = (group / ("memory.oom_control" if made[0] == 1 else "memory.events")).read_text()
    match = re.search(r"^oom_kill (\d+)$", told, re.MULTILINE)
    return int(match[1]) if match else 0


def _group(mount: Path, node: Json) -> Path:
    return mount / f"fleetlab-{os.path.basename(DIR)}-{node['name']}"


def _move(name: str, procs: Path) -> None:
    """All that is in the node, until nothing new is found outside: what forks meanwhile is found the next time."""
    moved: set[int] = set()
    while fresh := [pid for pid in pids_in(name) if pid not in moved]:
        for pid in fresh:
            with suppress(ProcessLookupError):
                procs.write_text(str(pid))
            moved.add(pid)


def remove(name: str = "*") -> None:
    """Take the groups away; their processes have ended. Safe to repeat."""
    made = hierarchy()
    for group in made[1].glob(f"fleetlab-*-{name}") if made else ():
        for _ in range(100):                 # the kernel lets go of a group a moment after its last process
            try:
                group.rmdir()
                break
            except FileNotFoundError:
                break
            except OSError:
                time.sleep(0.02)
