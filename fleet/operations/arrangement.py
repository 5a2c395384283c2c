"""A bring-up under way: what was decided, and what becomes known only when the workers have answered."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace

from fleet.config.schema import HeadConfig, NodeConfig
from fleet.model import Share
from fleet.models.gguf import GgufHeader
from fleet.nodes.notes import SlotsFolder
from fleet.nodes.supervisor import ServiceSpec
from fleet.operations.streaming import Streaming
from fleet.planning.choose import Choice, WorkerChoice
from fleet.planning.situation import Verdict
from fleet.runtimes.binaries import Flags
from fleet.runtimes.head_log import HeadLog
from fleet.runtimes.rpc_wire import WorkerAnswer


@dataclass(frozen=True, slots=True)
class Seat:
    """One worker of an arrangement: where it listens, and what the head dials."""

    choice: WorkerChoice
    bind: str                      # IPv4 that the worker listens on
    dial_host: str                 # what the head dials; with a tunnel its own loopback
    dial_port: int
    spec: ServiceSpec | None       # None: not managed by us
    tunnelled: bool = False

    @property
    def endpoint(self) -> str:
        """host:port as `--rpc` has it."""
        return f"{self.dial_host}:{self.dial_port}"

    @property
    def service(self) -> str:
        """Its service id, "" when it is not ours."""
        return self.spec.id if self.spec else ""


@dataclass(frozen=True, slots=True)
class LocalDevice:
    """A GPU of the head itself, as that binary lists it."""

    name: str
    memory_free: int               # bytes


@dataclass
class Arrangement:
    """Everything that the steps of one bring-up share."""

    choice: Choice
    head: NodeConfig
    header: GgufHeader
    file_size: int                                     # bytes, all shards
    seats: tuple[Seat, ...]                            # of the workers that take part
    head_flags: Flags
    protocol: tuple[int, int, int] | None              # that the head speaks; None = it has no workers
    local_devices: tuple[LocalDevice, ...] = ()
    slots: SlotsFolder | None = None                   # where the head keeps prompts over a swap
    streaming: Streaming | None = None                 # its experts are read from disk inside a budget
    spoken: dict[str, tuple[int, int, int]] = field(default_factory=dict)   # RPC protocol by endpoint, where asked
    verdicts: tuple[Verdict, ...] = ()                 # of the compatibility rules
    answers: dict[str, WorkerAnswer] = field(default_factory=dict)   # by endpoint
    planned: tuple[Share, ...] = ()
    log: HeadLog | None = None
    recent: tuple[str, ...] = ()                       # models that were served before this one
    left_over: set[str] = field(default_factory=set)   # endpoints of workers that a head which is gone still holds

    def __post_init__(self) -> None:
        self._candidates = self.seats      # those that could: what is wanted stays the same when fewer are needed

    @property
    def head_node(self) -> str:
        """Name of the head's node."""
        return self.choice.head.name

    @property
    def head_config(self) -> HeadConfig:
        """The head's settings."""
        return self.head.head

    @property
    def head_service(self) -> str:
        """Service id of the head."""
        return f"coordinator-{self.head_config.port}"

    @property
    def wish(self) -> str:
        """A digest of what is wanted: equal for a second bring-up of the same thing."""
        workers = [(seat.choice.node.name, seat.endpoint, seat.spec.argv if seat.spec else (),
                    seat.spec.facts.get("env") if seat.spec else "") for seat in self._candidates]
        plain = replace(self.choice.model, pinned=False, priority=0, aliases=())      # these are no matter of the head
        wanted = [repr(plain), self.head_node, repr(self.head_config), self.choice.head_binary.path,
                  self.choice.head_binary.commit, workers]
        return hashlib.sha256(json.dumps(wanted).encode()).hexdigest()
