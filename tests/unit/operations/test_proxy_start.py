# ruff: noqa: ASYNC240 - files and processes are what these tests are about
"""The proxy as a service of its own on this machine: started, asked, stopped, and nothing of it left."""

from __future__ import annotations

import json
import socket
import stat
from dataclasses import replace
from pathlib import Path

import httpx
import psutil
import pytest

from fleet.config.schema import FleetConfig, ProxyConfig, UpstreamConfig
from fleet.events import RestartService, StartProxy, StopService, TearDown
from fleet.model import OperationState

from .here import LOOPBACK, NODE, do, fleet_here, free_port, running, until

SECRET = "a-key-of-a-client-0123456789"
pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def config(tmp_path: Path, port: int) -> FleetConfig:
    (tmp_path / "keys").write_text(f"ann {SECRET}\n")
    (tmp_path / "keys").chmod(0o600)
    return fleet_here(tmp_path / "state", tmp_path / "none.gguf", workers=0, proxy=ProxyConfig(
        listen=f"{LOOPBACK}:{port}", keys_file=str(tmp_path / "keys"),
        upstreams={"far": UpstreamConfig("far", "http://127.0.0.1:9", models=("m",))}))


def files_of(state: Path) -> list[str]:
    return sorted(str(path.relative_to(state)) for path in state.rglob("*") if path.is_file() and path.name != "host")


def record(snapshot, port: int):
    return next((r for r in snapshot.nodes[NODE].reading.services if r.id == f"proxy-{port}"), None)


async def started(engine, port: int):
    operation = await do(engine, StartProxy())
    assert operation.state is OperationState.DONE, operation.problem
    return record(await until(engine, lambda s: record(s, port) is not None), port)


async def test_it_is_started_detached_and_leaves_nothing_when_it_is_stopped(
        config: FleetConfig, tmp_path: Path, port: int) -> None:
    async with running(config) as engine:
        proxy = await started(engine, port)
        process = psutil.Process(proxy.pid)
        assert SECRET not in json.dumps([process.cmdline(), process.environ(), str(proxy)])
        settings = Path(proxy.argv[-1])
        assert SECRET in settings.read_text() and stat.S_IMODE(settings.stat().st_mode) == 0o600
        async with httpx.AsyncClient(base_url=f"http://{LOOPBACK}:{port}") as client:
            assert (await client.get("/v1/models")).status_code == 401
            answer = await client.get("/v1/models", headers={"authorization": f"Bearer {SECRET}"})
            assert [model["id"] for model in answer.json()["data"]] == ["m"]
        again = await engine.plan(StartProxy(NODE))
        assert not again.steps and "already" in again.title
        operation = await do(engine, StopService(NODE, f"proxy-{port}"))
        assert operation.state is OperationState.DONE, operation.problem
        assert not psutil.pid_exists(proxy.pid) and files_of(tmp_path / "state") == []


async def test_it_starts_again_as_it_was(config: FleetConfig, tmp_path: Path, port: int) -> None:
    async with running(config) as engine:
        before = await started(engine, port)
        operation = await do(engine, RestartService(NODE, f"proxy-{port}"))
        assert operation.state is OperationState.DONE, operation.problem
        snapshot = await until(engine, lambda s: record(s, port) is not None and record(s, port).pid != before.pid)
        assert record(snapshot, port).alive
        down = await do(engine, TearDown())
        assert down.state is OperationState.DONE, down.problem
    assert files_of(tmp_path / "state") == []


async def test_one_that_died_is_cleared_by_a_stop(config: FleetConfig, tmp_path: Path, port: int) -> None:
    async with running(config) as engine:
        proxy = await started(engine, port)
        psutil.Process(proxy.pid).kill()
        await until(engine, lambda s: record(s, port) is not None and not record(s, port).alive)
        operation = await do(engine, StopService(NODE, f"proxy-{port}"))
        assert operation.state is OperationState.DONE, operation.problem
    assert files_of(tmp_path / "state") == []


async def test_a_start_that_fails_leaves_no_key_behind(config: FleetConfig, tmp_path: Path, port: int) -> None:
    async with running(config) as engine:
        with socket.create_server((LOOPBACK, port)):
            operation = await do(engine, StartProxy())
        assert operation.state is OperationState.FAILED and "taken" in operation.problem.what
    assert files_of(tmp_path / "state") == []


@pytest.mark.parametrize(("listen", "sentence"), [
    ("0.0.0.0:8088", "key"), ("198.51.100.7:8088", "198.51.100.7, which is no address of here")])
async def test_what_would_be_open_or_cannot_be_bound_is_refused_before_anything(
        config: FleetConfig, tmp_path: Path, listen: str, sentence: str) -> None:
    keys = "" if listen.startswith("0") else config.proxy.keys_file
    async with running(replace(config, proxy=replace(config.proxy, listen=listen, keys_file=keys))) as engine:
        operation = await do(engine, StartProxy())
        assert operation.state is OperationState.REFUSED and sentence in operation.problem.what
        operation = await do(engine, StartProxy("nowhere"))
        assert operation.state is OperationState.REFUSED and "No node is called nowhere" in operation.problem.what
    assert not (tmp_path / "state").exists() or files_of(tmp_path / "state") == []
