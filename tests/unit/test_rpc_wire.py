"""Asking workers: scripted ones with every answer there is, and real ones that must live on."""

from __future__ import annotations

import asyncio
import re
import signal
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleet.errors import ConnectionDropped, StartFailed
from fleet.model import Binary, Socket
from fleet.nodes.local import LocalTransport
from fleet.runtimes.binaries import bundled
from fleet.runtimes.rpc_wire import WorkerAnswer, WorkerStatus, ask_worker, compatible, occupant, protocol_of

DATA = Path(__file__).parents[1] / "data/rpc"
NODE = LocalTransport("here")
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def replies() -> dict[str, bytes]:
    found = {}
    for line in (DATA / "hello_replies.hex").read_text().splitlines():
        if match := re.match(r"(proto\S+|http_server)\s+([0-9a-f ]+?)\s*(#|$)", line):
            found[match[1]] = bytes.fromhex(match[2])
    return found


REPLIES = replies()


@asynccontextmanager
async def listening(serve: Serve) -> AsyncIterator[int]:
    """A server on loopback whose connections end with the test."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())  # type: ignore[arg-type]
        try:
            await serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            return
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(serve_one, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def ask(port: int, timeout: float = 5.0) -> WorkerAnswer:
    return await ask_worker(lambda: NODE.open_connection("127.0.0.1", port), timeout=timeout)


async def until(port: int, status: WorkerStatus) -> None:
    """Knock until the answer is the wanted one: a process that starts or ends tells nobody."""
    async with asyncio.timeout(30):
        answer = await ask(port)
        while answer.status is not status:
            await asyncio.sleep(0.02)
            answer = await ask(port)


def worker(hello: bytes, memory: list[tuple[int, int]], *, pieces: int = 1 << 16) -> Serve:
    """A worker of the given HELLO answer and devices, which answers in pieces."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            command, size = struct.unpack("<BQ", await reader.readexactly(9))
            payload = await reader.readexactly(size)
            if command == 14:
                assert payload == bytes(24)
                answer = hello
            elif command == 15:
                answer = struct.pack("<QI", 4, len(memory))
            else:
                assert command == 11
                answer = struct.pack("<QQQ", 16, *memory[struct.unpack("<I", payload)[0]])
            for start in range(0, len(answer), pieces):
                writer.write(answer[start : start + pieces])
                await writer.drain()

    return serve


@pytest.mark.parametrize(("name", "version"), [("proto4.0.3", (4, 0, 3)), ("proto7.0.0", (7, 0, 0))])
@pytest.mark.parametrize("pieces", [1, 7, 1 << 16])
async def test_a_worker_tells_its_protocol_and_memory(name: str, version: tuple[int, int, int], pieces: int):
    async with listening(worker(REPLIES[name], [(5, 10), (0, 1 << 40)], pieces=pieces)) as port:
        answer = await ask(port)
    assert answer.status is WorkerStatus.OK
    assert answer.version == version
    assert [(device.free, device.total) for device in answer.devices] == [(5, 10), (0, 1 << 40)]
    assert answer.detail == ""


async def test_another_program_on_the_port_is_no_worker():
    async def http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(REPLIES["http_server"])
        await reader.read()

    async with listening(http) as port:
        answer = await ask(port)
    assert answer.status is WorkerStatus.NOT_RPC and "something else listens" in answer.detail


async def test_a_worker_that_stays_silent_is_busy_not_down():
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async with listening(silent) as port:
        answer = await ask(port, timeout=0.2)
    assert answer.status is WorkerStatus.BUSY and "one slot" in answer.detail


async def test_a_worker_that_hangs_up_on_the_handshake_is_closed():
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)

    async with listening(hang_up) as port:
        answer = await ask(port)
    assert answer.status is WorkerStatus.CLOSED


async def test_nothing_on_the_port_is_refused():
    async with listening(worker(b"", [])) as port:
        pass
    assert (await ask(port)).status is WorkerStatus.REFUSED


async def test_a_host_without_an_answer_is_unreachable():
    async def never() -> None:
        raise TimeoutError

    assert (await ask_worker(never)).status is WorkerStatus.UNREACHABLE  # type: ignore[arg-type]


async def test_a_node_that_is_gone_is_the_nodes_error_not_the_workers():
    async def gone() -> None:
        raise ConnectionDropped("bolt is gone.")

    with pytest.raises(ConnectionDropped):
        await ask_worker(gone)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [65, 2**32 - 1])
async def test_an_absurd_number_of_devices_is_no_worker(count: int):
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(33)
        writer.write(REPLIES["proto4.0.3"])
        await reader.readexactly(9)
        writer.write(struct.pack("<QI", 4, count))
        await reader.read()

    async with listening(serve) as port:
        answer = await ask(port)
    assert answer.status is WorkerStatus.NOT_RPC and str(count) in answer.detail


@pytest.mark.parametrize("give_up", ["timeout", "cancel", "garbage"])
async def test_giving_up_resets_the_connection(give_up: str):
    """A FIN would let the worker write its late answer to a dead socket, which ends it."""
    end: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    asked = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(33)
        if give_up == "garbage":
            writer.write(struct.pack("<Q", 1 << 60))
        asked.set()
        try:
            end.set_result("FIN" if await reader.read() == b"" else "data")
        except ConnectionResetError:
            end.set_result("RST")

    async with listening(serve) as port:
        asking = asyncio.create_task(ask(port, timeout=0.2 if give_up == "timeout" else 30.0))
        await asked.wait()
        if give_up == "cancel":
            asking.cancel()
        with suppress(asyncio.CancelledError):
            await asking
        assert await asyncio.wait_for(end, 10) == "RST"
        assert asking.cancelled() is (give_up == "cancel")


class Scripted:
    """A ByteStream that gives the same bytes whatever it is asked."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.ended = ""

    async def read(self, n: int) -> bytes:
        taken, self.data = self.data[:n], self.data[n:]
        return taken

    async def readexactly(self, n: int) -> bytes:
        assert n <= 64, "a size that the peer announced is never read unchecked"
        taken = await self.read(n)
        if len(taken) < n:
            raise asyncio.IncompleteReadError(taken, n)
        return taken

    async def write(self, data: bytes) -> None:
        assert data

    def close(self) -> None:
        self.ended = self.ended or "close"

    def abort(self) -> None:
        self.ended = self.ended or "abort"


hello = st.sampled_from([REPLIES["proto4.0.3"], REPLIES["proto7.0.0"], b""])


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(start=hello, rest=st.binary(max_size=200) | st.binary(max_size=40).map(lambda b: struct.pack("<QI", 4, 1) + b))
def test_any_bytes_give_an_answer_and_only_a_whole_one_is_closed_in_good_order(start: bytes, rest: bytes):
    stream = Scripted(start + rest)

    async def open_stream() -> Scripted:
        return stream

    answer = asyncio.run(ask_worker(open_stream))
    assert stream.ended == ("close" if answer.status is WorkerStatus.OK else "abort")
    assert answer.status in (WorkerStatus.OK, WorkerStatus.CLOSED, WorkerStatus.NOT_RPC)


@pytest.mark.parametrize(
    ("client", "server", "fits"),
    [
        ((4, 0, 3), (4, 0, 3), True),
        ((4, 0, 3), (4, 0, 9), True),
        ((4, 1, 0), (4, 0, 0), True),
        ((4, 0, 0), (4, 1, 0), False),
        ((4, 0, 3), (7, 0, 0), False),
        ((7, 0, 0), (4, 0, 3), False),
    ],
)
def test_a_worker_may_be_older_within_the_same_major(client, server, fits):
    assert compatible(client, server) is fits


# --- who holds the slot


def sockets_of(name: str) -> tuple[Socket, ...]:
    """The `ss` lines of an example as the probe gives them."""
    found = []
    for line in (DATA / name).read_text().splitlines():
        fields = line.split()
        if line.startswith("#") or not fields:
            continue
        state = fields.pop(0) if fields[0].isalpha() else "ESTAB"
        (local, local_port), (peer, peer_port) = (field.rsplit(":", 1) for field in fields[2:4])
        pid = re.search(r"pid=(\d+)", line)
        found.append(
            Socket(
                local,
                int(local_port),
                peer,
                int(peer_port) if peer_port.isdigit() else 0,
                state == "LISTEN",
                int(fields[0]),
                int(pid[1]) if pid else None,
            )
        )
    return tuple(found)


def test_the_socket_table_names_who_holds_a_worker():
    held = occupant(sockets_of("ss_busy_worker.txt"), 50052)
    assert held is not None
    assert held.describe() == "held by 10.20.0.2:41188, 2 more wait"


def test_a_second_head_that_waits_is_told_from_the_one_that_is_served():
    held = occupant(sockets_of("ss_second_coordinator_queued.txt"), 50052)
    assert held is not None
    assert (held.holder, held.waiting) == ("10.20.0.2:41120", ("10.20.0.3:41134",))
    assert held.describe() == "held by 10.20.0.2:41120, 1 more waits"


def test_a_free_worker_has_no_occupant():
    listener = Socket("0.0.0.0", 50052, listening=True)
    to_elsewhere = Socket("10.0.0.3", 51000, "10.0.0.4", 50052)
    other_worker = Socket("10.0.0.3", 50053, "10.0.0.4", 40000)
    assert occupant((listener, to_elsewhere, other_worker), 50052) is None


def test_one_that_waits_where_nobody_is_seen_still_occupies():
    assert occupant((Socket("::", 5, "fe80::1", 9, recv_queue=33),), 5).holder == "[fe80::1]:9"  # type: ignore[union-attr]
    assert occupant((Socket("0.0.0.0", 5, listening=True, recv_queue=1),), 5) is not None


# --- real ones


@asynccontextmanager
async def real_worker(*more: str) -> AsyncIterator[tuple[int, asyncio.subprocess.Process]]:
    """A ggml-rpc-server as anybody would start it: SIGPIPE is *not* ignored."""
    folder = bundled()
    if folder is None:
        pytest.skip("the engine extra is not installed")
    async with listening(worker(b"", [])) as port:
        pass
    process = await asyncio.create_subprocess_exec(
        f"{folder}/ggml-rpc-server",
        "-H",
        "127.0.0.1",
        "-p",
        str(port),
        "-t",
        "1",
        "-d",
        "CPU",
        *more,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGPIPE, signal.SIG_DFL),
    )
    try:
        await until(port, WorkerStatus.OK)
        yield port, process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.engine
async def test_a_real_worker_lives_on_after_twenty_questions():
    async with real_worker() as (port, process):
        answers = [await ask(port) for _ in range(20)]
        assert {answer.status for answer in answers} == {WorkerStatus.OK}
        assert answers[0].version is not None and answers[0].version[0] >= 4
        assert answers[0].devices[0].total > 0
        assert process.returncode is None


@pytest.mark.engine
async def test_a_real_worker_lives_on_after_cancelled_questions():
    """Cancelled at every stage: before the connection, after the HELLO, between two answers."""
    async with real_worker() as (port, process):
        for stage in range(40):
            asking = asyncio.create_task(ask(port))
            for _ in range(stage):
                await asyncio.sleep(0)
            asking.cancel()
            with suppress(asyncio.CancelledError):
                await asking
        assert (await ask(port)).status is WorkerStatus.OK
        assert process.returncode is None


@pytest.mark.engine
async def test_a_real_busy_worker_survives_a_question_it_never_answers():
    """The kernel takes the second connection; its HELLO is reset before the first client leaves."""
    async with real_worker() as (port, process):
        first = await NODE.open_connection("127.0.0.1", port)
        await first.write(struct.pack("<BQ", 14, 24) + bytes(24))
        await first.readexactly(36)
        assert (await ask(port, timeout=0.3)).status is WorkerStatus.BUSY
        first.close()
        assert (await ask(port)).status is WorkerStatus.OK
        assert process.returncode is None


@pytest.mark.engine
async def test_the_protocol_of_a_build_is_learned_and_nothing_is_left_running():
    folder = bundled()
    if folder is None:
        pytest.skip("the engine extra is not installed")
    ports: list[int] = []

    async with listening(worker(b"", [])) as free:
        pass

    def pick() -> int:
        ports.append(free)
        return free

    version = await protocol_of(NODE, Binary(f"{folder}/ggml-rpc-server", "ggml-rpc-server"), pick_port=pick)
    assert version[0] >= 4
    assert ports == [free]
    await until(free, WorkerStatus.REFUSED)     # it was killed; its socket goes a moment later


async def test_a_port_in_use_is_never_asked_when_looking_for_a_protocol(tmp_path: Path):
    """Somebody else's worker may listen there."""
    sent = bytearray()

    async def somebody(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sent.extend(await reader.read())

    async with listening(somebody) as port:
        with pytest.raises(StartFailed, match="no free port"):
            await protocol_of(NODE, Binary(str(tmp_path / "x"), "ggml-rpc-server"), pick_port=lambda: port)
    assert not sent


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        (
            "#!/bin/sh\necho 'error: unknown argument' >&2; exit 1\n",
            "ended with status 1 .* It said: error: unknown argument",
        ),
        ("#!/bin/sh\nkill -ILL $$\n", "illegal instruction"),
        ("", "ended with status"),
    ],
)
async def test_a_program_that_does_not_serve_says_why(tmp_path: Path, script: str, sentence: str):
    program = tmp_path / "ggml-rpc-server"
    if script:
        program.write_text(script)
        program.chmod(0o755)
    with pytest.raises(StartFailed, match=sentence):
        await protocol_of(NODE, Binary(str(program), "ggml-rpc-server"))


async def test_a_program_that_never_answers_is_ended_with_its_time(tmp_path: Path):
    program, mark = tmp_path / "ggml-rpc-server", tmp_path / "pid"
    program.write_text(f"#!/bin/sh\necho $$ >'{mark}'\nexec sleep 60\n")
    program.chmod(0o755)
    with pytest.raises(StartFailed, match="did not answer within"):
        await protocol_of(NODE, Binary(str(program), "ggml-rpc-server"), timeout=1.5)
    done = await NODE.run('kill -0 "$1" 2>/dev/null && ps -o stat= -p "$1"', (mark.read_text().strip(),))
    assert done.text.strip() in ("", "Z", "Zs")
