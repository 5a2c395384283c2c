"""Processes that we started (or adopted), each with a pid file on its node, and where a model really sits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from fleet.model.machine import Process
from fleet.model.words import Problem


class ServiceKind(StrEnum):
    """What a service is, in the field's words."""

    WORKER = "worker"                     # ggml-rpc-server
    COORDINATOR = "coordinator"           # llama-server, or vLLM's first rank: the head
    STAGE = "stage"                       # a further rank of vLLM, or a node of its Ray cluster
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
