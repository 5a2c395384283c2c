"""The demo's FleetConfig, and how any later command finds the demo that runs."""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from app.crash import state_home
from fleet.config.schema import (
    HEAD_PORT,
    WORKER_PORT,
    DiscoveryConfig,
    FleetConfig,
    HeadConfig,
    ModelConfig,
    NodeConfig,
    Role,
    WorkerConfig,
)
from fleet.errors import FleetError
from fleet.facts import head_facts
from fleet.model import ServiceKind, ServiceRecord

FLEET = "demo"
NODE = "here"
LOOPBACK = "127.0.0.1"
WORKERS = 2
CONTEXT = 4096             # tokens; the model's own 32768 would take 0.6 GB of KV cache for nothing
PORTS_TRIED = 50           # upwards from the one that is preferred


@dataclass(frozen=True, slots=True)
class Ports:
    """Where the demo listens, on loopback."""

    workers: tuple[int, ...]
    head: int


def state_folder() -> Path:
    """The demo's own: it never meets the services of a real fleet."""
    return state_home() / "demo"


def demo_config(model: str, file: str, ports: Ports, *, cores: int) -> FleetConfig:
    """One node, two workers, one head. Each process gets its part of the cores: they all share this machine."""
    threads = max(1, cores // (len(ports.workers) + 1))
    devices = () if sys.platform == "darwin" else ("CPU",)  # two workers on one GPU would show nothing more
    return FleetConfig(
        fleet=FLEET,
        nodes={NODE: NodeConfig(
            name=NODE, local=True, roles=(Role.HEAD, Role.WORKER),
            workers=tuple(WorkerConfig(port=port, devices=devices, threads=threads) for port in ports.workers),
            head=HeadConfig(port=ports.head, bind=LOOPBACK, threads=threads),
            state_dir=str(state_folder()), rpc_address=LOOPBACK)},
        models={model: ModelConfig(name=model, file=file, head=NODE, workers=(NODE,), context=CONTEXT)},
        model=model,
        discovery=DiscoveryConfig(mdns=False, ssh_config=False, announce=False),
    )


def usable_cores() -> int:
    """Logical processors that this process may use (a container can have fewer than the machine)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def free_ports() -> Ports:
    """The usual ports, or the next ones that nobody listens on."""
    taken: set[int] = set()
    workers = tuple(_free_port(WORKER_PORT + number, taken) for number in range(WORKERS))
    return Ports(workers, _free_port(HEAD_PORT, taken))


def ports_of(records: Sequence[ServiceRecord]) -> Ports | None:
    """Where a demo listens that has live services; None when none lives."""
    if not any(record.alive for record in records):
        return None
    workers = tuple(sorted(r.port for r in records if r.kind is ServiceKind.WORKER))
    heads = [r.port for r in sorted(records, key=lambda r: r.alive) if r.kind is ServiceKind.COORDINATOR]
    if len(workers) == WORKERS and heads:
        return Ports(workers, heads[-1])
    free = free_ports()  # a demo that is half there: what is missing gets a port that is free
    all_workers = (*workers, *(port for port in free.workers if port not in workers))[:WORKERS]
    return Ports(all_workers, heads[-1] if heads else free.head)


def model_of(records: Sequence[ServiceRecord]) -> tuple[str, str] | None:
    """Name and file of the model that the demo's head was started with."""
    for record in records:
        if record.kind is ServiceKind.COORDINATOR:
            facts = head_facts(record.facts)
            if facts.model and facts.model_path:
                return facts.model, facts.model_path
    return None


def _free_port(preferred: int, taken: set[int]) -> int:
    for port in range(preferred, preferred + PORTS_TRIED):
        if port not in taken and _is_free(port):
            taken.add(port)
            return port
    raise FleetError(f"No port from {preferred} to {preferred + PORTS_TRIED - 1} is free on this machine.",
                     "End what listens there.", code="no-port")


def _is_free(port: int) -> bool:
    """Nobody listens there. SO_REUSEADDR as llama.cpp sets it: connections that linger do not matter."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True
