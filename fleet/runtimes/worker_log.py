"""A worker's log: the banner, and what became of its clients."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fleet.model import Problem
from fleet.runtimes.rpc_wire import Version

MIB = 1024 * 1024
MOST_DEVICES = 64
OLDEST_MAJOR = 3          # the first with several devices a worker, and with the handshake that is asked here

_VERSION = re.compile(r"^Starting RPC server v(\d{1,4})\.(\d{1,4})\.(\d{1,4})\s*$", re.MULTILINE)
_ENDPOINT = re.compile(r"^ +endpoint +: (\S{1,100})$", re.MULTILINE)
_CACHE = re.compile(r"^ +local cache +: (.{1,512})$", re.MULTILINE)
_DEVICE = re.compile(r"^ +([A-Za-z][\w.-]{0,31}): (.{0,200}) \((\d{1,9}) MiB, (\d{1,9}) MiB free\)$", re.MULTILINE)
_OLD_MEMORY = re.compile(r"^ +backend memory +: (\d{1,9}) MB$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class BannerDevice:
    """One device of a worker, as its banner has it."""

    name: str                 # "CUDA0", "CPU"
    label: str
    memory_total: int         # bytes
    memory_free: int          # bytes, when it started


@dataclass(frozen=True, slots=True)
class WorkerBanner:
    """What a worker prints when it starts. Through a pipe or to a file it comes with the first client only."""

    version: Version
    endpoint: str = ""
    cache: str = ""           # folder; "" = none
    devices: tuple[BannerDevice, ...] = ()

    @property
    def problem(self) -> Problem | None:
        """Why this worker cannot be used, None when it can."""
        if self.version[0] >= OLDEST_MAJOR:
            return None
        spoken = ".".join(map(str, self.version))
        return Problem("too-old", f"The worker speaks RPC protocol {spoken}, which no head of today takes.",
                       "Install the llama.cpp build of the head on that machine.")


def read_banner(log: str) -> WorkerBanner | None:
    """The last banner of a worker's log, None where there is none (yet)."""
    starts = list(_VERSION.finditer(log))
    if not starts:
        return None
    last = starts[-1]
    text = log[last.start():last.start() + 16 * 1024]
    endpoint, cache, old = _ENDPOINT.search(text), _CACHE.search(text), _OLD_MEMORY.search(text)
    devices = [BannerDevice(m[1], m[2], int(m[3]) * MIB, int(m[4]) * MIB) for m in _DEVICE.finditer(text)]
    if old and not devices:
        devices = [BannerDevice("", "", int(old[1]) * MIB, int(old[1]) * MIB)]
    folder = cache[1].strip() if cache else ""
    return WorkerBanner((int(last[1]), int(last[2]), int(last[3])), endpoint[1] if endpoint else "",
                        "" if folder == "n/a" else folder, tuple(devices[:MOST_DEVICES]))
