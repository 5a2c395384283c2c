"""Fleets of lab nodes, and engines that run for the length of a test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

from fleet.config.schema import (
    DiscoveryConfig,
    FleetConfig,
    HeadConfig,
    ModelConfig,
    NodeConfig,
    SplitMode,
    SshConfig,
    WorkerConfig,
)
from fleet.engine import Engine
from fleet.events import BringUp, TearDown
from fleet.model import Operation, OperationState, Snapshot

MODEL = "gemma"
PATIENCE = 60.0      # seconds that a test waits for what must come; no figure is drawn from it


def fleet_of(lab, *names: str, head: str | None = None, workers: tuple[str, ...] | None = None,
             **changes: object) -> FleetConfig:
    """A configuration of these lab nodes, with the demo model on the head."""
    nodes = {}
    for name in names:
        node = lab.nodes[name]
        nodes[name] = NodeConfig(
            name, addresses=(f"{node['addr']}:{node['port']}",), user=node["user"],
            identity_files=() if node["password"] else (node["key"],),
            workers=(WorkerConfig(threads=1),), head=HeadConfig(threads=1))
    return FleetConfig(
        fleet="lab", nodes=nodes, model=MODEL, refresh=1.0,
        models={MODEL: ModelConfig(MODEL, lab.model(), head=head or names[0], workers=workers, context=2048,
                                   mode=SplitMode.MEMORY)},
        discovery=DiscoveryConfig(mdns=False, ssh_config=False),
        ssh=SshConfig(known_hosts=lab.known_hosts, agent=False), **changes)


@asynccontextmanager
async def running(config: FleetConfig, **options: object) -> AsyncIterator[Engine]:
    """An engine that watches the fleet, every node read or failed once."""
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
        raise AssertionError(f"never came true: {engine.latest.deployment}, "
                             f"{[(n.name, n.state, n.problem) for n in engine.latest.nodes.values()]}") from None
    return engine.latest


async def bring_up(engine: Engine, model: str = "") -> Operation:
    """Bring a model up and see that it was done."""
    operation = await engine.outcome(engine.submit(BringUp(model)))
    assert operation.state is OperationState.DONE, (operation.problem, operation.steps)
    return operation


async def tear_down(engine: Engine) -> Operation:
    """Take everything down and see that it was done."""
    operation = await engine.outcome(engine.submit(TearDown()))
    assert operation.state is OperationState.DONE, operation.problem
    return operation


def with_node(config: FleetConfig, name: str, **changes: object) -> FleetConfig:
    """The configuration with one node changed."""
    return replace(config, nodes={**config.nodes, name: replace(config.nodes[name], **changes)})
