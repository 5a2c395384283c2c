"""TCP connections as `ByteStream`s, and the error of one that nobody takes."""

from __future__ import annotations

import asyncio
import socket
import struct

from fleet.errors import PortClosed

_RST_ON_CLOSE = struct.pack("ii", 1, 0)   # SO_LINGER on, 0 s


class TcpStream:
    """A `ByteStream` over asyncio's reader and writer. Its waits end with the caller's timeout."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
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
        """End at once with RST: the other side's blocking read ends too."""
        sock = self._writer.get_extra_info("socket")
        if sock is not None and not self._writer.transport.is_closing():
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST_ON_CLOSE)
        self._writer.transport.abort()


async def connect_tcp(node: str, host: str, port: int, timeout: float) -> TcpStream:
    """A TCP connection from this process; `PortClosed` when it is refused or nobody answers in time."""
    try:
        async with asyncio.timeout(timeout):
            return TcpStream(*await asyncio.open_connection(host, port))
    except TimeoutError as error:
        raise port_silent(node, host, port, timeout) from error
    except OSError as error:
        raise port_closed(node, host, port, error.strerror or str(error)) from error


def port_silent(node: str, host: str, port: int, timeout: float) -> PortClosed:
    """Nothing came back from host:port."""
    return PortClosed(
        f"{host} port {port} did not answer {node} within {timeout:g} s.",
        "Check that the address is right and that no firewall is between them.", code="port-silent")


def port_closed(node: str, host: str, port: int, why: str) -> PortClosed:
    """host:port said no."""
    return PortClosed(
        f"{node} could not connect to {host} port {port}: {why[:200]}.",
        "Check that the service runs and listens on that address.")
