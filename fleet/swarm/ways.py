"""How a target reaches the source: by its address on the network, or by a forward through SSH where it cannot dial it.

A forward is a port of the target's loopback whose connections are carried over our own SSH connections to the source.
It lasts as long as this process: a pull behind one waits when the cockpit has died, and goes on with the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from fleet.errors import FleetError, NodeError, PortClosed, PortTaken
from fleet.nodes.streams import TcpStream
from fleet.nodes.transport import ByteStream, Transport
from fleet.planning.addresses import LOOPBACK

DIAL_TIMEOUT = 3.0      # seconds for a connection in a home network


@dataclass
class Way:
    """Where the source is for one target. `port` is the forward's, 0 when it is dialled itself."""

    url: str
    port: int
    _end: Callable[[], Awaitable[None]] | None = None

    async def close(self) -> None:
        """Listen no more; safe to repeat."""
        end, self._end = self._end, None
        if end is not None:
            await end()


async def way_to_source(target: Transport, source: Transport, address: str, bind: str, port: int,
                        wished: int = 0) -> Way:
    """The way from `target` to the seeder that listens at `source` on bind:port and may be dialled at address:port.

    `wished`: the port that a forward had before, so that a pull which knows it goes on.

    Raises:
        NodeError: a node does not answer.
        FleetError: there is no way.
    """
    if address and not wished and await _is_heard(target, address, port):
        return Way(f"http://{address}:{port}", 0)
    near = LOOPBACK if bind in ("0.0.0.0", "") else bind

    async def connect() -> ByteStream:
        return await source.open_connection(near, port, timeout=DIAL_TIMEOUT)

    (await connect()).close()      # the seeder is there: what cannot be reached later is the network
    for wanted in dict.fromkeys((wished, 0)):
        try:
            there, end = await _listen(target, wanted, connect)
        except PortTaken:
            if not wanted:
                raise
        else:
            return Way(f"http://{LOOPBACK}:{there}", there, end)
    raise AssertionError("a port of the node's own choice was taken")


async def _is_heard(target: Transport, address: str, port: int) -> bool:
    try:
        stream = await target.open_connection(address, port, timeout=DIAL_TIMEOUT)
    except PortClosed:
        return False
    except NodeError as error:
        if error.code == "forwarding-refused":      # its sshd connects nobody: it may dial all the same
            return True
        raise
    stream.close()
    return True


async def _listen(target: Transport, port: int,
                  connect: Callable[[], Awaitable[ByteStream]]) -> tuple[int, Callable[[], Awaitable[None]]]:
    if not target.is_local:
        from fleet.nodes.ssh import SshTransport

        assert isinstance(target, SshTransport)
        forward = await target.listen(LOOPBACK, port, connect)
        return forward.port, forward.close

    from fleet.relay import join

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        here = TcpStream(reader, writer)
        try:
            there = await connect()
        except FleetError:
            here.abort()           # as if the source were not there, which is so
            return
        await join(here, there)

    try:
        server = await asyncio.start_server(accept, LOOPBACK, port)
    except OSError as error:
        raise PortTaken(f"Port {port} of {target.name} cannot be used for a forward: {error.strerror}.",
                        "See what listens there.") from error

    async def end() -> None:
        server.close()

    return server.sockets[0].getsockname()[1], end
