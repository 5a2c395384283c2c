"""A target that cannot dial the source reaches it by a forward, on the port that it knew before where that is free."""

from __future__ import annotations

import asyncio

import pytest

from fleet.errors import PortClosed
from fleet.nodes.local import LocalTransport
from fleet.swarm.ways import way_to_source

HERE, THERE = LocalTransport("target"), LocalTransport("source")


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(await reader.readexactly(5))
    await writer.drain()
    writer.close()


async def said_through(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"piece")
    answer = await reader.read(100)
    writer.close()
    return answer


async def test_what_can_be_dialled_is_dialled():
    async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        way = await way_to_source(HERE, THERE, "127.0.0.1", "127.0.0.1", port)
        assert (way.url, way.port) == (f"http://127.0.0.1:{port}", 0)
        await way.close()


async def test_what_cannot_be_dialled_is_forwarded_and_again_on_the_same_port():
    async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        way = await way_to_source(HERE, THERE, "", "0.0.0.0", port)
        assert way.port not in (0, port) and await said_through(way.port) == b"piece"
        await way.close()
        again = await way_to_source(HERE, THERE, "", "0.0.0.0", port, wished=way.port)
        assert again.port == way.port and await said_through(again.port) == b"piece"
        other = await way_to_source(HERE, THERE, "", "0.0.0.0", port, wished=way.port)
        assert other.port != way.port and await said_through(other.port) == b"piece"
        await again.close()
        await other.close()


async def test_a_seeder_that_is_not_there_is_said_at_once():
    async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
    with pytest.raises(PortClosed):
        await way_to_source(HERE, THERE, "", "127.0.0.1", port)
