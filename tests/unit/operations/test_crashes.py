"""A cockpit that is killed in the middle, and two that are at work at once."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fleet.config.schema import FleetConfig
from fleet.events import BringUp
from fleet.model import DeploymentState, OperationState, ServiceKind
from fleet.operations.bring_up import plan_bring_up
from fleet.operations.hands import Known
from fleet.operations.plan import Plan, Runner
from fleet.operations.services import StartRecorded

from .here import (
    NODE,
    PATIENCE,
    bring_up,
    do,
    head_port,
    nothing_left,
    running,
    sentence,
    service,
    tear_down,
    until,
    with_model,
)

pytestmark = [pytest.mark.engine, pytest.mark.timeout(120)]
SCRIPT = Path(__file__).with_name("bring_up_process.py")


@pytest.fixture
async def cockpit(config: FleetConfig, state: Path, model: Path) -> AsyncIterator[Callable]:
    """Start another process that brings the same model up, and wait until it stands still in a step."""
    started: list[asyncio.subprocess.Process] = []

    async def start(title: str) -> asyncio.subprocess.Process:
        workers = ",".join(str(worker.port) for worker in config.nodes[NODE].workers)
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(SCRIPT), str(state), str(model), str(head_port(config)), workers, title,
            stdout=asyncio.subprocess.PIPE)
        started.append(process)
        if title:
            async with asyncio.timeout(PATIENCE):
                assert await process.stdout.readline() == b"HERE\n"
        return process

    yield start
    for process in started:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.parametrize("title", [
    "Reserve", "after:Reserve", "Start worker", "after:Start worker", "Ask the worker", "Start head",
    "after:Start head", "Load", "Verify", "Ask for one", "Release"])
async def test_a_cockpit_killed_in_any_step_leaves_nothing_in_the_way(
        config: FleetConfig, state: Path, cockpit, title: str) -> None:
    killed = await cockpit(title)
    killed.kill()
    await killed.wait()
    async with running(config) as engine:
        operation = await bring_up(engine)
        if operation.steps:       # it held the reservation: no waiting for it to run out
            assert title == "Reserve" or "which died" in operation.steps[0].detail, operation.steps[0]
        snapshot = await until(engine, lambda s: s.deployment.state is DeploymentState.SERVING)
        assert len(snapshot.nodes[NODE].services) == 3
        assert [f for f in snapshot.nodes[NODE].foreign if str(state) in " ".join(f.process.argv)] == []
        async with engine.head_client() as client:
            assert (await client.complete("1 2 3", n_predict=3)).tokens == 3
        await tear_down(engine)
    nothing_left(state, config)


@pytest.mark.parametrize("title", ["Start worker", "after:Start head", "Load"])
async def test_a_crash_is_cleaned_up_by_a_tear_down_alone(
        config: FleetConfig, state: Path, cockpit, title: str) -> None:
    killed = await cockpit(title)
    killed.kill()
    await killed.wait()
    async with running(config) as engine:
        await tear_down(engine)
    nothing_left(state, config)


async def test_a_cockpit_killed_between_two_models_is_recovered_from(
        config: FleetConfig, state: Path, cockpit) -> None:
    both = with_model(config, "longer", context=1024)
    async with running(both) as engine:
        await bring_up(engine, "longer")
        await until(engine, lambda s: s.deployment.state is DeploymentState.SERVING)
    killed = await cockpit("after:Stop head")
    killed.kill()
    await killed.wait()
    async with running(both) as engine:
        assert engine.latest.deployment.state is DeploymentState.DOWN
        await bring_up(engine, "longer")
        await until(engine, lambda s: s.deployment.state is DeploymentState.SERVING)
        await tear_down(engine)
    nothing_left(state, config)


async def test_the_second_of_two_cockpits_is_told_who_is_at_work(config: FleetConfig, state: Path, cockpit) -> None:
    first = await cockpit("Start head")   # not "Load": a head that loads fast serves by then, and nothing is left to do
    async with running(config) as engine:
        before = {s.record.pid for s in engine.latest.nodes[NODE].services}
        operation = await do(engine, BringUp())
        assert operation.state is OperationState.FAILED and operation.problem.code == "lease-held", operation.problem
        assert f"Another Quarterdeck (process {first.pid} on " in sentence(operation)
        await engine.reread(NODE)
        assert {s.record.pid for s in engine.latest.nodes[NODE].services} == before, "nothing was touched"
        first.kill()
        await first.wait()
        await bring_up(engine)
        await tear_down(engine)
    nothing_left(state, config)


async def test_two_cockpits_at_once_end_with_one_model_that_serves(
        config: FleetConfig, state: Path, cockpit) -> None:
    first = await cockpit("")
    async with running(config) as engine:
        second = await do(engine, BringUp())
        said, _ = await first.communicate()
        ends = {said.split()[0].decode(), second.state.value}
        assert "done" in ends, (said, second)
        if second.state is not OperationState.DONE:
            assert second.problem.code in ("lease-held", "port-taken", "occupied"), second.problem
        await bring_up(engine)
        snapshot = await until(engine, lambda s: s.deployment.state is DeploymentState.SERVING)
        assert len(snapshot.nodes[NODE].services) == 3
        assert (await bring_up(engine)).steps == ()
        await tear_down(engine)
    nothing_left(state, config)


async def test_what_another_cockpit_did_since_the_plan_is_planned_for_anew(config: FleetConfig, state: Path) -> None:
    """The plan says "start both workers"; by the time of the reservation one runs that somebody else has started."""
    async with running(config) as engine, running(config) as other:
        plan = await plan_bring_up(engine, Known(), BringUp())
        await bring_up(other)
        pids = {s.record.pid for s in other.latest.nodes[NODE].services}
        operation = await Runner(plan, 1, engine.clock, lambda operation: None).run()
        assert operation.state is OperationState.FAILED and operation.problem.code == "fleet-changed"
        await other.reread(NODE)
        assert {s.record.pid for s in other.latest.nodes[NODE].services} == pids, "nothing of theirs was ended"
        await until(engine, lambda s: s.deployment.state is DeploymentState.SERVING)
        assert (await bring_up(engine)).steps == ()
        await tear_down(engine)
    nothing_left(state, config)


async def test_a_service_that_somebody_else_started_under_our_name_is_not_ended_by_an_undo(
        config: FleetConfig, state: Path) -> None:
    async with running(config) as engine:
        await bring_up(engine)
        record = service(engine.latest, ServiceKind.WORKER).record
        spec = await engine.supervisor(NODE).spec(record.id)
        step = StartRecorded(engine, NODE, replace(spec, argv=(*spec.argv, "-c")))
        operation = await Runner(Plan("up", "x", (step,)), 1, engine.clock, lambda operation: None).run()
        assert operation.state is OperationState.FAILED and operation.problem.code == "running"
        await engine.reread(NODE)
        assert service(engine.latest, ServiceKind.WORKER).record.pid == record.pid
        await tear_down(engine)
