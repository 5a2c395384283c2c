"""HTTP through a node: httpx over connections that a `Transport` opens.

A head that is bound to its node's loopback is reached through the SSH connection that is there
anyway; on this machine these are plain sockets.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing
from typing import Any

import httpcore
import httpx

from fleet.nodes.transport import ByteStream, Transport

CONNECT_TIMEOUT = 5.0


class _Stream(httpcore.AsyncNetworkStream):
    """A node's `ByteStream` as httpcore wants one."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        try:
            async with asyncio.timeout(timeout):
                return await self._stream.read(max_bytes)
        except TimeoutError as error:
            raise httpcore.ReadTimeout("no answer in time") from error
        except OSError as error:
            raise httpcore.ReadError(str(error)) from error

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if not buffer:
            return
        try:
            async with asyncio.timeout(timeout):
                await self._stream.write(buffer)
        except TimeoutError as error:
            raise httpcore.WriteTimeout("the request was not taken in time") from error
        except OSError as error:
            raise httpcore.WriteError(str(error)) from error

    async def aclose(self) -> None:
        self._stream.close()

    def get_extra_info(self, info: str) -> Any:
        return None


class _Backend(httpcore.AsyncNetworkBackend):
    """Connects through a node. What the node says of a failure goes through as it is."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def connect_tcp(self, host: str, port: int, timeout: float | None = None, local_address: str | None = None,
                          socket_options: Iterable[Any] | None = None) -> httpcore.AsyncNetworkStream:
        opened = await self._transport.open_connection(host, port, timeout=timeout or CONNECT_TIMEOUT)
        return _Stream(opened)


class _Body(httpx.AsyncByteStream):
    """The body of an answer, closed whether it was read or not."""

    def __init__(self, response: httpcore.Response) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async with aclosing(self._response.aiter_stream()) as parts:
            async for part in parts:
                yield part

    async def aclose(self) -> None:
        await self._response.aclose()


class NodeHttpTransport(httpx.AsyncBaseTransport):
    """An httpx transport whose connections start at a node, a new one for each request.

    None is kept: llama-server ends them as it likes (after a stream, after 5 idle seconds), and a
    stream through SSH cannot tell beforehand that it was ended. A POST must not be sent twice.

    Raises what the node's transport raises (`NodeError`, `PortClosed`), and httpcore's own errors.
    """

    def __init__(self, transport: Transport, *, connections: int = 8) -> None:
        self._pool = httpcore.AsyncConnectionPool(
            network_backend=_Backend(transport), max_connections=connections, max_keepalive_connections=0)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await self._pool.handle_async_request(httpcore.Request(
            method=request.method,
            url=httpcore.URL(scheme=request.url.raw_scheme, host=request.url.raw_host, port=request.url.port,
                             target=request.url.raw_path),
            headers=request.headers.raw, content=request.stream, extensions=request.extensions))
        return httpx.Response(response.status, headers=response.headers, stream=_Body(response),
                              extensions=response.extensions)

    async def aclose(self) -> None:
        await self._pool.aclose()
