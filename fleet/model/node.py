"""One machine of the fleet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from fleet.model.link import ObservedSpeed
from fleet.model.machine import Address, Binary, Cpu, Device, Disk, Interface, Memory, ModelFile, Process, Socket
from fleet.model.services import ForeignProcess, Service, ServiceRecord
from fleet.model.words import Problem


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
    unfinished: tuple[ModelFile, ...] = ()    # GGUF files that are still being fetched, or lie there in cut pieces


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
    speeds: Mapping[str, ObservedSpeed] = field(default_factory=dict)   # by device, as the node names it
