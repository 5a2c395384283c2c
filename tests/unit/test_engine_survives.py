"""A fault of ours, or one of the system's, ends neither the engine nor the others' watch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from fleet.config.schema import DiscoveryConfig, FleetConfig, NodeConfig
from fleet.engine import Engine
from fleet.events import BringUp, TearDown
from fleet.model import NodeState, OperationState, Severity
from fleet.nodes.local import LocalTransport

pytestmark = pytest.mark.timeout(60)


@asynccontextmanager
async def engine_here(state: Path) -> AsyncIterator[Engine]:
    node = NodeConfig("here", local=True, state_dir=str(state), model_dirs=(str(state),))
    engine = Engine(FleetConfig(nodes={"here": node}, refresh=0.2,
                                discovery=DiscoveryConfig(mdns=False, ssh_config=False)), discover=False)
    task = asyncio.ensure_future(engine.run())
    try:
        assert await engine.settled(30)
        yield engine
        assert not task.done(), "it went on to the end"
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@pytest.mark.parametrize("error", [OSError(24, "Too many open files"), RuntimeError("no running loop"),
                                   UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"), AssertionError("asyncssh")])
async def test_an_error_in_watching_marks_the_node_and_it_is_watched_again(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    monkeypatch.setattr("fleet.engine.AGAIN_AFTER", 0.1)
    async with engine_here(tmp_path) as engine:
        as_it_is = LocalTransport.run

        async def run(self, *arguments, **options):
            raise error

        monkeypatch.setattr(LocalTransport, "run", run)
        while engine.latest.nodes["here"].state is not NodeState.BROKEN:
            await engine.changed(engine.version)
        assert engine.latest.nodes["here"].problem.code == "internal"
        assert any(n.severity is Severity.ERROR and type(error).__name__ in n.text for n in engine.latest.notices)
        monkeypatch.setattr(LocalTransport, "run", as_it_is)
        while engine.latest.nodes["here"].state is not NodeState.UP:
            await engine.changed(engine.version)


@pytest.mark.parametrize("command", [BringUp(), TearDown()])
async def test_an_error_in_planning_refuses_the_operation(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command) -> None:
    async with engine_here(tmp_path) as engine:
        def broken(*arguments):
            raise KeyError("nobody thought of this")

        for name in ("plan_bring_up", "plan_tear_down"):
            monkeypatch.setattr(f"fleet.operations.desk.{name}", broken)
        assert (await engine.plan(command)).state is OperationState.REFUSED
        operation = await engine.outcome(engine.submit(command))
        assert (operation.state, operation.problem.code) == (OperationState.REFUSED, "internal")
        assert engine.latest.operations[-1] == operation


async def test_an_error_in_looking_for_machines_is_told_and_ends_nothing(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(self):
        raise OSError(19, "No such device")

    monkeypatch.setattr("fleet.discovery.finder.Finder.run", run)
    engine = Engine(FleetConfig(nodes={"here": NodeConfig("here", local=True)}), discover=True)
    task = asyncio.ensure_future(engine.run())
    try:
        assert await engine.settled(30)
        assert any("while looking for machines" in n.text for n in engine.latest.notices)
        assert engine.latest.nodes["here"].state is NodeState.UP and not task.done()
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_a_hundred_operations_are_not_kept_for_ever(tmp_path: Path) -> None:
    async with engine_here(tmp_path) as engine:
        for _ in range(130):
            await engine.outcome(engine.submit(TearDown()))
        assert len(engine._operations._tasks) <= 101
