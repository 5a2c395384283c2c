"""Upstreams that die, hang, refuse and talk nonsense: the client gets a right answer, and nothing stays behind."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest

from fleet.proxy.exchange import HoldSettings, Limits
from tests.unit.proxy.scripted import (
    DONE,
    HEAD,
    ask,
    client,
    die_after_one,
    event,
    eventually,
    framed,
    hang,
    hang_after_one,
    proxied,
    tell,
    told,
    upstream,
    whole,
    with_limits,
)


def error_in(stream: bytes) -> dict:
    """The error event of a stream that ends with [DONE]."""
    assert stream.endswith(DONE), stream
    blocks = [block for block in stream.split(b"\n\n") if block.startswith(b"data: {") and b'"error"' in block]
    assert len(blocks) == 1, stream
    return json.loads(blocks[0].removeprefix(b"data: "))["error"]


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


async def test_an_upstream_killed_in_the_middle_ends_the_stream_with_an_error_event():
    async with upstream(die_after_one) as up, proxied(up) as proxy:
        reply = await told(proxy, ask(stream=True))
    assert reply.status == 200
    assert reply.body.startswith(event("one"))
    assert error_in(reply.body)["code"] == "upstream_died"
    assert proxy.proxy.records.ring[-1].state == "failed"
    assert proxy.proxy.records.ring[-1].tokens == 1


async def test_an_upstream_that_hangs_before_its_answer_gives_a_timeout():
    async with upstream(hang) as up, proxied(with_limits(up.settings, first_byte_timeout=0.2)) as proxy:
        reply = await told(proxy, ask())
        streamed = await told(proxy, ask(stream=True))
        await up.until(lambda: up.running == 0)
    assert (reply.status, reply.json()["error"]["code"]) == (504, "upstream_timeout")
    assert streamed.status == 504


async def test_an_upstream_that_stalls_in_the_middle_ends_the_stream_with_an_error_event():
    async with upstream(hang_after_one) as up, proxied(with_limits(up.settings, stall_timeout=0.2)) as proxy:
        reply = await told(proxy, ask(stream=True))
        await up.until(lambda: up.running == 0)
    assert error_in(reply.body)["code"] == "upstream_timeout"


async def error_and_then_nothing(asked, reader, writer) -> None:
    error = b'data: {"error": {"message": "out of memory", "code": 500}}\n\n'
    writer.write(HEAD + framed(event("one")) + framed(error))
    await writer.drain()
    await asyncio.Event().wait()


async def test_an_error_in_the_middle_ends_the_stream_also_when_its_server_says_nothing_more():
    async with upstream(error_and_then_nothing) as up, proxied(up) as proxy:
        reply = await told(proxy, ask(stream=True))
        await up.until(lambda: up.running == 0)
    assert "out of memory" in error_in(reply.body)["message"]
    assert proxy.proxy.records.ring[-1].state == "failed"


async def test_a_stalled_answer_in_one_piece_is_an_error_and_no_half_answer():
    async def half(asked, reader, writer):
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{")
        await reader.read()

    async with upstream(half) as up, proxied(with_limits(up.settings, stall_timeout=0.2)) as proxy:
        reply = await told(proxy, ask())
    assert (reply.status, reply.json()["error"]["code"]) == (504, "upstream_timeout")


async def test_nobody_listening_is_told_with_the_time_to_try_again():
    async with upstream() as up:
        settings = with_limits(up.settings, url=f"http://127.0.0.1:{free_port()}", models=("m",))
        async with proxied(settings) as proxy:
            reply = await told(proxy, ask())
            streamed = await told(proxy, ask(stream=True))
    assert (reply.status, reply.json()["error"]["code"]) == (503, "upstream_unavailable")
    assert int(reply.headers["retry-after"]) >= 1
    assert reply.json()["error"]["progress"]["state"] == "unavailable"
    assert streamed.status == 503


async def test_a_request_goes_elsewhere_while_its_client_has_seen_nothing():
    async def die(asked, reader, writer):
        writer.transport.abort()

    async with upstream(die) as dying, upstream() as well:
        first = with_limits(dying.settings, name="a", group="m")
        second = with_limits(well.settings, name="b", group="m", weight=0.001)
        async with proxied(first, second) as proxy:
            reply = await told(proxy, ask(stream=True))
            assert proxy.proxy.records.ring[-1].retried == 1
    assert reply.status == 200
    assert reply.body.endswith(DONE)
    assert b"error" not in reply.body
    assert len(dying.asked) == len(well.asked) == 1


async def test_a_request_that_kills_its_server_is_not_sent_to_every_server():
    async def die(asked, reader, writer):
        writer.transport.abort()

    async with upstream(die) as one, upstream(die) as two, upstream(die) as three:
        ups = {"a": one, "b": two, "c": three}
        settings = [with_limits(up.settings, name=name, group="m") for name, up in ups.items()]
        async with proxied(*settings, retries=10) as proxy:
            reply = await told(proxy, ask())
    assert (reply.status, reply.json()["error"]["code"]) == (502, "upstream_died")
    assert len(one.asked) + len(two.asked) + len(three.asked) == 2


@pytest.mark.parametrize("garbage", [
    b"\x00\x01\x02\x03 no http at all\r\n\r\n", b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 abc OK\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabc",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n", b"HTTP/1.1 101 Switching\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nno colon here\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n",
])
async def test_garbage_is_told_as_such(garbage):
    async def talk(asked, reader, writer):
        writer.write(garbage)
        await reader.read()

    async with upstream(talk) as up, proxied(up, retries=0) as proxy:
        reply = await told(proxy, ask())
    assert (reply.status, reply.json()["error"]["code"]) == (502, "upstream_invalid")


async def test_endless_headers_are_cut_off_early():
    sent = 0

    async def endless(asked, reader, writer):
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\n")
        row = b"x-header: " + b"y" * 1000 + b"\r\n"
        while sent < 1 << 30:
            writer.write(row * 64)
            sent += len(row) * 64
            await writer.drain()

    async with upstream(endless) as up, proxied(up, retries=0) as proxy:
        reply = await told(proxy, ask(stream=True))
    assert (reply.status, reply.json()["error"]["code"]) == (502, "upstream_invalid")
    assert sent < 64 << 20          # what the sockets between us hold, and no gigabyte


async def test_a_connection_that_was_closed_while_idle_costs_no_request():
    async def once(asked, reader, writer):
        await tell(asked, reader, writer)
        writer.close()              # without a word, as a server does whose patience with an idle client ends

    async with upstream(once) as up, proxied(up) as proxy:
        for _ in range(5):
            assert (await told(proxy, ask())).status == 200
            await asyncio.sleep(0)
        assert len(up.asked) == 5


async def test_an_error_of_the_upstream_reaches_the_client_as_it_is():
    said = {"error": {"code": 400, "message": "context is full", "type": "exceed_context_size_error", "n_ctx": 512}}

    async def refuse(asked, reader, writer):
        writer.write(whole(said, 400))

    async with upstream(refuse) as up, proxied(up) as proxy:
        for stream in (False, True):
            reply = await told(proxy, ask(stream=stream))
            assert (reply.status, reply.json()) == (400, said)


async def test_a_model_that_loads_is_waited_for():
    async with (upstream(loading=True) as up, proxied(with_limits(up.settings, models=("m",))) as proxy,
                client(proxy, ask()) as asking):
        await eventually(lambda: proxy.proxy.gate.waiting > 0)
        assert not up.asked
        up.loading = False
        assert (await asking.reply()).status == 200


async def test_a_stream_that_began_with_comments_ends_well_when_its_upstream_dies():
    async with upstream(hang) as up:
        settings = with_limits(up.settings, first_byte_timeout=0.7)
        async with proxied(settings, hold=HoldSettings(keep_alive=0.05)) as proxy:
            reply = await told(proxy, ask(stream=True))
    assert reply.status == 200
    assert reply.body.startswith(b": waiting\n\n")
    assert error_in(reply.body)["code"] == "upstream_timeout"
    assert proxy.proxy.records.ring[-1].state == "failed"


async def test_a_slow_client_does_not_fill_the_memory():
    async def much(asked, reader, writer):
        writer.write(HEAD)
        part = framed(event("x" * 60_000))
        for _ in range(500):
            writer.write(part)
            await writer.drain()
        writer.write(framed(event("", "stop")) + framed(DONE) + framed(b""))

    async with upstream(much) as up, proxied(up) as proxy, client(proxy, ask(stream=True)) as asking:
        await asking.head()
        await up.until(lambda: up.running == 1)
        before = -1
        while (sent := next(iter(proxy.proxy.records.live.values())).bytes_out) != before:
            before = sent
            await asyncio.sleep(0.3)
        assert before < 24 << 20                 # and not the 30 MB that the upstream has
        total = 0
        while part := await asking.part():
            total += len(part)
        assert total > 30_000_000


async def test_a_client_that_takes_nothing_of_its_answer_is_let_go():
    async def much(asked, reader, writer):
        writer.write(HEAD)
        part = framed(event("x" * 60_000))
        while True:
            writer.write(part)
            await writer.drain()

    async with (upstream(much) as up, proxied(up, limits=Limits(write_timeout=0.3)) as proxy,
                client(proxy, ask(stream=True)) as asking):
        await asking.head()
        await up.until(lambda: up.running == 1)
        await up.until(lambda: up.running == 0)
        await proxy.proxy.records.quiet.wait()
        assert proxy.proxy.records.ring[-1].problem == "client_stalled"


async def test_a_cancelled_stream_whose_end_is_the_end_of_its_connection_is_cancelled_and_not_done():
    async def endless(asked, reader, writer):
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n" + event("one"))
        await writer.drain()
        await reader.read()

    async with upstream(endless) as up, proxied(up) as proxy, client(proxy, ask(stream=True)) as asking:
        await up.until(lambda: up.running == 1)
        await eventually(lambda: any(e.tokens for e in proxy.proxy.records.live.values()))
        (live,) = proxy.proxy.records.live
        assert proxy.proxy.cancel(live)
        reply = await asking.reply()
        assert b"cancelled" in reply.body and reply.body.endswith(b"data: [DONE]\n\n")
        assert (proxy.proxy.records.ring[-1].state, proxy.proxy.records.ring[-1].problem) == ("cancelled", "cancelled")
