"""TCP over an SSH connection: one from the node outwards, or a port of the node whose connections come here."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

import asyncssh

from fleet.errors import FleetError, NodeError, PortClosed, PortTaken, ServiceError
from fleet.nodes.ssh_errors import of_channel
from fleet.nodes.ssh_target import where
from fleet.nodes.streams import port_closed, port_silent
from fleet.nodes.transport import ByteStream
from fleet.text import visible

_CHUNK = 256 * 1024
Connect = Callable[[], Awaitable[ByteStream]]
log = logging.getLogger(__name__)


class ChannelStream:
    """A `ByteStream` over an SSH channel. `abort` closes the channel: sshd then closes its socket."""

    def __init__(self, reader: asyncssh.SSHReader[bytes], writer: asyncssh.SSHWriter[bytes]) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self, n: int) -> bytes:
        """Up to n bytes; b"" at the end."""
        return await self._reader.read(n)

    async def readexactly(self, n: int) -> bytes:
        """n bytes; `asyncio.IncompleteReadError` when it ends before."""
        return await self._reader.readexactly(n)

    async def write(self, data: bytes) -> None:
        """Send, waiting while the other side does not take it."""
        self._writer.write(data)
        await self._writer.drain()

    def write_eof(self) -> None:
        """Say that nothing more comes from here; reading goes on."""
        self._writer.write_eof()

    def close(self) -> None:
        """Send what is queued, then end."""
        self._writer.close()

    def abort(self) -> None:
        """End at once; what is queued is dropped."""
        self._writer.channel.abort()


async def open_connection(node: str, connection: asyncssh.SSHClientConnection, host: str, port: int,
                          timeout: float) -> ChannelStream:
    """A TCP connection that the node's sshd makes to host:port."""
    opening = asyncio.ensure_future(connection.open_connection(host, port, encoding=None))
    try:
        async with asyncio.timeout(timeout):
            return ChannelStream(*await asyncio.shield(opening))
    except TimeoutError as error:
        raise port_silent(node, host, port, timeout) from error
    except asyncssh.ChannelOpenError as error:
        if connection.is_closed():
            raise of_channel(node, error) from error
        if error.code == asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED:
            raise NodeError(f"The sshd of {node} does not connect us to {where(host, port)}: "
                            f"{visible(str(error.reason), limit=200)}.",
                            f"Allow it: AllowTcpForwarding and PermitOpen in sshd_config of {node}.",
                            code="forwarding-refused") from error
        raise port_closed(node, host, port, visible(str(error.reason), limit=200).rstrip(".")) from error
    except (asyncssh.Error, OSError) as error:
        raise of_channel(node, error) from error
    finally:
        if not opening.done():
            opening.add_done_callback(_close_late)


class RemoteForward:
    """A port of the node; every connection to it is joined with what `connect` gives."""

    def __init__(self, node: str, connect: Connect) -> None:
        self.port = 0
        self._node = node
        self._connect = connect
        self._listener: asyncssh.SSHListener | None = None

    async def listen(self, connection: asyncssh.SSHClientConnection, host: str, port: int, timeout: float) -> None:
        """Begin; port 0 lets the node choose.

        Raises:
            PortTaken: the node gives us no such port.
        """
        try:
            async with asyncio.timeout(timeout):
                self._listener = await connection.start_server(lambda *origin: self._joined, host, port,
                                                               encoding=None)
        except asyncssh.ChannelListenError as error:
            raise PortTaken(f"{self._node} does not let us listen on {where(host, port)}.",
                            f"Another process has that port, or sshd forbids it (AllowTcpForwarding, PermitListen; for "
                            f"another address than its loopback GatewayPorts). See what listens on {self._node}."
                            ) from error
        except TimeoutError as error:
            raise ServiceError(f"{self._node} did not say within {timeout:g} s whether it listens on "
                               f"{where(host, port)}.", "Try again.", code="listen-timeout") from error
        except (asyncssh.Error, OSError) as error:
            raise of_channel(self._node, error) from error
        self.port = self._listener.get_port()

    async def close(self) -> None:
        """Listen no more; connections that stand go on to their end."""
        if self._listener is not None:
            self._listener.close()
            with suppress(TimeoutError):
                async with asyncio.timeout(2.0):
                    await self._listener.wait_closed()
            self._listener = None

    async def _joined(self, reader: asyncssh.SSHReader[bytes], writer: asyncssh.SSHWriter[bytes]) -> None:
        near = ChannelStream(reader, writer)
        try:
            far = await self._connect()
        except (FleetError, OSError) as error:
            log.info("a connection to port %d of %s goes nowhere: %s", self.port, self._node, error)
            near.abort()
            return
        await relay(near, far)


async def relay(one: ByteStream, other: ByteStream) -> None:
    """Carry bytes both ways until both sides have ended, or either broke; never more in hand than one chunk."""
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_carry(one, other))
            tasks.create_task(_carry(other, one))
    except* (OSError, asyncssh.Error, FleetError) as broken:
        log.debug("a relayed connection broke: %s", broken.exceptions[0])
        one.abort()
        other.abort()
    finally:
        one.close()
        other.close()


async def _carry(source: ByteStream, sink: ByteStream) -> None:
    while data := await source.read(_CHUNK):
        await sink.write(data)
    sink.write_eof()


def _close_late(opening: asyncio.Task) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result()[1].channel.abort()


__all__ = ["ChannelStream", "PortClosed", "RemoteForward", "open_connection", "relay"]
