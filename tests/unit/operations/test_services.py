"""One service at a time, as the keyboard asks for it: adopt, end, stop, start, restart."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from fleet.config.schema import FleetConfig
from fleet.events import AdoptProcess, EndProcess, RestartService, StartService, StopService
from fleet.model import DeploymentState, OperationState, ServiceKind, ServiceState

from .here import (
    LOOPBACK,
    NODE,
    bring_up,
    do,
    free_port,
    head_port,
    nothing_left,
    running,
    sentence,
    service,
    tear_down,
    until,
    worker_port,
)

pytestmark = [pytest.mark.engine, pytest.mark.timeout(120)]
SOON = 5.0


async def serving(engine) -> None:
    await bring_up(engine)
    await until(engine, lambda s: s.deployment.state is DeploymentState.SERVING)


async def test_a_worker_restarted_under_its_head_breaks_it_until_it_is_brought_up_again(
        config: FleetConfig, state: Path) -> None:
    port = worker_port(config)
    async with running(config) as engine:
        await serving(engine)
        planned = await engine.plan(RestartService(NODE, f"worker-{port}"))
        assert "its next request fails" in planned.remarks[0]
        operation = await do(engine, RestartService(NODE, f"worker-{port}"))
        assert operation.state is OperationState.DONE, operation.problem
        snapshot = await until(engine, lambda s: s.deployment.state is DeploymentState.BROKEN and (
            s.deployment.problem.code == "worker-detached"), SOON)
        assert f"worker-{port} on {NODE} runs, but the head is not connected" in snapshot.deployment.problem.what
        await serving(engine)
        async with engine.head_client() as client:
            assert (await client.complete("1 2 3", n_predict=3)).tokens == 3
        await tear_down(engine)
    nothing_left(state, config)


async def test_a_head_restarted_after_its_worker_serves_again(config: FleetConfig) -> None:
    worker, head = f"worker-{worker_port(config)}", f"coordinator-{head_port(config)}"
    async with running(config) as engine:
        await serving(engine)
        assert (await do(engine, RestartService(NODE, worker))).state is OperationState.DONE
        await until(engine, lambda s: s.deployment.state is DeploymentState.BROKEN)
        assert (await do(engine, RestartService(NODE, head))).state is OperationState.DONE
        await until(engine, lambda s: s.deployment.state is DeploymentState.SERVING)
        async with engine.head_client() as client:
            assert (await client.complete("1 2 3", n_predict=3)).tokens == 3
        await tear_down(engine)


async def test_a_stopped_worker_breaks_its_head_and_can_be_started_again(config: FleetConfig) -> None:
    id = f"worker-{worker_port(config)}"
    async with running(config) as engine:
        await serving(engine)
        assert (await do(engine, StopService(NODE, id))).state is OperationState.DONE
        snapshot = await until(engine, lambda s: s.deployment.state is DeploymentState.BROKEN, SOON)
        assert snapshot.deployment.problem.code == "worker-dead"
        stopped = service(snapshot, ServiceKind.WORKER, worker_port(config))
        assert (stopped.state, stopped.detail) == (ServiceState.EXITED, "stopped")
        assert (await do(engine, StopService(NODE, id))).steps == ()
        assert (await do(engine, StartService(NODE, id))).state is OperationState.DONE
        await until(engine, lambda s: service(s, ServiceKind.WORKER, worker_port(config)).state is ServiceState.READY,
                    SOON)
        assert (await do(engine, StartService(NODE, id))).steps == ()
        await serving(engine)
        await tear_down(engine)


async def test_a_head_is_stopped_started_and_restarted_as_it_was(config: FleetConfig, state: Path) -> None:
    id = f"coordinator-{head_port(config)}"
    async with running(config) as engine:
        await serving(engine)
        before = service(engine.latest, ServiceKind.COORDINATOR).record
        assert (await do(engine, StopService(NODE, id))).state is OperationState.DONE
        await until(engine, lambda s: s.deployment.state is DeploymentState.DOWN, SOON)
        assert (await do(engine, StartService(NODE, id))).state is OperationState.DONE
        snapshot = await until(engine, lambda s: s.deployment.state is DeploymentState.SERVING)
        assert service(snapshot, ServiceKind.COORDINATOR).record.argv == before.argv
        assert snapshot.deployment.workers == tuple((NODE, f"worker-{w.port}") for w in config.nodes[NODE].workers)
        assert (await do(engine, RestartService(NODE, id))).state is OperationState.DONE
        await until(engine, lambda s: s.deployment.state is DeploymentState.SERVING)
        assert (await bring_up(engine)).steps == (), "it is what was wanted, whoever started it"
        await tear_down(engine)
    nothing_left(state, config)


async def test_a_killed_head_is_told_with_how_it_ended(config: FleetConfig) -> None:
    async with running(config) as engine:
        await serving(engine)
        os.kill(service(engine.latest, ServiceKind.COORDINATOR).record.pid, signal.SIGKILL)
        snapshot = await until(engine, lambda s: s.deployment.state is DeploymentState.BROKEN and (
            "SIGKILL" in s.deployment.problem.what), SOON)
        head = service(snapshot, ServiceKind.COORDINATOR)
        assert (head.state, head.detail) == (ServiceState.FAILED, "exit 137")
        await serving(engine)
        await tear_down(engine)


async def test_a_foreign_process_is_ended_and_no_other_in_its_place(
        config: FleetConfig, folder: str, by_hand) -> None:
    port = free_port()
    process = await by_hand(f"{folder}/ggml-rpc-server", "-H", LOOPBACK, "-p", str(port), "-d", "CPU", port=port)
    async with running(config) as engine:
        foreign = next(f for f in engine.latest.nodes[NODE].foreign if f.process.pid == process.pid)
        wrong = await do(engine, EndProcess(NODE, process.pid, f"{foreign.process.start_time}0"))
        assert wrong.state is OperationState.FAILED and "nothing was signalled" in sentence(wrong)
        assert process.returncode is None
        operation = await do(engine, EndProcess(NODE, process.pid, foreign.process.start_time))
        assert operation.state is OperationState.DONE, operation.problem
        assert operation.title == f"End ggml-rpc-server on {NODE}, pid {process.pid}"
        await asyncio.wait_for(process.wait(), 10)
        again = await do(engine, EndProcess(NODE, process.pid, foreign.process.start_time))
        assert again.state in (OperationState.DONE, OperationState.FAILED)


@pytest.mark.parametrize("command", [
    AdoptProcess("nowhere", 1, "x"), EndProcess("nowhere", 1, "x"), AdoptProcess(NODE, 1, "x"),
    StopService("nowhere", "worker-1"), StopService(NODE, "worker-1"), StartService(NODE, "../../etc"),
    RestartService(NODE, "worker-1")])
async def test_what_is_not_there_is_refused_with_a_sentence(config: FleetConfig, command) -> None:
    async with running(config) as engine:
        assert (await engine.plan(command)).state is OperationState.REFUSED
        operation = await do(engine, command)
        assert operation.state is OperationState.REFUSED and operation.problem.code != "internal", operation.problem
        assert operation.ended is not None


async def test_tearing_down_twice_is_fine(config: FleetConfig, state: Path) -> None:
    async with running(config) as engine:
        await serving(engine)
        await tear_down(engine)
        again = await tear_down(engine)
        assert again.steps == () and again.title == "Nothing of ours runs"
        assert engine.latest.deployment.state is DeploymentState.DOWN
    nothing_left(state, config)


async def test_tearing_down_after_everything_was_killed_leaves_nothing(config: FleetConfig, state: Path) -> None:
    async with running(config) as engine:
        await serving(engine)
        for each in engine.latest.nodes[NODE].services:
            os.kill(each.record.pid, signal.SIGKILL)
        await until(engine, lambda s: all(e.state is ServiceState.FAILED for e in s.nodes[NODE].services))
        await tear_down(engine)
    nothing_left(state, config)
