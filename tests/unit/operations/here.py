"""A fleet of this machine alone, with real llama.cpp on loopback, and engines that run for the length of a test."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import psutil

from fleet.config.schema import DiscoveryConfig, FleetConfig, HeadConfig, ModelConfig, NodeConfig, WorkerConfig
from fleet.engine import Engine
from fleet.events import BringUp, Command, TearDown
from fleet.model import Operation, OperationState, Service, ServiceKind, Snapshot

NODE, MODEL = "here", "gemma"
LOOPBACK = "127.0.0.1"
PATIENCE = 60.0      # seconds that a test waits for what must come; no figure is drawn from it
PROGRAMS = ("llama-server", "ggml-rpc-server")


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind((LOOPBACK, 0))
        return sock.getsockname()[1]


def fleet_here(state: Path, model: str | Path, *, workers: int = 2, **changes: object) -> FleetConfig:
    """One node, its workers and its head on free ports, with the model over the workers."""
    node = NodeConfig(
        NODE, local=True, state_dir=str(state), rpc_address=LOOPBACK, model_dirs=(str(state / "none"),),
        workers=tuple(WorkerConfig(port=free_port(), devices=("CPU",), threads=1) for _ in range(workers)),
        head=HeadConfig(port=free_port(), threads=1))
    return FleetConfig(
        fleet="test", nodes={NODE: node}, model=MODEL, refresh=0.5,
        models={MODEL: ModelConfig(MODEL, str(model), head=NODE, workers=(NODE,) if workers else (), context=512,
                                   slots=1)},
        discovery=DiscoveryConfig(mdns=False, ssh_config=False, announce=False), **changes)


def with_node(config: FleetConfig, **changes: object) -> FleetConfig:
    return replace(config, nodes={NODE: replace(config.nodes[NODE], **changes)})


def with_model(config: FleetConfig, name: str = MODEL, **changes: object) -> FleetConfig:
    """The configuration with a model changed, or one more that is as the first one but for the changes."""
    model = replace(config.models.get(name, config.models[MODEL]), name=name, **changes)
    return replace(config, models={**config.models, name: model})


def worker_port(config: FleetConfig, number: int = 0) -> int:
    return config.nodes[NODE].workers[number].port


def head_port(config: FleetConfig) -> int:
    return config.nodes[NODE].head.port


@asynccontextmanager
async def running(config: FleetConfig, **options: object) -> AsyncIterator[Engine]:
    """An engine that watches this machine, read once."""
    engine = Engine(config, **{"discover": False, **options})
    task = asyncio.ensure_future(engine.run())
    try:
        assert await engine.settled(PATIENCE)
        yield engine
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def until(engine: Engine, holds: Callable[[Snapshot], object], timeout: float = PATIENCE) -> Snapshot:
    """Wait for a Snapshot of which `holds` is true."""
    try:
        async with asyncio.timeout(timeout):
            while not holds(engine.latest):
                await engine.changed(engine.version)
    except TimeoutError:
        node = engine.latest.nodes.get(NODE)
        raise AssertionError(f"never came true: {engine.latest.deployment}, {engine.latest.operations[-1:]}, "
                             f"{node and node.services}") from None
    return engine.latest


async def do(engine: Engine, command: Command) -> Operation:
    """Carry a command out to its end, whatever that is."""
    return await engine.outcome(engine.submit(command))


async def bring_up(engine: Engine, model: str = "") -> Operation:
    operation = await do(engine, BringUp(model))
    assert operation.state is OperationState.DONE, (operation.problem, operation.steps)
    return operation


async def tear_down(engine: Engine) -> Operation:
    operation = await do(engine, TearDown())
    assert operation.state is OperationState.DONE, operation.problem
    return operation


def service(snapshot: Snapshot, kind: ServiceKind, port: int | None = None) -> Service:
    return next(s for s in snapshot.nodes[NODE].services if s.record.kind is kind and port in (None, s.record.port))


def sentence(operation: Operation) -> str:
    """What a person reads of how it ended."""
    assert operation.problem is not None
    return f"{operation.problem.what} {operation.problem.remedy}"


def processes_of(state: Path, *ports: int) -> list[str]:
    """What runs of a test: by its ports or its state folder, past everything that we say of it."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline", "status"]):
        words = process.info["cmdline"] or []
        ours = str(state) in " ".join(words) or any(str(port) in words for port in ports)
        engine = any(word.rpartition("/")[2] in PROGRAMS for word in words[:4]) or "keeper.sh" in " ".join(words)
        if ours and engine and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(" ".join(words))
    return found


def nothing_left(state: Path, config: FleetConfig) -> None:
    """No process, no port, no pid file."""
    ports = [head_port(config), *(worker.port for worker in config.nodes[NODE].workers)]
    assert processes_of(state, *ports) == []
    assert not (state / "services").exists() or list((state / "services").iterdir()) == []
    for port in ports:
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((LOOPBACK, port))
