"""Healthy is not placed: a head that answers, and holds the whole model itself."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from fleet.config.schema import FleetConfig
from fleet.events import AdoptProcess, RestartService
from fleet.facts import HeadFacts, WorkerRef
from fleet.model import DeploymentState, OperationState, PlacementState, ServiceKind, ServiceState, Share
from fleet.nodes.local import LocalTransport
from fleet.nodes.supervisor import ServiceSpec, Supervisor

from .here import (
    LOOPBACK,
    MODEL,
    NODE,
    bring_up,
    do,
    head_port,
    nothing_left,
    running,
    service,
    tear_down,
    until,
    worker_port,
)

pytestmark = [pytest.mark.engine, pytest.mark.timeout(120)]


def head_argv(folder: str, model: Path, port: int, *workers: int) -> tuple[str, ...]:
    """A head as somebody starts it by hand: without --device, so that this build goes on without its workers."""
    rpc = ("--rpc", ",".join(f"{LOOPBACK}:{worker}" for worker in workers)) if workers else ()
    return (f"{folder}/llama-server", *rpc, "-m", str(model), "-a", MODEL, "-ngl", "99", "-c", "512", "-np", "1", "-t",
            "1", "-lv", "4", "--host", LOOPBACK, "--port", str(port))


async def health(port: int) -> int:
    async with httpx.AsyncClient() as client:
        return (await client.get(f"http://{LOOPBACK}:{port}/health")).status_code


@pytest.mark.parametrize("ours", [True, False], ids=["our worker", "a foreign worker"])
async def test_a_head_that_loaded_everything_itself_is_degraded_though_it_says_ok(
        config: FleetConfig, state: Path, model: Path, folder: str, other_folder: str, by_hand, ours: bool) -> None:
    port, worker = head_port(config), worker_port(config)
    argv = (f"{other_folder}/ggml-rpc-server", "-H", LOOPBACK, "-p", str(worker), "-d", "CPU")
    supervisor = Supervisor(LocalTransport(NODE), str(state))
    if ours:
        await supervisor.start(ServiceSpec(f"worker-{worker}", ServiceKind.WORKER, argv,
                                           {"LD_LIBRARY_PATH": other_folder}, worker, LOOPBACK, fleet=config.fleet))
    else:
        await by_hand(*argv, port=worker)
    endpoint = f"{LOOPBACK}:{worker}"
    facts = HeadFacts(MODEL, str(model), 512, (WorkerRef(NODE, f"worker-{worker}" if ours else "", endpoint),),
                      (Share(NODE, "RPC0", endpoint, 1.0, 19, 240 << 20),))
    await supervisor.start(ServiceSpec(
        f"coordinator-{port}", ServiceKind.COORDINATOR, head_argv(folder, model, port, worker),
        {"LD_LIBRARY_PATH": folder}, port, LOOPBACK, fleet=config.fleet, facts=facts.to_json()))
    async with running(config) as engine:
        snapshot = await until(engine, lambda s: s.deployment.state is DeploymentState.DEGRADED)
        assert await health(port) == 200
        assert snapshot.deployment.placement.state is PlacementState.LOCAL
        said = snapshot.deployment.problem.what
        assert said == f"The head answers, but holds the whole model itself: RPC0 on {NODE} holds nothing of it."
        assert service(snapshot, ServiceKind.COORDINATOR).problem.what == said
        settled = engine.clock() + 6.0       # longer than two readings may disagree: it stays what it is
        snapshot = await until(engine, lambda s: engine.clock() > settled)
        assert snapshot.deployment.state is DeploymentState.DEGRADED
        await tear_down(engine)
    if ours:
        nothing_left(state, config)


async def test_an_adopted_head_that_loaded_everything_itself_is_degraded_too(
        config: FleetConfig, model: Path, folder: str, other_folder: str, by_hand, tmp_path: Path) -> None:
    port, worker = head_port(config), worker_port(config)
    await by_hand(f"{other_folder}/ggml-rpc-server", "-H", LOOPBACK, "-p", str(worker), "-d", "CPU", port=worker)
    head = await by_hand(*head_argv(folder, model, port, worker), port=port, log=tmp_path / "head.log")
    async with running(config) as engine:
        foreign = next(f for f in engine.latest.nodes[NODE].foreign if f.process.pid == head.pid)
        adopted = await do(engine, AdoptProcess(NODE, head.pid, foreign.process.start_time))
        assert adopted.state is OperationState.DONE, adopted.problem
        snapshot = await until(engine, lambda s: s.deployment.state is DeploymentState.DEGRADED)
        assert "holds the whole model itself: RPC0 on here holds nothing" in snapshot.deployment.problem.what
        assert (snapshot.deployment.model, snapshot.deployment.context) == (MODEL, 512)
        await tear_down(engine)
    assert head.returncode is not None or await head.wait() is not None


async def test_an_adopted_head_without_a_log_is_shown_as_it_answers(
        config: FleetConfig, model: Path, folder: str, by_hand) -> None:
    """No log tells where it sits, and a key that we do not have hides its slots; that it serves is seen."""
    port = head_port(config)
    head = await by_hand(*head_argv(folder, model, port), "--api-key", "a-secret", "--device", "none", port=port)
    async with running(config) as engine:
        foreign = next(f for f in engine.latest.nodes[NODE].foreign if f.process.pid == head.pid)
        assert (await do(engine, AdoptProcess(NODE, head.pid, foreign.process.start_time))).state is OperationState.DONE
        snapshot = await until(engine, lambda s: s.deployment.state is DeploymentState.SERVING)
        assert service(snapshot, ServiceKind.COORDINATOR).state is ServiceState.READY
        assert snapshot.deployment.placement.state is PlacementState.UNKNOWN
        await tear_down(engine)


async def test_an_adopted_head_with_its_workers_in_place_serves(
        config: FleetConfig, model: Path, folder: str, by_hand, tmp_path: Path) -> None:
    port, worker = head_port(config), worker_port(config)
    await by_hand(f"{folder}/ggml-rpc-server", "-H", LOOPBACK, "-p", str(worker), "-d", "CPU", port=worker)
    head = await by_hand(*head_argv(folder, model, port, worker), port=port, log=tmp_path / "head.log")
    async with running(config) as engine:
        for pid in (next(f.process.pid for f in engine.latest.nodes[NODE].foreign if f.port == worker), head.pid):
            foreign = next(f for f in engine.latest.nodes[NODE].foreign if f.process.pid == pid)
            assert (await do(engine, AdoptProcess(NODE, pid, foreign.process.start_time))).state is OperationState.DONE
        snapshot = await until(engine, lambda s: s.deployment.state is DeploymentState.SERVING)
        assert snapshot.deployment.workers == ((NODE, f"worker-{worker}"),)
        await until(engine, lambda s: s.deployment.placement.state is PlacementState.MATCHES)
        await do(engine, RestartService(NODE, f"worker-{worker}"))
        await until(engine, lambda s: s.deployment.state is DeploymentState.BROKEN, 5.0)
        await tear_down(engine)


async def test_a_placement_is_remembered_when_the_log_of_the_load_is_gone(config: FleetConfig, state: Path) -> None:
    async with running(config) as engine:
        await bring_up(engine)
        await until(engine, lambda s: s.deployment.state is DeploymentState.SERVING)
        (state / "services" / f"coordinator-{head_port(config)}" / "log").write_text("")
        async with running(config) as later:
            snapshot = await until(later, lambda s: s.deployment.state is DeploymentState.SERVING)
            assert snapshot.deployment.placement.state is PlacementState.MATCHES
            assert len(snapshot.deployment.placement.real) == 3
        await tear_down(engine)


async def test_what_a_head_logs_just_before_it_answers_counts(
        config: FleetConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read a few bytes at a time, the log always lies behind the answer: nothing half read is judged."""
    monkeypatch.setattr("fleet.runtimes.witness.LOG_STEP", 4096)
    async with running(config) as engine:
        await bring_up(engine)
        async with running(config) as later:
            snapshot = await until(later, lambda s: s.deployment.state in (
                DeploymentState.SERVING, DeploymentState.DEGRADED))
            assert snapshot.deployment.state is DeploymentState.SERVING
            snapshot = await until(later, lambda s: any(share.kv_bytes for share in s.deployment.placement.real))
            assert snapshot.deployment.placement.state is PlacementState.MATCHES
        await tear_down(engine)
