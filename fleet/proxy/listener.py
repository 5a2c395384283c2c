"""uvicorn, bounded: heads of requests have a size and a time, and a server of ours ends when it is told to.

uvicorn's h11 has a limit for the head and its httptools none; neither has a time for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import importlib.util
import re
import socket
from collections.abc import Awaitable, Callable, Generator
from typing import cast

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from fleet.errors import PortTaken, ServiceError
from fleet.proxy.exchange import Limits

BACKLOG = 2048
CLOSE_SECONDS = 5.0            # for a client to take the last of an answer
_UPGRADE = re.compile(rb"\r\nupgrade[ \t]*:", re.IGNORECASE)
KEEP_ALIVE = 75.0              # seconds; longer than the pause of a chat client between two turns is worth a connection


class JoinedWrites:
    """A transport that sends the head of an answer together with what follows at once: a packet and a wake-up less."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head = b""
        self._loop = asyncio.get_running_loop()

    def write(self, data: bytes) -> None:
        """As the transport; a head waits for the end of this turn of the event loop."""
        if self._head:
            data, self._head = self._head + data, b""
        elif data.startswith(b"HTTP/1.1 "):
            self._head = data
            self._loop.call_soon(self.flush)
            return
        self._transport.write(data)

    def flush(self) -> None:
        """Send what waits."""
        if self._head:
            data, self._head = self._head, b""
            self._transport.write(data)

    def close(self) -> None:
        """As the transport, after what waits; a client that takes nothing of it does not keep the connection open."""
        self.flush()
        self._transport.close()
        if self._transport.get_write_buffer_size():
            self._loop.call_later(CLOSE_SECONDS, self._transport.abort)

    def __getattr__(self, name: str) -> object:
        return getattr(self._transport, name)


class HeadLimits:
    """For a protocol of uvicorn: ends a connection whose head is too long or comes too slowly."""

    head_limit = Limits().head
    head_timeout = Limits().head_timeout
    connection_limit = Limits().connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._head_bytes = 0
        joined = JoinedWrites(cast(asyncio.Transport, transport))
        super().connection_made(joined)                 # type: ignore[misc]
        if len(self.connections) > self.connection_limit:            # type: ignore[attr-defined]
            self._say_no(b"503 Service Unavailable")
        self._late = asyncio.get_running_loop().call_later(self.head_timeout, self._check_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._late.cancel()
        super().connection_lost(exc)                    # type: ignore[misc]

    def data_received(self, data: bytes) -> None:
        before = self.cycle                             # type: ignore[attr-defined]
        waits = before is None or before.response_complete
        if waits and self._head_bytes == 0:
            self._late.cancel()
            self._late = asyncio.get_running_loop().call_later(self.head_timeout, self._check_late)
        super().data_received(data)                     # type: ignore[misc]
        if self.cycle is not before:                    # type: ignore[attr-defined]
            self._head_bytes = 0
            self._late.cancel()
        elif waits:
            self._head_bytes += len(data)
            if self._head_bytes > self.head_limit:
                self._say_no(b"431 Request Header Fields Too Large")

    def _check_late(self) -> None:
        cycle = self.cycle                              # type: ignore[attr-defined]
        if self._head_bytes or cycle is None:
            self._say_no(b"408 Request Timeout")

    def _say_no(self, status: bytes) -> None:
        transport = self.transport                      # type: ignore[attr-defined]
        if not transport.is_closing():
            transport.write(b"HTTP/1.1 " + status + b"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            transport.close()


class PlainHttp:
    """For uvicorn's httptools protocol: what its parser would read in another way than h11 and everybody else.

    A request that offers another protocol (Java's clients offer h2c with every one) may be answered as if it did not;
    llhttp takes its body for that protocol, so that it is lost, or is read as the next request. And a target that is a
    whole URL is cut down to its path, so that nobody sees that it named another host.
    """

    def data_received(self, data: bytes) -> None:
        cycle = self.cycle                              # type: ignore[attr-defined]
        if (cycle is None or cycle.response_complete) and (end := data.find(b"\r\n\r\n")) >= 0 \
                and (offer := _UPGRADE.search(data, 0, end)):
            # The name that goes nowhere: see `outgoing`.
            data = data[:offer.start()] + b"\r\nproxy-upgrade:" + data[offer.end():]
        super().data_received(data)                     # type: ignore[misc]

    def on_headers_complete(self) -> None:
        super().on_headers_complete()                   # type: ignore[misc]
        if not self.url.startswith(b"/"):               # type: ignore[attr-defined]
            self.scope["raw_path"] = self.url           # type: ignore[attr-defined]

    def _unsupported_upgrade_warning(self) -> None:
        """An offer that was not seen before, cut in two on its way: what follows is not read."""
        if self.cycle is not None:                      # type: ignore[attr-defined]
            self.cycle.keep_alive = False               # type: ignore[attr-defined]
        self.transport.pause_reading()                  # type: ignore[attr-defined]


class BoundedH11(HeadLimits, H11Protocol):
    """Where httptools is not installed."""


def protocol(limits: Limits) -> type[asyncio.Protocol]:
    """uvicorn's faster protocol where it is there, with these limits."""
    kind: type[HeadLimits] = BoundedH11
    if importlib.util.find_spec("httptools") is not None:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

        kind = type("BoundedHttpTools", (HeadLimits, PlainHttp, HttpToolsProtocol), {})
    limited = type(kind.__name__, (kind,), {"head_limit": limits.head, "head_timeout": limits.head_timeout,
                                            "connection_limit": limits.connections})
    return cast(type[asyncio.Protocol], limited)


class Listener(uvicorn.Server):
    """A server in an event loop that is somebody else's: signals are not its own."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn; `ready` is set when it serves."""
        await super().startup(sockets)
        self.ready.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Nothing: who runs the loop sees to signals."""
        yield

    def close_listeners(self) -> None:
        """Take no new connections; the ones that are there stay."""
        for server in self.servers:
            server.close()


def listener(app: Callable[..., Awaitable[None]], limits: Limits, drain_seconds: float) -> Listener:
    """A server for `app`; run it with `serve(sockets=[...])`, end it with `should_exit`."""
    config = uvicorn.Config(
        app, http=protocol(limits), loop="none", ws="none", lifespan="off", interface="asgi3", access_log=False,
        log_config=None, log_level="critical", proxy_headers=False, server_header=False, backlog=BACKLOG,
        timeout_keep_alive=int(KEEP_ALIVE), timeout_graceful_shutdown=max(1, round(drain_seconds)),
        h11_max_incomplete_event_size=limits.head)
    return Listener(config)


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Raises PortTaken, ServiceError."""
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ServiceError(f"The proxy cannot listen on {host!r}: {error.strerror}.",
                           "Use an address of this machine: 127.0.0.1, or the one that others reach it by.") from error
    family, kind, _, _, address = found[0]
    # With the protocol named asyncio turns Nagle's delay off; without, each part of a stream waits up to 40 ms.
    sock = socket.socket(family, kind, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        if isinstance(error, PermissionError):
            raise ServiceError(f"The proxy may not listen on port {port}.", "Use a port above 1023.") from error
        if error.errno == errno.EADDRINUSE:
            raise PortTaken(f"Port {port} on {host or 'this machine'} is taken: another program listens there.",
                            "Stop it, or let the proxy listen on another port.") from error
        raise ServiceError(f"The proxy cannot listen on {host}:{port}: {error.strerror}.",
                           "Use an address of this machine: 127.0.0.1, or the one that others reach it by.") from error
    sock.setblocking(False)
    return sock
