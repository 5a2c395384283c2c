"""A step that fails undoes what was done, and says node, process, last lines and likely cause."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from fleet.config.schema import FleetConfig
from fleet.engine import Engine
from fleet.events import BringUp
from fleet.model import DeploymentState, Operation, OperationState, ServiceKind, StepState

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
    with_node,
    worker_port,
)

pytestmark = [pytest.mark.engine, pytest.mark.timeout(120)]
ABSURD = 100_000_000   # tokens: 300 GB of KV cache, which no allocator grants; ten times more fill 14 GB of cells first


def with_worker(config: FleetConfig, **changes: object) -> FleetConfig:
    """The configuration with its last worker changed."""
    *others, last = config.nodes[NODE].workers
    return with_node(config, workers=(*others, replace(last, **changes)))


async def failed(engine: Engine, model: str = "") -> Operation:
    operation = await do(engine, BringUp(model))
    assert operation.state is OperationState.FAILED, operation
    wrong = next(step for step in operation.steps if step.state is StepState.FAILED)
    assert wrong.detail == operation.problem.what
    assert all(step.state is StepState.UNDONE for step in operation.steps
               if step.title.startswith(("Start", "Reserve")) and step.started and step is not wrong)
    return operation


def step_begins(engine: Engine, number: int, title: str):
    """Whether a step of an operation is under way."""
    def holds(snapshot) -> bool:
        return any(o.id == number and any(s.title.startswith(title) and s.state is StepState.RUNNING for s in o.steps)
                   for o in snapshot.operations)
    return until(engine, holds)


async def test_a_worker_that_dies_at_its_start(config: FleetConfig, state: Path) -> None:
    async with running(with_worker(config, devices=("CUDA9",))) as engine:
        said = sentence(await failed(engine))
    assert f"worker-{worker_port(config, 1)} on {NODE} ended. There is no device CUDA9" in said, said
    assert "Its last lines: available devices:" in said
    nothing_left(state, config)


async def test_a_head_with_an_option_that_it_does_not_know(config: FleetConfig, state: Path) -> None:
    async with running(with_model(config, extra_args=("--no-such-option",))) as engine:
        operation = await do(engine, BringUp())
        assert operation.state in (OperationState.REFUSED, OperationState.FAILED)
        assert "--no-such-option" in sentence(operation)
    nothing_left(state, config)


async def test_a_head_that_is_given_a_value_that_it_refuses(config: FleetConfig, state: Path) -> None:
    async with running(with_model(config, extra_args=("--threads-batch", "many"))) as engine:
        said = sentence(await failed(engine))
    assert f"coordinator-{head_port(config)} on {NODE} ended." in said and "--threads-batch" in said, said
    nothing_left(state, config)


async def test_a_context_that_no_memory_holds(config: FleetConfig, state: Path) -> None:
    """The planner refuses it; who says the shares themselves is believed, and then the load fails."""
    async with running(with_model(config, context=ABSURD)) as engine:
        operation = await do(engine, BringUp())
        assert operation.state is OperationState.REFUSED and "gemma does not fit" in sentence(operation)
    async with running(with_model(config, context=ABSURD, split={NODE: 1.0})) as engine:
        said = sentence(await failed(engine))
    assert f"coordinator-{head_port(config)} on {NODE} ended." in said and "memory" in said, said
    assert "Its last lines:" in said
    nothing_left(state, config)


async def test_a_load_that_stands_still_is_given_up_and_says_who_is_stopped(
        config: FleetConfig, state: Path) -> None:
    async with running(config, stalled_after=3.0) as engine:
        number = engine.submit(BringUp())
        await step_begins(engine, number, "Start head")
        pid = service(engine.latest, ServiceKind.WORKER, worker_port(config, 1)).record.pid
        os.kill(pid, signal.SIGSTOP)
        operation = await engine.outcome(number)
        assert operation.state is OperationState.FAILED and operation.problem.code == "stalled", operation.problem
        assert f"ggml-rpc-server on {NODE} (pid {pid}) is stopped" in sentence(operation)
    nothing_left(state, config)


async def test_a_worker_that_dies_while_its_head_loads_is_what_is_named(config: FleetConfig, state: Path) -> None:
    async with running(config) as engine:
        number = engine.submit(BringUp())
        await step_begins(engine, number, "Load")
        os.kill(service(engine.latest, ServiceKind.WORKER, worker_port(config)).record.pid, signal.SIGKILL)
        operation = await engine.outcome(number)
        assert operation.state is OperationState.FAILED
        assert f"worker-{worker_port(config)} on {NODE} ended. It was killed (SIGKILL)" in sentence(operation)
    nothing_left(state, config)


async def test_what_served_before_serves_again_when_another_model_fails(config: FleetConfig, state: Path) -> None:
    both = with_model(config, "vast", context=ABSURD, split={NODE: 1.0})
    async with running(both) as engine:
        await bring_up(engine)
        before = await until(engine, lambda s: s.deployment.state is DeploymentState.SERVING)
        workers = {s.record.pid for s in before.nodes[NODE].services if s.record.kind is ServiceKind.WORKER}
        operation = await failed(engine, "vast")
        assert any(step.title.startswith("Stop head") and step.state is StepState.UNDONE for step in operation.steps)
        after = await until(engine, lambda s: s.deployment.state is DeploymentState.SERVING)
        assert after.deployment.model == "gemma"
        assert {s.record.pid for s in after.nodes[NODE].services if s.record.kind is ServiceKind.WORKER} == workers
        async with engine.head_client() as client:
            assert (await client.complete("1 2 3", n_predict=3)).tokens == 3
        assert (await bring_up(engine)).steps == ()
        await tear_down(engine)
    nothing_left(state, config)


async def test_a_second_model_takes_the_place_of_the_first(config: FleetConfig, state: Path) -> None:
    both = with_model(config, "longer", context=1024)
    async with running(both) as engine:
        await bring_up(engine)
        await bring_up(engine, "longer")
        snapshot = await until(engine, lambda s: s.deployment.state is DeploymentState.SERVING)
        assert (snapshot.deployment.model, snapshot.deployment.context) == ("longer", 1024)
        await tear_down(engine)
    nothing_left(state, config)


@pytest.mark.parametrize("title", ["Start worker", "Ask the worker", "Start head", "Load", "Verify", "Ask for one"])
async def test_the_end_of_the_engine_undoes_what_is_under_way(
        config: FleetConfig, state: Path, title: str) -> None:
    engine = Engine(config, discover=False)
    task = asyncio.ensure_future(engine.run())
    assert await engine.settled(PATIENCE)
    number = engine.submit(BringUp())
    await step_begins(engine, number, title)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    operation = await engine.outcome(number)
    assert operation.state is OperationState.CANCELLED
    nothing_left(state, config)


async def test_the_end_of_the_engine_waits_for_an_undo_that_is_under_way(config: FleetConfig, state: Path) -> None:
    """First the operation is cancelled, then the engine: the second cancellation leaves nothing half undone."""
    engine = Engine(config, discover=False)
    task = asyncio.ensure_future(engine.run())
    assert await engine.settled(PATIENCE)
    number = engine.submit(BringUp())
    await step_begins(engine, number, "Load")
    engine.cancel(number)
    await until(engine, lambda s: any(step.state is StepState.UNDOING for o in s.operations for step in o.steps))
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert (await engine.outcome(number)).state is OperationState.CANCELLED
    nothing_left(state, config)
