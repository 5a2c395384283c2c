"""Requests made to be read in two ways: at most one is read, none chooses a host, and nothing is read after them."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress

import pytest

from fleet.proxy import listener
from tests.unit.proxy.scripted import ask, client, eventually, framed, proxied, tell, told, upstream, whole

START = b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
BODY = b'{"model":"m","messages":[]}'
INNER = b"GET /v1/models HTTP/1.1\r\nhost: 127.0.0.1\r\nx-smuggled: 1\r\n\r\n"
LENGTH = b"content-length: %d\r\n" % len(BODY)
CHUNKED = b"transfer-encoding: chunked\r\n"
CHUNKS = framed(BODY) + framed(b"")

REFUSED = {
    "a length and chunks": START + LENGTH + CHUNKED + b"\r\n" + CHUNKS + INNER,
    "chunks and a length": START + CHUNKED + LENGTH + b"\r\n" + CHUNKS + INNER,
    "two lengths": START + LENGTH + b"content-length: 3\r\n\r\n" + BODY + INNER,
    "a negative length": START + b"content-length: -5\r\n\r\n" + INNER,
    "a hexadecimal length": START + b"content-length: 0x1b\r\n\r\n" + BODY + INNER,
    "a space before the colon": START + b"transfer-encoding : chunked\r\n\r\n" + CHUNKS + INNER,
    "another encoding": START + b"transfer-encoding: xchunked\r\n\r\n" + CHUNKS + INNER,
    "two encodings": START + b"transfer-encoding: chunked, identity\r\n\r\n" + CHUNKS + INNER,
    "an encoding behind a tab of its own": START + b"transfer-encoding: \x0bchunked\r\n\r\n" + CHUNKS + INNER,
    "a bare LF within": START + b"x-a: b\ntransfer-encoding: chunked\r\n" + LENGTH + b"\r\n" + BODY + INNER,
    "a bare CR within": START + b"x-a: b\rtransfer-encoding: chunked\r\n" + LENGTH + b"\r\n" + BODY + INNER,
    "a NUL": START + b"x-a: a\0b\r\n" + LENGTH + b"\r\n" + BODY + INNER,
    "a signed chunk": START + CHUNKED + b"\r\n+%x\r\n" % len(BODY) + BODY + b"\r\n0\r\n\r\n" + INNER,
    "a chunk that ends with LF": START + CHUNKED + b"\r\n%x\r\n" % len(BODY) + BODY + b"\n0\r\n\r\n" + INNER,
    "lines of chunks that end with LF": START + CHUNKED + b"\r\n%x\n" % len(BODY) + BODY + b"\n0\n\n" + INNER,
    "a whole URL": START.replace(b"POST /", b"POST http://169.254.169.254/") + LENGTH + b"\r\n" + BODY + INNER,
    "another host's port": b"CONNECT 169.254.169.254:80 HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n",
    "two hosts": b"GET /v1/models HTTP/1.1\r\nhost: 127.0.0.1\r\nhost: evil.example\r\n\r\n" + INNER,
    "no host": b"GET /v1/models HTTP/1.1\r\n\r\n" + INNER,
}


@pytest.fixture(params=["httptools", "h11"])
def parser(request, monkeypatch):
    """Both parsers of uvicorn: a node has the slower one."""
    if request.param == "h11":
        monkeypatch.setattr(listener.importlib.util, "find_spec", lambda name: None)
    return request.param


def statuses(answer: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.[01] (\d{3}) ", answer)]


async def until_closed(proxy, data: bytes) -> bytes:
    async with client(proxy, data) as asking, asyncio.timeout(20):
        got = b""
        with suppress(ConnectionError):
            while part := await asking.reader.read(65536):
                got += part
        return got


@pytest.mark.parametrize("request_", REFUSED.values(), ids=REFUSED)
async def test_what_can_be_read_in_two_ways_is_refused_and_nothing_after_it_is_read(parser, request_):
    async with upstream(tell) as up, proxied(up) as proxy:
        answer = await until_closed(proxy, request_)
        assert statuses(answer) in ([400], [405])
        assert not up.asked


@pytest.mark.parametrize("headers", [
    CHUNKED.replace(b": ", b":\t"),
    b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: x\r\n" + CHUNKED,
    b"Upgrade: websocket\r\nConnection: Upgrade\r\n" + CHUNKED])
async def test_an_offer_of_another_protocol_is_declined_and_its_body_is_that_of_the_request(parser, headers):
    async with upstream(tell) as up, proxied(up) as proxy:
        async with client(proxy, START + headers + b"\r\n") as asking:
            await asyncio.sleep(0)
            asking.writer.write(CHUNKS)
            assert (await asking.reply()).status == 200
            asking.writer.write(ask())
            assert (await asking.reply()).status == 200
        assert up.asked[0].body == BODY and len(up.asked) == 2
        assert not {"upgrade", "connection", "http2-settings", "proxy-upgrade"} & set(up.asked[0].headers)


async def test_an_offer_that_comes_in_two_pieces_never_makes_two_requests_of_one(parser):
    async with upstream(tell) as up, proxied(up) as proxy:
        async with client(proxy, START + b"connection: upgrade\r\nupgr") as asking:
            await eventually(lambda: any(protocol._head_bytes for protocol in proxy_connections(proxy)))
            asking.writer.write(b"ade: h2c\r\ncontent-length: %d\r\n\r\n" % len(INNER) + INNER)
            got = b""
            async with asyncio.timeout(20):
                while b"\r\n\r\n" not in got:
                    got += await asking.reader.read(65536)
        assert statuses(got) == [400] and b"x-smuggled" not in got
        assert not up.asked


def proxy_connections(proxy):
    import gc

    return [thing for thing in gc.get_objects() if isinstance(thing, listener.HeadLimits)
            and thing.server and thing.server[1] == proxy.port]


@pytest.mark.parametrize("trailer", [
    b"host: evil.example\r\n", b"authorization: Bearer x\r\n", b"content-length: 5\r\n"])
async def test_a_trailer_is_no_header(parser, trailer):
    async with upstream(tell) as up, proxied(up) as proxy:
        async with client(proxy, START + CHUNKED + b"\r\n" + framed(BODY) + b"0\r\n" + trailer + b"\r\n") as asking:
            assert (await asking.reply()).status in (200, 400)
        assert all(asked.headers["host"] == f"127.0.0.1:{up.port}" and "authorization" not in asked.headers
                   and asked.body == BODY for asked in up.asked)


async def test_endless_trailers_are_cut_off_early(parser):
    async with upstream(tell) as up, proxied(up) as proxy:
        async with client(proxy, START + CHUNKED + b"\r\n" + framed(BODY) + b"0\r\n") as asking:
            sent = 0
            with suppress(ConnectionError):
                while sent < 256 << 20:
                    asking.writer.write((b"x-header: " + b"y" * 1000 + b"\r\n") * 64)
                    await asking.writer.drain()
                    sent += 64 * 1012
            assert sent < 64 << 20
        assert (await told(proxy, ask())).status == 200


async def test_an_upstream_that_announces_its_answer_for_ever_is_given_up():
    async def announce(asked, reader, writer):
        with suppress(ConnectionError):
            while not writer.transport.is_closing():
                writer.write(b"HTTP/1.1 102 Processing\r\n\r\n" * 1000)
                await writer.drain()

    async with upstream(announce) as up, proxied(up, retries=0) as proxy:
        reply = await told(proxy, ask())
        assert reply.status == 502 and "again and again" in reply.json()["error"]["message"]


async def test_an_upstream_may_announce_its_answer():
    async def twice(asked, reader, writer):
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
                     + whole({"choices": []}))

    async with upstream(twice) as up, proxied(up) as proxy:
        for _ in range(40):                                    # the count begins anew with each request
            assert (await told(proxy, ask())).status == 200


async def test_an_upstream_cannot_add_an_answer_to_the_next_request():
    async def two_answers(asked, reader, writer):
        writer.write(whole({"choices": []}) + whole({"choices": [], "stolen": True}))
        await writer.drain()

    async with upstream(two_answers) as up, proxied(up) as proxy:
        for _ in range(3):
            assert "stolen" not in (await told(proxy, ask())).json()
