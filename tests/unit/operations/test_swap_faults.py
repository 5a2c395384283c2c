"""A fault at every step of a swap, a bring-up and a tear-down: what served serves again, or what is left is said.

Each fault comes between two steps, when the step named by its title is about to begin: real processes are killed, a
port is taken, a program is exchanged for another build.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from fleet.config.schema import FleetConfig
from fleet.engine import Engine
from fleet.events import BringUp, Command, TearDown
from fleet.model import DeploymentState, Operation, OperationState, ServiceKind
from fleet.operations.plan import Runner, Step
from fleet.proxies.hands import InsideHand
from fleet.proxy.exchange import ProxySettings
from fleet.proxy.serve import running as proxy_running

from .here import LOOPBACK, MODEL, NODE, do, head_port, nothing_left, running, sentence, until, with_model, with_node

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]
OTHER = "other"
SWAP = ("Reserve", "Read", "Hold new", "Let running", "Stop head", "Ask the worker", "Start head", "Load", "Verify",
        "Ask for one", "See that", "Let requests", "Release")
UP = ("Start worker", "Ask the worker", "Start head", "Load", "Verify", "Ask for one", "Release")
Fault = Callable[[Engine], None]


@pytest.fixture
def two(config: FleetConfig, model: Path, tmp_path: Path) -> FleetConfig:
    other = tmp_path / "other.gguf"
    shutil.copyfile(model, other)
    return with_model(config, OTHER, file=str(other))


def kill(engine: Engine, kind: ServiceKind) -> None:
    """End the first service of a kind that lives, as a crash would."""
    for service in engine.latest.nodes[NODE].services:
        if service.record.kind is kind and service.record.alive:
            with suppress(ProcessLookupError):
                os.kill(service.record.pid, signal.SIGKILL)
            return


def kill_head(engine: Engine) -> None:
    kill(engine, ServiceKind.COORDINATOR)


def kill_worker(engine: Engine) -> None:
    kill(engine, ServiceKind.WORKER)


class PortTaken:
    """Somebody else's listener on the head's port, from the fault on until the operation has ended."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._sock: socket.socket | None = None

    def __call__(self, engine: Engine) -> None:
        self._sock = socket.socket()
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._sock.bind((LOOPBACK, self._port))
        self._sock.listen()

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()


@contextmanager
def at(title: str, fault: Callable[[], None]) -> Iterator[list[str]]:
    """Let a fault happen when the first step whose title begins so is about to begin; says where it did."""
    as_it_is, happened = Runner._run_step, []

    async def run_step(self: Runner, index: int, step: Step) -> None:
        if step.title.startswith(title) and not happened:
            happened.append(step.title)
            fault()
        await as_it_is(self, index, step)

    Runner._run_step = run_step          # type: ignore[method-assign]
    try:
        yield happened
    finally:
        Runner._run_step = as_it_is      # type: ignore[method-assign]


async def with_fault(engine: Engine, title: str, fault: Fault, command: Command) -> Operation:
    with at(title, lambda: fault(engine)) as happened:
        operation = await do(engine, command)
    assert happened, f"no step is called {title}"
    return operation


async def answered_by(url: str) -> str:
    """Which model a client is answered by, through the proxy."""
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        answer = await http.post("/v1/completions", json={"prompt": "Once", "max_tokens": 1})
        return answer.json()["model"] if answer.status_code == 200 else f"HTTP {answer.status_code}: {answer.text}"


async def as_before(engine: Engine, url: str) -> None:
    """The first model serves, through the proxy too, whatever was before."""
    operation = await do(engine, BringUp(MODEL))
    assert operation.state is OperationState.DONE, (operation.problem, operation.steps)
    await until(engine, lambda s: s.deployment.state is DeploymentState.SERVING and s.deployment.model == MODEL)
    await until(engine, lambda s: s.proxies and any(up.health == "ready" and not up.held
                                                    for up in s.proxies[0].upstreams))
    assert await answered_by(url) == MODEL


async def judged(engine: Engine, operation: Operation, url: str, where: str) -> None:
    """The new model serves, or the old one does again."""
    if operation.state is OperationState.DONE:
        if await answered_by(url) != OTHER:      # lost after its last look: shown as broken, and recovery's matter
            await until(engine, lambda s: s.deployment.state in (DeploymentState.BROKEN, DeploymentState.DOWN))
        return
    assert operation.state is OperationState.FAILED, where
    assert operation.problem is not None and operation.problem.remedy, where
    assert "could not be undone" not in operation.problem.what, (where, operation.problem.what)
    await until(engine, lambda s: s.deployment.state is DeploymentState.SERVING and s.deployment.model == MODEL)
    assert await answered_by(url) == MODEL, where


@pytest.mark.parametrize(("fault", "titles"), [(kill_head, SWAP), (kill_worker, SWAP)], ids=["head", "worker"])
async def test_a_process_that_is_killed_at_any_step_of_a_swap(two: FleetConfig, state: Path, fault: Fault, titles):
    ended = {}
    async with running(two, tend=True) as engine, proxy_running(ProxySettings(port=0)) as proxy:
        engine.run_inside(InsideHand(proxy.proxy), proxy.url)
        for title in titles:
            await as_before(engine, proxy.url)
            operation = await with_fault(engine, title, fault, BringUp(OTHER))
            await judged(engine, operation, proxy.url, title)
            ended[title] = (operation.state.value, operation.problem.what if operation.problem else "")
        assert (await do(engine, TearDown())).state is OperationState.DONE, ended
    for title, (how, what) in ended.items():
        print(f"{title:16} {how:8} {what}", file=sys.stderr)
    nothing_left(state, two)


async def test_a_port_that_somebody_takes_between_the_old_head_and_the_new(two: FleetConfig, state: Path):
    async with running(two, tend=True) as engine, proxy_running(ProxySettings(port=0)) as proxy:
        engine.run_inside(InsideHand(proxy.proxy), proxy.url)
        await as_before(engine, proxy.url)
        taken = PortTaken(head_port(two))
        operation = await with_fault(engine, "Start head", taken, BringUp(OTHER))
        said = sentence(operation)
        assert operation.state is OperationState.FAILED and str(head_port(two)) in said, said
        assert "could not be undone" in said, said              # its own port is held: the old head cannot come back
        taken.close()
        await as_before(engine, proxy.url)
        await do(engine, TearDown())
    nothing_left(state, two)


async def test_a_program_that_is_exchanged_for_a_broken_one_while_the_old_model_is_stopped(
        two: FleetConfig, state: Path, folder: str, tmp_path: Path):
    programs = tmp_path / "programs"
    shutil.copytree(folder, programs, symlinks=True)
    config = with_node(two, llama=str(programs))
    server = programs / "llama-server"

    def exchange(engine: Engine) -> None:
        server.rename(programs / "llama-server.was")
        server.write_text("#!/bin/sh\necho 'version: 1 (broken)' >&2; exit 3\n")
        server.chmod(0o755)

    async with running(config, tend=True) as engine, proxy_running(ProxySettings(port=0)) as proxy:
        engine.run_inside(InsideHand(proxy.proxy), proxy.url)
        await as_before(engine, proxy.url)
        operation = await with_fault(engine, "Start head", exchange, BringUp(OTHER))
        assert operation.state is OperationState.FAILED
        assert "could not be undone" in sentence(operation), sentence(operation)
        (programs / "llama-server.was").replace(server)
        await as_before(engine, proxy.url)
        await do(engine, TearDown())
    nothing_left(state, config)


async def test_a_worker_that_is_killed_at_any_step_of_a_bring_up(two: FleetConfig, state: Path):
    async with running(two) as engine:
        for title in UP:
            operation = await with_fault(engine, title, kill_worker, BringUp(MODEL))
            if operation.state is not OperationState.DONE:
                assert operation.state is OperationState.FAILED and operation.problem.remedy, title
                assert "could not be undone" not in operation.problem.what, (title, operation.problem)
            assert (await do(engine, TearDown())).state is OperationState.DONE, title
            nothing_left(state, two)


async def test_processes_that_die_at_any_step_of_a_tear_down(two: FleetConfig, state: Path):
    async with running(two) as engine:
        for title in ("Stop head", "Stop worker"):
            for fault in (kill_head, kill_worker):
                assert (await do(engine, BringUp(MODEL))).state is OperationState.DONE
                operation = await with_fault(engine, title, fault, TearDown())
                assert operation.state is OperationState.DONE, (title, operation.problem)
                nothing_left(state, two)


async def test_a_full_disk_under_the_pid_files(two: FleetConfig, state: Path):
    """Only where a small file system can be mounted: root."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    from tests.unit.operations.small_disk import small_disk

    with small_disk(state) as disk:
        async with running(two, tend=True) as engine, proxy_running(ProxySettings(port=0)) as proxy:
            engine.run_inside(InsideHand(proxy.proxy), proxy.url)
            ended = {}
            for title in ("Reserve", "Hold new", "Stop head", "Start head", "Load", "Verify"):
                await as_before(engine, proxy.url)
                operation = await with_fault(engine, title, lambda _: disk.fill(), BringUp(OTHER))
                ended[title] = operation.state
                if operation.state is OperationState.FAILED:
                    assert "disk" in sentence(operation), (title, sentence(operation))
                    if "could not be undone" not in operation.problem.what:
                        await judged(engine, operation, proxy.url, title)
                disk.empty()
            assert ended["Reserve"] is ended["Start head"] is OperationState.FAILED, ended
            assert (await do(engine, TearDown())).state is OperationState.DONE
        nothing_left(state, two)
