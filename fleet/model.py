"""The engine's records: what is known of the fleet, at one moment.

All frozen, all plain: sizes in bytes, times in seconds on the engine's monotonic clock (or seconds
since the epoch where a name ends in `_epoch`), shares as fractions of one. Formatting for people
lives in `app/present.py` alone. What comes from a node is untrusted text; it is stored as it came
(bounded in size by the parsers) and escaped where it is shown.

Three kinds of record are kept apart: what the user wants (`fleet.config`), what was observed
(`Node`, `Service`, `Deployment`), and how to get from one to the other (`Operation`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

# ---------------------------------------------------------------------------------------------
# Words shared by all


class Severity(StrEnum):
    """How bad something is."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, for a person: what, and what to do.

    `code` is a stable word ("no-llama", "host-key-changed") for scripts and tests.
    """

    code: str
    what: str
    remedy: str = ""
    severity: Severity = Severity.ERROR


# ---------------------------------------------------------------------------------------------
# A machine, as a probe reads it


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
    """One llama.cpp program on a node."""

    path: str                             # absolute
    program: str                          # "llama-server", "ggml-rpc-server" (also for "rpc-server")
    build: int | None = None              # None: unknown (1 and 0 are placeholders of shallow clones)
    commit: str | None = None
    digest: str = ""                      # SHA-256 hex of the file, or "" when the node cannot tell
    size: int = 0
    mtime: int = 0                        # seconds since the epoch

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


# ---------------------------------------------------------------------------------------------
# Services: processes that we started (or adopted), each with a pid file on its node


class ServiceKind(StrEnum):
    """What a service is, in the field's words."""

    WORKER = "worker"                     # ggml-rpc-server
    COORDINATOR = "coordinator"           # llama-server: the head
    RELAY = "relay"                       # SSH forwards for `rpc: tunnel`
    PROXY = "proxy"
    SEEDER = "seeder"


class ServiceState(StrEnum):
    """What is true of a service now."""

    STARTING = "starting"                 # process runs, does not answer yet
    LOADING = "loading"                   # a head that reads its model
    READY = "ready"                       # answers
    BUSY = "busy"                         # a worker whose one slot is taken, a head whose slots are all taken
    STOPPING = "stopping"
    EXITED = "exited"                     # ended, status 0 or by our TERM
    FAILED = "failed"                     # ended otherwise, or runs and is useless
    STUCK = "stuck"                       # runs and does not move
    UNKNOWN = "unknown"                   # the node is not reachable: last known data


@dataclass(frozen=True, slots=True)
class Share:
    """What one device holds of a model, planned or real. None = not known."""

    node: str
    device: str                           # as the head names it: "RPC0", "CPU", "CUDA0"
    endpoint: str = ""                    # host:port of the worker that it is on; "" on the head itself
    fraction: float | None = None         # of the tensor split, 0..1
    layers: int | None = None             # the output layer counts as one
    model_bytes: int | None = None
    kv_bytes: int | None = None
    compute_bytes: int | None = None


class PlacementState(StrEnum):
    """Planned against real placement of a model."""

    UNKNOWN = "unknown"                   # nothing to compare yet
    MATCHES = "matches"
    LOCAL = "healthy but local"           # every byte sits on the head although workers were planned
    PARTIAL = "worker empty"              # a planned device holds nothing
    OVER = "more than planned"            # a device holds more than it was given


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the plan put a model and where it really sits."""

    planned: tuple[Share, ...] = ()
    real: tuple[Share, ...] = ()
    state: PlacementState = PlacementState.UNKNOWN
    problem: Problem | None = None


@dataclass(frozen=True, slots=True)
class ServiceRecord:
    """What a node's state folder says of one service: the pid file and what became of the process.

    `alive` is judged on the node: the pid exists, its start time matches, and it is no zombie.
    """

    id: str                               # "worker-50052", "coordinator-8080": also the folder's name
    kind: ServiceKind
    pid: int
    start_time: str
    argv: tuple[str, ...]
    port: int
    bind: str                             # address it listens on
    alive: bool
    started_epoch: float
    folder: str                           # absolute, on the node
    exit_status: int | None = None        # shell form: 128 + signal; None = not ended or not known
    stopping: bool = False                # somebody asked it to end
    log_size: int = 0
    build: str = ""                       # "b10068 (571d0d5)"
    fleet: str = ""                       # name of the fleet that started it
    facts: Mapping[str, object] = field(default_factory=dict)
    # JSON written beside the pid file: model, planned placement, real placement, endpoints ...


@dataclass(frozen=True, slots=True)
class Service:
    """A service as the screens show it."""

    record: ServiceRecord
    node: str
    state: ServiceState
    since: float                          # engine clock
    detail: str = ""                      # "loading 42%", "slot held by 10.0.0.2", "exit 134"
    progress: float | None = None         # 0..1 while loading
    problem: Problem | None = None
    held_by: str = ""                     # a worker's client, "host:port"; "" = free
    slots_busy: int | None = None         # of a head
    slots_total: int | None = None
    tokens_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class ForeignProcess:
    """An engine's process on a node that no pid file of ours speaks of."""

    process: Process
    kind: ServiceKind | None              # None: an engine that we do not start (ollama, vllm ...)
    port: int | None = None
    bind: str = ""                        # the address that it listens on


# ---------------------------------------------------------------------------------------------
# A node


class NodeState(StrEnum):
    """What is true of a node now. Each has a glyph and a word on the screen."""

    SEEN = "seen"                         # known of, not tried yet
    CONNECTING = "connecting"
    UP = "up"
    SILENT = "silent"                     # was up; has missed its last polls
    UNREACHABLE = "unreachable"           # no answer from its address
    REFUSED = "no ssh"                    # the machine answers, its SSH port does not
    LOCKED = "locked"                     # no key or password was accepted
    NEW_KEY = "new key"                   # host key never seen: asks, or was refused
    CHANGED_KEY = "key changed"           # known_hosts says otherwise: refused
    BROKEN = "broken"                     # signed in, but its shell gives nothing that can be read
    GONE = "gone"                         # said goodbye


@dataclass(frozen=True, slots=True)
class NodeReading:
    """All that one probe of a node read."""

    os: str = ""                          # "Linux", "Darwin"
    os_version: str = ""
    arch: str = ""                        # "x86_64", "arm64" ...
    hostname: str = ""
    machine_id: str = ""
    user: str = ""
    python: str = ""                      # "3.11" or "" when there is none
    cpu: Cpu = Cpu()
    memory: Memory = Memory()
    disks: tuple[Disk, ...] = ()
    interfaces: tuple[Interface, ...] = ()
    devices: tuple[Device, ...] = ()      # as llama.cpp would list them, CPU last
    binaries: tuple[Binary, ...] = ()
    processes: tuple[Process, ...] = ()
    sockets: tuple[Socket, ...] = ()
    models: tuple[ModelFile, ...] = ()
    services: tuple[ServiceRecord, ...] = ()
    state_folder: str = ""                # where services live on this node; "" = nowhere to write
    problems: tuple[Problem, ...] = ()    # what this node cannot do, and why
    cost: float | None = None             # CPU seconds that the probe used on the node


@dataclass(frozen=True, slots=True)
class Node:
    """One machine of the fleet, under one name however many names and addresses it has."""

    name: str
    state: NodeState = NodeState.SEEN
    since: float = 0.0                    # when the state began
    problem: Problem | None = None        # why it is in this state, and what to do
    local: bool = False                   # this very machine
    configured: bool = False              # named in fleet.yaml (or added by hand)
    sources: tuple[str, ...] = ()         # "fleet.yaml", "mdns", "ssh_config", "local"
    aliases: tuple[str, ...] = ()         # other names of the same machine
    addresses: tuple[Address, ...] = ()   # ranked, best first
    address: Address | None = None        # the one in use, or last used
    host_key: str = ""                    # fingerprint "SHA256:..."
    round_trip: float | None = None       # seconds, of the last small command
    attempts: int = 0                     # failed tries since it was last up
    next_try: float | None = None         # engine clock
    reading: NodeReading | None = None
    read_at: float | None = None          # when `reading` was taken
    services: tuple[Service, ...] = ()
    foreign: tuple[ForeignProcess, ...] = ()


# ---------------------------------------------------------------------------------------------
# What serves


class DeploymentState(StrEnum):
    """What is true of the model that the fleet serves."""

    DOWN = "down"
    STARTING = "starting"
    LOADING = "loading"
    SERVING = "serving"
    DEGRADED = "degraded"                 # answers, but not from where it was planned
    BROKEN = "broken"                     # a part is dead: the next request fails, or has failed
    STOPPING = "stopping"


@dataclass(frozen=True, slots=True)
class Deployment:
    """A model, its head and its workers, as observed; made from pid files, logs and sockets."""

    state: DeploymentState = DeploymentState.DOWN
    since: float = 0.0
    model: str = ""                       # name
    model_path: str = ""                  # on the head
    head: str = ""                        # node
    head_service: str = ""                # service id
    endpoint: str = ""                    # http://host:port that answers
    workers: tuple[tuple[str, str], ...] = ()   # (node, service id)
    context: int | None = None            # tokens
    placement: Placement = Placement()
    problem: Problem | None = None


# ---------------------------------------------------------------------------------------------
# Operations: plans that run


class StepState(StrEnum):
    """Where a step of an operation stands."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    SKIPPED = "skipped"                   # was so already
    FAILED = "failed"
    UNDOING = "undoing"
    UNDONE = "undone"


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step as the screens show it."""

    title: str                            # a sentence: "Start worker on bolt, port 50052"
    node: str = ""
    state: StepState = StepState.WAITING
    started: float | None = None
    ended: float | None = None
    progress: float | None = None         # 0..1
    detail: str = ""


class OperationState(StrEnum):
    """Where an operation stands."""

    PLANNED = "planned"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"                     # and undone
    CANCELLED = "cancelled"               # and undone
    REFUSED = "refused"                   # nothing was started


@dataclass(frozen=True, slots=True)
class Operation:
    """A Plan under way or over."""

    id: int
    kind: str                             # "up", "down", "start", "stop", "restart"
    title: str
    state: OperationState
    steps: tuple[StepRecord, ...] = ()
    started: float = 0.0
    ended: float | None = None
    problem: Problem | None = None        # why it failed or was refused
    remarks: tuple[str, ...] = ()         # what to know before it runs: nodes left out, requests that end


# ---------------------------------------------------------------------------------------------
# Questions that only a person can answer


class QuestionKind(StrEnum):
    """What is asked of the person at the keyboard."""

    HOST_KEY = "host key"                 # answer "yes" or None
    PASSWORD = "password"                 # answer is the password: never stored, never in an event
    PASSPHRASE = "passphrase"


@dataclass(frozen=True, slots=True)
class Question:
    """Something to ask. The answer goes straight to who asked; it is never part of any state."""

    id: int
    kind: QuestionKind
    node: str
    text: str                             # one or two sentences
    detail: str = ""                      # fingerprint, key file ...


# ---------------------------------------------------------------------------------------------
# The whole


@dataclass(frozen=True, slots=True)
class Notice:
    """One line of the flight recorder."""

    at: float                             # engine clock
    at_epoch: float
    severity: Severity
    text: str
    node: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that the engine knows, at one moment."""

    fleet: str = "fleet"
    config_path: str = ""                 # "" = no file
    config_problems: tuple[str, ...] = ()  # the file as it is now is not in force because of these
    discovery: tuple[Problem, ...] = ()   # why a way of finding machines does not work
    nodes: Mapping[str, Node] = field(default_factory=dict)
    deployment: Deployment = Deployment()
    operations: tuple[Operation, ...] = ()   # newest last, the last 20
    questions: tuple[Question, ...] = ()
    notices: tuple[Notice, ...] = ()      # newest last, the last 200
    refresh: float = 2.0                  # seconds between polls, to judge ages by
