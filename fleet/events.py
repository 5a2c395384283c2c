"""What happens to the fleet, as frozen records: the only way that the Snapshot changes.

Watchers and operations make events; `reduce.reduce` turns a Snapshot and an event into the next
Snapshot. `at` is the engine's monotonic clock in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fleet.model import (
    Address,
    Deployment,
    Link,
    NodeReading,
    NodeState,
    ObservedSpeed,
    Operation,
    Problem,
    Proxy,
    Question,
    Service,
    Severity,
    Swarm,
)


@dataclass(frozen=True, slots=True)
class ConfigLoaded:
    """A configuration came into force. `names` are its nodes."""

    at: float
    fleet: str
    path: str
    names: tuple[str, ...]
    refresh: float


@dataclass(frozen=True, slots=True)
class ConfigRejected:
    """The file on disk is broken; what was in force stays so."""

    at: float
    path: str
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DiscoveryReported:
    """The ways of finding machines that do not work, and why; () = all do."""

    at: float
    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True)
class NodeFound:
    """A machine is known of, or known of by more: merged by whoever sends this."""

    at: float
    name: str
    addresses: tuple[Address, ...]
    sources: tuple[str, ...]
    aliases: tuple[str, ...] = ()
    local: bool = False
    configured: bool = False


@dataclass(frozen=True, slots=True)
class NodeForgotten:
    """A machine is no longer part of the fleet: pruned, renamed into another, or out of the file."""

    at: float
    name: str
    into: str = ""                # the name of the same machine that stays, if that is why


@dataclass(frozen=True, slots=True)
class NodeStateChanged:
    """A node's connection went from one state to another."""

    at: float
    name: str
    state: NodeState
    problem: Problem | None = None
    address: Address | None = None
    host_key: str = ""
    attempts: int = 0
    next_try: float | None = None


@dataclass(frozen=True, slots=True)
class NodeLeft:
    """A machine that announced itself said goodbye, or fell silent. One that is connected is known better."""

    at: float
    name: str
    problem: Problem


@dataclass(frozen=True, slots=True)
class NodeRead:
    """A probe of a node came back."""

    at: float
    name: str
    reading: NodeReading
    round_trip: float | None = None


@dataclass(frozen=True, slots=True)
class ServicesJudged:
    """What a node's services are doing, by all evidence there is."""

    at: float
    node: str
    services: tuple[Service, ...]


@dataclass(frozen=True, slots=True)
class DeploymentJudged:
    """What serves, by all evidence there is."""

    at: float
    deployment: Deployment


@dataclass(frozen=True, slots=True)
class LinksMeasured:
    """Ways between a head and workers, as just measured."""

    at: float
    links: tuple[Link, ...]


@dataclass(frozen=True, slots=True)
class SpeedsObserved:
    """What the devices of a node were seen to do while they served."""

    at: float
    node: str
    speeds: Mapping[str, ObservedSpeed]       # by device


@dataclass(frozen=True, slots=True)
class ProxiesSeen:
    """Every proxy that is known of, as last heard."""

    at: float
    proxies: tuple[Proxy, ...]


@dataclass(frozen=True, slots=True)
class CockpitSeen:
    """Another cockpit acts on this fleet, or none does ("")."""

    at: float
    holder: str


@dataclass(frozen=True, slots=True)
class SwarmChanged:
    """A swarm began, moved on or ended."""

    at: float
    swarm: Swarm


@dataclass(frozen=True, slots=True)
class SwarmForgotten:
    """A swarm is no longer of interest."""

    at: float
    id: str


@dataclass(frozen=True, slots=True)
class OperationChanged:
    """An operation began, moved on or ended."""

    at: float
    operation: Operation


@dataclass(frozen=True, slots=True)
class QuestionAsked:
    """Somebody has to answer something."""

    at: float
    question: Question


@dataclass(frozen=True, slots=True)
class QuestionSettled:
    """A question was answered or withdrawn. The answer is not part of any event."""

    at: float
    id: int


@dataclass(frozen=True, slots=True)
class Noted:
    """A line for the flight recorder that no other event makes by itself."""

    at: float
    at_epoch: float
    severity: Severity
    text: str
    node: str = ""


Event = (ConfigLoaded | ConfigRejected | DiscoveryReported | NodeFound | NodeForgotten | NodeStateChanged | NodeLeft
         | NodeRead | ServicesJudged | DeploymentJudged | LinksMeasured | OperationChanged | QuestionAsked
         | QuestionSettled | SpeedsObserved | ProxiesSeen | CockpitSeen | SwarmChanged | SwarmForgotten | Noted)


# ---------------------------------------------------------------------------------------------
# Commands: what a face asks of the engine, by `Engine.submit`


@dataclass(frozen=True, slots=True)
class BringUp:
    """Bring a model up over the fleet; "" = the one that fleet.yaml names."""

    model: str = ""
    without: tuple[str, ...] = ()         # nodes that take no part this time
    spare: bool = False                   # workers that the model names and that cannot be used are left out
    drain: float = 120.0                  # seconds that running requests are waited for, where another model serves


@dataclass(frozen=True, slots=True)
class TearDown:
    """End every service of ours on every node that can be reached."""


@dataclass(frozen=True, slots=True)
class StartService:
    """Start again a service that ended, as it was."""

    node: str
    service: str


@dataclass(frozen=True, slots=True)
class StopService:
    """End one service."""

    node: str
    service: str


@dataclass(frozen=True, slots=True)
class RestartService:
    """End one service and start it again as it was."""

    node: str
    service: str


@dataclass(frozen=True, slots=True)
class AdoptProcess:
    """Take a process that somebody else started under our care: write its pid file."""

    node: str
    pid: int
    start_time: str


@dataclass(frozen=True, slots=True)
class EndProcess:
    """End a process that is not ours. The user was asked first."""

    node: str
    pid: int
    start_time: str


@dataclass(frozen=True, slots=True)
class StartProxy:
    """Start a proxy as a process of its own; "" = on this machine."""

    node: str = ""


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """End one live request of a proxy: its client gets an error. `service` "" = the proxy inside this engine."""

    node: str
    service: str
    request: str


@dataclass(frozen=True, slots=True)
class Distribute:
    """Bring a model to other nodes: NODE:PATH, a name of fleet.yaml, or a name or path that the fleet knows."""

    model: str
    to: tuple[str, ...]                   # names of nodes, or ("all",)
    sha256: tuple[str, ...] = ()          # of each file, as the hub says; () = not compared
    limit: float = 0.0                    # bytes a second that the source sends, 0 = no limit
    folder: str = ""                      # where it goes; "" = the node's first folder for models that can be written


@dataclass(frozen=True, slots=True)
class StartSeeder:
    """Give models of this machine away, by a process of its own. Each has its manifest beside it."""

    paths: tuple[str, ...]                # absolute; of the first file of each model
    host: str = "127.0.0.1"               # address that it listens on
    port: int = 9080
    token: str = field(default="", repr=False)
    allowed: tuple[str, ...] = ()         # networks, CIDR; () = every address
    open: bool = False                    # anybody may fetch, also from other machines
    limit: float = 0.0                    # bytes a second to all together, 0 = no limit
    limit_each: float = 0.0               # bytes a second to each


Command = (BringUp | TearDown | StartService | StopService | RestartService | AdoptProcess | EndProcess
           | StartProxy | CancelRequest | Distribute | StartSeeder)
