"""Asking a worker over its own protocol: version, devices, memory. And who holds its one slot.

A worker serves one client at a time and never looks at a second one before the first has left. A
client that sends its HELLO and goes away in good order (FIN) before the answer was read ends the
worker by SIGPIPE later (9 of 9 times, three builds); going away with RST does not (9 of 9). So:

- never ask a worker whose slot is held: `occupant` tells from the node's socket table;
- once asked, read whole answers; on giving up, `abort()`.

Layout (little-endian, packed, the same from protocol 4.0.3 to 7.0.0): a request is a command byte, a
64-bit size and the payload; an answer is a 64-bit size and the payload.
"""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from fleet.errors import FleetError, NodeError, PortClosed, StartFailed
from fleet.model import Binary, Socket
from fleet.nodes.transport import ByteStream, Transport
from fleet.runtimes.trial import Trial

Version = tuple[int, int, int]

HELLO, DEVICE_COUNT, GET_DEVICE_MEMORY = 14, 15, 11
CAPABILITIES = bytes(24)              # all zero: TCP alone, no RDMA
HELLO_REQUEST_SIZE = 1 + 8 + len(CAPABILITIES)
MOST_DEVICES = 64
MOST_MEMORY = 1 << 50                 # bytes: 1 PiB, more is no memory
TRIAL_HOST = "127.0.0.1"
TRIAL_PORTS = range(20_000, 32_000)   # below the ranges that systems give to outgoing connections

_TRIALS = 4
_HELLO_ANSWER = 4 + len(CAPABILITIES)


class WorkerStatus(StrEnum):
    """How a worker answered."""

    OK = "ok"
    REFUSED = "refused"               # nothing listens on the port
    UNREACHABLE = "unreachable"       # no TCP connection: no route, a firewall, or its queue is full
    BUSY = "busy"                     # connected, HELLO not answered: its slot is taken, or it hangs
    CLOSED = "closed"                 # it hung up on our HELLO: another protocol generation, or no worker
    NOT_RPC = "not-rpc"               # it answered something else


@dataclass(frozen=True, slots=True)
class WireDevice:
    """Memory of one device of a worker, as it says itself. A CPU device says free = total, always."""

    free: int                         # bytes
    total: int


@dataclass(frozen=True, slots=True)
class WorkerAnswer:
    """What a worker said."""

    status: WorkerStatus
    version: Version | None = None
    devices: tuple[WireDevice, ...] = ()
    detail: str = ""                  # a sentence for a person, "" when all is well


class _NotRpc(Exception):
    """The peer does not speak the protocol; the argument is a sentence."""


async def ask_worker(open_stream: Callable[[], Awaitable[ByteStream]], *, timeout: float = 5.0) -> WorkerAnswer:
    """Ask a worker for its protocol version and the memory of its devices.

    The caller has made sure that the worker's slot is free (`occupant`).

    Args:
        open_stream: connects to the worker; bounded in time by itself.
        timeout: seconds for the whole conversation.
    """
    try:
        stream = await open_stream()
    except ConnectionRefusedError as error:
        return WorkerAnswer(WorkerStatus.REFUSED, detail=f"nothing listens there ({error.strerror or 'refused'}).")
    except NodeError:
        raise
    except FleetError as error:
        refused = error.code == "port-closed"
        return WorkerAnswer(WorkerStatus.REFUSED if refused else WorkerStatus.UNREACHABLE, detail=error.what)
    except (OSError, TimeoutError) as error:
        return WorkerAnswer(WorkerStatus.UNREACHABLE, detail=f"no connection: {str(error) or 'no answer'}.")
    finished = False
    conversation = _Conversation(stream)
    try:
        async with asyncio.timeout(timeout):
            answer = await conversation.hold()
            finished = True
            return answer
    except TimeoutError:
        return WorkerAnswer(WorkerStatus.BUSY, conversation.version, detail=(
            f"it takes connections but did not answer within {timeout:g} s: another head holds its one slot, "
            "or it hangs."))
    except (asyncio.IncompleteReadError, OSError):
        return WorkerAnswer(WorkerStatus.CLOSED, conversation.version, detail=(
            "it hung up on the handshake: it is of another protocol generation, or no ggml-rpc-server."))
    except _NotRpc as error:
        return WorkerAnswer(WorkerStatus.NOT_RPC, detail=str(error))
    finally:
        if finished:
            stream.close()      # every answer was read: a FIN is harmless now
        else:
            stream.abort()      # RST, also when cancelled: the worker must not find a dead socket to write to


class _Conversation:
    """The three questions, in order."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self.version: Version | None = None

    async def hold(self) -> WorkerAnswer:
        hello = await self._ask(HELLO, CAPABILITIES, _HELLO_ANSWER)
        self.version = (hello[0], hello[1], hello[2])
        (count,) = struct.unpack("<I", await self._ask(DEVICE_COUNT, b"", 4))
        if count > MOST_DEVICES:
            raise _NotRpc(f"it claims to have {count} devices: it is no ggml-rpc-server.")
        devices = []
        for index in range(count):
            free, total = struct.unpack("<QQ", await self._ask(GET_DEVICE_MEMORY, struct.pack("<I", index), 16))
            if total > MOST_MEMORY or free > MOST_MEMORY:
                raise _NotRpc(f"it claims {total} bytes of memory: it is no ggml-rpc-server.")
            devices.append(WireDevice(free, total))
        return WorkerAnswer(WorkerStatus.OK, self.version, tuple(devices))

    async def _ask(self, command: int, payload: bytes, size: int) -> bytes:
        """Send one request and read its whole answer, which must be `size` bytes."""
        await self._stream.write(struct.pack("<BQ", command, len(payload)) + payload)
        (announced,) = struct.unpack("<Q", await self._stream.readexactly(8))
        if announced != size:
            raise _NotRpc(f"it does not answer as a ggml-rpc-server does (an answer of {announced} bytes "
                          f"where {size} belong): something else listens on this port.")
        return await self._stream.readexactly(size)


def compatible(client: Version, server: Version) -> bool:
    """Whether a head of protocol `client` takes a worker of protocol `server`: its own rule.

    Same major, the worker's minor not above the head's; the patch is not compared.
    """
    return client[0] == server[0] and server[1] <= client[1]


async def protocol_of(transport: Transport, binary: Binary, *, timeout: float = 20.0,
                      pick_port: Callable[[], int] | None = None) -> Version:
    """The RPC protocol of a ggml-rpc-server, learned by running it on its node's loopback for a moment.

    Nothing prints it before a client has come. It is run on the processor alone, so that no GPU memory
    is touched. The caller remembers the answer for as long as the file does not change.

    Raises:
        StartFailed: it does not run there, or does not answer.
        NodeError: the node does not answer.
    """
    pick = pick_port or (lambda: random.choice(TRIAL_PORTS))
    arguments: tuple[str, ...] = ("-d", "CPU")
    trial = Trial(transport, binary.path)
    try:
        async with asyncio.timeout(timeout):
            for _ in range(_TRIALS):
                port = pick()
                if await _is_taken(transport, port):
                    continue
                trial = Trial(transport, binary.path, arguments)
                version = await trial.run(port, lambda port=port: _version_at(transport, port))
                if version is not None:
                    return version
                if "unknown device" in trial.text:
                    arguments = ()
                elif "Failed to create server socket" not in trial.text:
                    break
    except TimeoutError:
        raise StartFailed(f"{binary.path} on {transport.name} did not answer within {timeout:.0f} s of its start.",
                          "Start it there by hand and see what it waits for.") from None
    raise trial.failure()


async def _is_taken(transport: Transport, port: int) -> bool:
    """Whether somebody listens there: it may be another's worker, which must not be asked anything."""
    try:
        stream = await transport.open_connection(TRIAL_HOST, port, timeout=2.0)
    except PortClosed:
        return False
    stream.close()                    # not a byte was sent: harmless to a worker
    return True


async def _version_at(transport: Transport, port: int) -> Version | None:
    answer = await ask_worker(lambda: transport.open_connection(TRIAL_HOST, port, timeout=2.0))
    return answer.version if answer.status is WorkerStatus.OK else None


@dataclass(frozen=True, slots=True)
class Occupant:
    """Who holds a worker's one slot, by its node's socket table."""

    holder: str                       # "host:port" of the client
    waiting: tuple[str, ...] = ()     # "host:port" of those that have connected and are not served
    queued: int = 0                   # how many wait, where only their number is known

    def describe(self) -> str:
        """A part of a sentence: "held by 10.0.0.2:41120, 1 more waits"."""
        waiting = max(len(self.waiting), self.queued)
        more = {0: "", 1: ", 1 more waits"}.get(waiting, f", {waiting} more wait")
        return f"held by {self.holder}{more}"


def occupant(sockets: Iterable[Socket], port: int) -> Occupant | None:
    """Who is connected to the worker on `port` of a node; None = its slot is free.

    The served connection is the one that a process owns. Where the table does not tell (another
    user's process) those whose HELLO lies unread are the waiting ones: it is 33 bytes.
    """
    here = [socket for socket in sockets if socket.local_port == port]
    clients = [socket for socket in here if not socket.listening]
    queued = max((socket.recv_queue for socket in here if socket.listening), default=0)
    owned = [socket for socket in clients if socket.pid is not None]
    served = owned or [socket for socket in clients if socket.recv_queue != HELLO_REQUEST_SIZE]
    waiting = [socket for socket in clients if socket not in served]
    if not served and not waiting:
        return Occupant("a client that the node does not name", queued=queued) if queued else None
    first = served[0] if served else waiting.pop(0)
    return Occupant(_peer(first), tuple(_peer(socket) for socket in waiting), queued)


def _peer(socket: Socket) -> str:
    host = f"[{socket.peer_host}]" if ":" in socket.peer_host else socket.peer_host
    return f"{host}:{socket.peer_port}"
