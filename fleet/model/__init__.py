"""The engine's records: what is known of the fleet, at one moment.

All frozen, all plain: sizes in bytes, times in seconds on the engine's monotonic clock (or seconds
since the epoch where a name ends in `_epoch`), shares as fractions of one. Formatting for people
lives in `app/present.py` alone. What comes from a node is untrusted text; it is stored as it came
(bounded in size by the parsers) and escaped where it is shown.

Three kinds of record are kept apart: what the user wants (`fleet.config`), what was observed
(`Node`, `Service`, `Deployment`), and how to get from one to the other (`Operation`).
"""

from __future__ import annotations

from fleet.model.deployment import (
    Deployment,
    DeploymentState,
)
from fleet.model.link import (
    DeviceReads,
    Link,
    ObservedSpeed,
)
from fleet.model.machine import (
    Address,
    Binary,
    Cpu,
    Device,
    DeviceKind,
    Disk,
    Interface,
    LinkKind,
    Memory,
    ModelFile,
    Process,
    Socket,
)
from fleet.model.node import (
    Node,
    NodeReading,
    NodeState,
)
from fleet.model.operation import (
    Operation,
    OperationState,
    StepRecord,
    StepState,
)
from fleet.model.proxy import (
    Proxy,
    ProxyLoad,
    ProxyRequest,
    ProxyUpstream,
)
from fleet.model.question import (
    Question,
    QuestionKind,
)
from fleet.model.services import (
    ForeignProcess,
    Placement,
    PlacementState,
    Service,
    ServiceKind,
    ServiceRecord,
    ServiceState,
    Share,
)
from fleet.model.snapshot import (
    Notice,
    Snapshot,
)
from fleet.model.swarm import (
    Ban,
    PeerState,
    Swarm,
    SwarmFlow,
    SwarmPeer,
)
from fleet.model.words import (
    Problem,
    Severity,
)

__all__ = [
    "Address",
    "Ban",
    "Binary",
    "Cpu",
    "Deployment",
    "DeploymentState",
    "Device",
    "DeviceKind",
    "DeviceReads",
    "Disk",
    "ForeignProcess",
    "Interface",
    "Link",
    "LinkKind",
    "Memory",
    "ModelFile",
    "Node",
    "NodeReading",
    "NodeState",
    "Notice",
    "ObservedSpeed",
    "Operation",
    "OperationState",
    "PeerState",
    "Placement",
    "PlacementState",
    "Problem",
    "Process",
    "Proxy",
    "ProxyLoad",
    "ProxyRequest",
    "ProxyUpstream",
    "Question",
    "QuestionKind",
    "Service",
    "ServiceKind",
    "ServiceRecord",
    "ServiceState",
    "Severity",
    "Share",
    "Snapshot",
    "Socket",
    "StepRecord",
    "StepState",
    "Swarm",
    "SwarmFlow",
    "SwarmPeer",
]
