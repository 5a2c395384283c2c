"""A machine as a probe reads it: hardware, programs, files, processes, sockets."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from fleet.model.words import Problem


class LinkKind(StrEnum):
    """What carries an address, best first."""

    LOOPBACK = "loopback"
    WIRED = "wired"
    WIFI = "wifi"
    VPN = "vpn"
    LINK_LOCAL = "link-local"
    UNKNOWN = "unknown"
    CONTAINER = "container"


@dataclass(frozen=True, slots=True)
class Address:
    """One way to reach a node."""

    host: str                     # IP literal (with %scope for fe80) or name
    port: int = 22                # of its sshd
    kind: LinkKind = LinkKind.UNKNOWN
    source: str = ""              # "fleet.yaml", "mdns", "ssh_config", "local", "probe"
    pinned: bool = False          # the user said so


@dataclass(frozen=True, slots=True)
class Cpu:
    """The processor of a node."""

    model: str = ""
    cores: int = 0                        # physical cores; 0 = unknown
    threads: int = 0                      # logical processors; 0 = unknown
    features: tuple[str, ...] = ()        # of those that llama.cpp cares for: avx2, avx512f, amx_int8, neon ...
    load: float | None = None             # 1-minute load average


@dataclass(frozen=True, slots=True)
class Memory:
    """Main memory. None = unknown (a container can hide it), never 0 for unknown."""

    total: int | None = None
    available: int | None = None
    unified: bool = False                 # shared with the GPU (Apple, GB10, Strix Halo)


class DeviceKind(StrEnum):
    """Who makes the device go."""

    CPU = "cpu"
    CUDA = "cuda"
    ROCM = "rocm"
    METAL = "metal"
    VULKAN = "vulkan"


@dataclass(frozen=True, slots=True)
class Device:
    """One compute device of a node."""

    name: str                             # as llama.cpp names it: "CUDA0", "MTL0", "CPU"
    kind: DeviceKind
    label: str = ""                       # "NVIDIA GeForce RTX 3090"
    memory_total: int | None = None       # usable bytes: VRAM (+ GTT), Metal's working set, or RAM
    memory_free: int | None = None
    unified: bool = False                 # memory is the machine's main memory
    estimated: bool = False               # memory_total is a rule of thumb, not a reading
    integrated: bool = False              # not used for a split unless asked for
    vram_total: int | None = None         # where `memory_total` is a sum: the part that is VRAM
    gtt_total: int | None = None
    utilisation: float | None = None      # fraction of one
    temperature: float | None = None      # degrees Celsius
    power: float | None = None            # watts
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class Disk:
    """A file system that holds models or our state."""

    path: str
    total: int | None = None
    free: int | None = None
    writable: bool = True


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface of a node."""

    name: str
    kind: LinkKind
    addresses: tuple[str, ...] = ()
    speed: int | None = None              # bits a second, where the driver tells
    up: bool = True


@dataclass(frozen=True, slots=True)
class Binary:
    """One program of an inference engine on a node."""

    path: str                             # absolute
    program: str                          # "llama-server", "ggml-rpc-server" (also for "rpc-server"), "vllm", "ray"
    build: int | None = None              # None: unknown (1 and 0 are placeholders of shallow clones)
    commit: str | None = None
    digest: str = ""                      # SHA-256 hex of the file, or "" when the node cannot tell
    size: int = 0
    mtime: int = 0                        # seconds since the epoch
    version: str = ""                     # of vLLM and Ray, which have no build numbers: "0.33.0"

    @property
    def folder(self) -> str:
        """The folder it lies in: programs that lie together belong together."""
        return self.path.rpartition("/")[0]


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A GGUF file on a node, as the directory shows it."""

    path: str
    size: int
    mtime: int = 0


@dataclass(frozen=True, slots=True)
class Process:
    """A llama.cpp (or other engine's) process on a node, ours or not."""

    pid: int
    start_time: str                       # opaque, equal for one life of a pid on one boot
    state: str                            # ps letter: R S D T Z ...
    argv: tuple[str, ...]
    rss: int = 0
    user: str = ""
    cpu_seconds: float | None = None      # used so far: tells a stalled load from a slow one
    parent: int = 0                       # pid of its parent, 0 = unknown: a wrapper's child is the wrapper's

    @property
    def is_zombie(self) -> bool:
        """A zombie has ended; it is not running."""
        return self.state.startswith("Z")


@dataclass(frozen=True, slots=True)
class Socket:
    """A TCP socket on a node; of listening ones `recv_queue` counts those who wait."""

    local_host: str
    local_port: int
    peer_host: str = ""
    peer_port: int = 0
    listening: bool = False
    recv_queue: int = 0
    pid: int | None = None                # None where the node does not tell us
    program: str = ""
