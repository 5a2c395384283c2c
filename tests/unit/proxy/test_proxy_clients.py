"""Clients that leave, wait, crowd or are cancelled: their upstream work ends with them, and everybody is served."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from contextlib import AsyncExitStack

import pytest

from fleet.errors import ConfigError, FleetError, PortTaken
from fleet.proxy import listener
from fleet.proxy.exchange import HoldSettings, Limits, ProxySettings
from fleet.proxy.serve import running
from tests.unit.proxy.scripted import (
    DONE,
    HEAD,
    ask,
    client,
    event,
    eventually,
    framed,
    hang,
    hang_after_one,
    nothing_left,
    proxied,
    tell,
    told,
    upstream,
    with_limits,
)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("keep_alive", [0.0, 0.05])
async def test_a_client_that_leaves_before_the_answer_ends_the_work_upstream(stream, keep_alive):
    async with upstream(hang) as up, proxied(up, hold=HoldSettings(keep_alive=keep_alive)) as proxy:
        async with client(proxy, ask(stream=stream)):
            await up.until(lambda: up.running == 1)
        await up.until(lambda: up.running == 0)
        await proxy.proxy.records.quiet.wait()
        assert proxy.proxy.records.ring[-1].state == "cancelled"


async def test_a_client_that_leaves_in_the_middle_ends_the_work_upstream():
    async with upstream(hang_after_one) as up, proxied(up) as proxy:
        async with client(proxy, ask(stream=True)) as asking:
            await asking.head()
            assert await asking.part() == event("one")
        await up.until(lambda: up.running == 0)
        await proxy.proxy.records.quiet.wait()
        assert proxy.proxy.records.ring[-1].state == "cancelled"
        assert proxy.proxy.records.ring[-1].tokens == 1


async def test_a_client_that_leaves_while_it_waits_leaves_no_place_behind():
    async with upstream(tell) as up, proxied(up) as proxy:
        proxy.proxy.hold("m")
        async with client(proxy, ask()):
            await eventually(lambda: proxy.proxy.gate.waiting > 0)
        await proxy.proxy.records.quiet.wait()
        assert proxy.proxy.gate.waiting == proxy.proxy.gate.waiting_bytes == 0
        proxy.proxy.release("m")
        assert not up.asked


async def test_a_client_that_leaves_within_its_request_reaches_nobody():
    async with upstream(tell) as up, proxied(up) as proxy:
        async with client(proxy, ask()[:-10]):
            pass
        assert (await told(proxy, ask())).status == 200
        assert len(up.asked) == 1


async def test_an_upstream_that_takes_no_cut_well_finishes_for_nobody():
    ended = asyncio.Event()
    go_on = asyncio.Event()

    async def slow(asked, reader, writer):
        writer.write(HEAD + framed(event("one")))
        await go_on.wait()
        writer.write(framed(event("", "stop")) + framed(DONE) + framed(b""))
        await writer.drain()
        ended.set()

    async with upstream(slow) as up, proxied(with_limits(up.settings, let_finish=True)) as proxy:
        async with client(proxy, ask(stream=True)) as asking:
            await asking.head()
        await proxy.proxy.records.quiet.wait()
        assert proxy.proxy.routes.upstreams["m"].running == 1
        go_on.set()
        async with asyncio.timeout(10):
            await ended.wait()


async def test_a_thousand_clients_share_two_slots():
    async def brief(asked, reader, writer):
        await asyncio.sleep(0)
        await tell(asked, reader, writer)

    async with upstream(brief, slots=2) as up, proxied(up) as proxy:
        before = len(asyncio.all_tasks())
        replies = await asyncio.gather(*(told(proxy, ask(stream=bool(n % 2))) for n in range(1000)))
        assert [reply.status for reply in replies] == [200] * 1000
        assert all(reply.body.endswith(DONE) if n % 2 else reply.json() for n, reply in enumerate(replies))
        assert up.most_running <= 2
        assert len(up.asked) == 1000
        assert proxy.proxy.routes.upstreams["m"].pool.open <= 3
        await proxy.proxy.records.quiet.wait()
        await eventually(lambda: len(asyncio.all_tasks()) <= before + 2)     # the upstream's own idle connections


async def test_held_requests_go_on_in_the_order_in_which_they_came():
    async with upstream(tell, slots=1) as up, proxied(up) as proxy, AsyncExitStack() as stack:
        proxy.proxy.hold("m", {"swap": "to another model"})
        clients = []
        for n in range(5):
            clients.append(await stack.enter_async_context(client(proxy, ask(user=str(n)))))
            await eventually(lambda: proxy.proxy.gate.waiting == len(clients))
        proxy.proxy.release("m")
        for asking in clients:
            assert (await asking.reply()).status == 200
        assert [json.loads(asked.body)["user"] for asked in up.asked] == ["0", "1", "2", "3", "4"]


async def test_what_waits_is_bounded_by_count_and_bytes_and_told_of_the_progress():
    async with upstream(tell) as up, proxied(up, hold=HoldSettings(count=2, size=2000)) as proxy:
        proxy.proxy.hold("m", {"phase": "loading", "fraction": 0.25, "retry_after": 7})
        async with client(proxy, ask()) as first:
            await eventually(lambda: proxy.proxy.gate.waiting == 1)
            large = await told(proxy, ask(user="x" * 3000))
            async with client(proxy, ask()) as second:
                await eventually(lambda: proxy.proxy.gate.waiting == 2)
                third = await told(proxy, ask())
                proxy.proxy.release("m")
                assert (await first.reply()).status == (await second.reply()).status == 200
    for reply in (large, third):
        assert reply.status == 503
        assert reply.headers["retry-after"] == "7"
        assert reply.json()["error"]["progress"]["fraction"] == 0.25


async def test_who_waited_too_long_is_told_when_to_come_again():
    async with upstream(tell) as up, proxied(up, hold=HoldSettings(seconds=0.1)) as proxy:
        proxy.proxy.hold("m")
        reply = await told(proxy, ask())
        assert (reply.status, reply.json()["error"]["code"]) == (503, "held_too_long")
        assert reply.json()["error"]["progress"]["state"] == "held"


async def test_a_held_stream_is_kept_alive_by_comments_and_then_goes_on():
    async with upstream(tell) as up, proxied(up, hold=HoldSettings(keep_alive=0.05)) as proxy:
        proxy.proxy.hold("m")
        async with client(proxy, ask(stream=True)) as asking:
            assert (await asking.head()).headers["content-type"] == "text/event-stream"
            assert await asking.part() == b": waiting\n\n"
            assert await asking.part() == b": waiting\n\n"
            proxy.proxy.release("m")
            rest = b""
            while part := await asking.part():
                rest += part
    assert rest.replace(b": waiting\n\n", b"") == event("one") + event(" two") + event("", "stop") + DONE


async def test_a_client_that_takes_comments_for_data_gets_none():
    hold = HoldSettings(keep_alive=0.02, seconds=0.3, no_keep_alive_agents=("OldClient",))
    async with upstream(tell) as up, proxied(up, hold=hold) as proxy:
        proxy.proxy.hold("m")
        reply = await told(proxy, ask(stream=True, headers="user-agent: oldclient/1.0\r\n"))
    assert reply.status == 503


async def test_a_drain_waits_for_what_runs_and_holds_what_comes():
    go_on = asyncio.Event()

    async def slow(asked, reader, writer):
        await go_on.wait()
        await tell(asked, reader, writer)

    async with upstream(slow) as up, proxied(up) as proxy, client(proxy, ask()) as runs:
        await up.until(lambda: up.running == 1)
        assert await proxy.proxy.drain("m", 0.05) == 1
        async with client(proxy, ask()) as waits:
            draining = asyncio.ensure_future(proxy.proxy.drain("m", 10))
            await eventually(lambda: proxy.proxy.gate.waiting > 0)
            go_on.set()
            assert (await runs.reply()).status == 200
            assert await draining == 0
            assert len(up.asked) == 1
            proxy.proxy.release("m")
            assert (await waits.reply()).status == 200


async def test_one_request_is_cancelled_and_its_client_told():
    async with upstream(hang_after_one) as up, proxied(up) as proxy, client(proxy, ask(stream=True)) as asking:
        await asking.head()
        assert await asking.part() == event("one")
        (id,) = proxy.proxy.records.live
        assert proxy.proxy.cancel(id)
        rest = b""
        while part := await asking.part():
            rest += part
        await up.until(lambda: up.running == 0)
        assert b'"cancelled"' in rest
        assert rest.endswith(DONE)
        assert not proxy.proxy.cancel(id)


async def test_a_waiting_request_is_cancelled_and_its_client_told():
    async with upstream(tell) as up, proxied(up) as proxy:
        proxy.proxy.hold("m")
        async with client(proxy, ask()) as asking:
            await eventually(lambda: proxy.proxy.gate.waiting > 0)
            assert proxy.proxy.cancel(next(iter(proxy.proxy.records.live)))
            assert (await asking.reply()).json()["error"]["code"] == "cancelled"


async def test_upstreams_are_exchanged_while_requests_wait():
    async with upstream(tell) as old, upstream(tell) as new, proxied(old) as proxy:
        proxy.proxy.hold("m")
        async with client(proxy, ask()) as asking:
            await eventually(lambda: proxy.proxy.gate.waiting > 0)
            proxy.proxy.set_upstreams([new.settings])
            proxy.proxy.release("m")
            assert (await asking.reply()).status == 200
        assert not old.asked and len(new.asked) == 1
        with pytest.raises(ConfigError):
            proxy.proxy.set_upstreams([new.settings, new.settings])
        assert (await told(proxy, ask())).status == 200
        with pytest.raises(FleetError, match="nobody"):
            proxy.proxy.hold("nobody")


@pytest.fixture(params=["httptools", "h11"])
def parser(request, monkeypatch):
    """Both parsers of uvicorn: the faster one is not everywhere."""
    if request.param == "h11":
        monkeypatch.setattr(listener.importlib.util, "find_spec", lambda name: None)
    return request.param


async def test_a_gigabyte_of_headers_is_cut_off_early(parser):
    async with upstream(tell) as up, proxied(up, limits=Limits(head=32 * 1024)) as proxy:
        for start in (b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n", b"GET /" + b"a" * 70_000):
            async with client(proxy, start) as asking:
                sent = 0
                try:
                    while sent < 1 << 30:
                        asking.writer.write((b"x-header: " + b"y" * 1000 + b"\r\n") * 64)
                        await asking.writer.drain()
                        sent += 64 * 1012
                except ConnectionError:
                    pass
                assert sent < 64 << 20
        assert (await told(proxy, ask())).status == 200


async def test_a_head_that_never_ends_is_given_up(parser):
    async with upstream(tell) as up, proxied(up, limits=Limits(head_timeout=0.2)) as proxy:
        async with client(proxy, b"GET /health HTT") as asking:
            async with asyncio.timeout(10):
                assert (await asking.reader.read()).startswith((b"HTTP/1.1 408", b""))
        async with client(proxy, ask()[:-5]) as asking:              # a body has its own time
            await asyncio.sleep(0.4)
            asking.writer.write(ask()[-5:])
            assert (await asking.reply()).status == 200


async def test_a_large_body_is_refused_before_it_has_come():
    async with upstream(tell) as up, proxied(up, limits=Limits(body=1000)) as proxy:
        reply = await told(proxy, ask(user="x" * 2000))
        assert (reply.status, reply.json()["error"]["code"]) == (413, "request_too_large")
        head = (b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\n")
        async with client(proxy, head + framed(b"x" * 2000)) as asking:
            assert (await asking.reply()).status == 413
        assert not up.asked


async def test_bodies_that_are_never_whole_do_not_fill_the_memory(parser):
    start = b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 100000\r\n\r\n"
    async with upstream(tell) as up, proxied(up, limits=Limits(body=100_000)) as proxy, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(client(proxy, start + b" " * 90_000)) for _ in range(12)]
        reading = [asyncio.ensure_future(asking.reply()) for asking in clients]
        async with asyncio.timeout(20):
            while sum(task.done() for task in reading) < 4:      # 8 x 100,000 bytes hold eight of them
                await asyncio.wait([task for task in reading if not task.done()], return_when=asyncio.FIRST_COMPLETED)
        refused = [await task for task in reading if task.done()]
        assert {(reply.status, reply.json()["error"]["code"]) for reply in refused} == {(503, "too_much_unfinished")}
        for task in reading:
            task.cancel()
        await stack.aclose()
        await asyncio.gather(*reading, return_exceptions=True)
        await nothing_left(proxy)
        assert (await told(proxy, ask())).status == 200


async def test_a_request_passes_on_as_it_came():
    async with upstream(tell) as up, proxied(up) as proxy:
        body = b'{ "model":"m", "unknown" : [1, 2.50, "\\u00e9"],"messages":[],"top_k":3 }'
        head = (b"POST /v1/chat/completions?x=1 HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer secret\r\n"
                b"cookie: a=b\r\nx-forwarded-for: 1.2.3.4\r\nconnection: keep-alive, x-mine\r\nx-mine: 1\r\n"
                b"x-other: kept\r\ncontent-length: %d\r\n\r\n" % len(body))
        assert (await told(proxy, head + body)).status == 200
    (asked,) = up.asked
    assert asked.body == body
    assert asked.path == "/v1/chat/completions?x=1"
    assert asked.headers["x-other"] == "kept"
    assert not {"authorization", "cookie", "x-forwarded-for", "x-mine"} & set(asked.headers)
    assert asked.headers["host"] == f"127.0.0.1:{up.port}"


async def test_the_control_interface_wants_its_token_and_leaves_nothing_behind(tmp_path):
    file = tmp_path / "run" / "proxy.json"
    async with upstream(tell) as up:
        async with proxied(up, control_file=str(file)) as proxy:
            assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
            token = json.loads(file.read_text())["token"]
            state = b"GET /quarterdeck/state HTTP/1.1\r\nhost: 127.0.0.1\r\n"
            key = b"authorization: Bearer " + token.encode() + b"\r\n"
            assert (await told(proxy, state + b"\r\n")).status == 401
            assert (await told(proxy, state + b"origin: http://127.0.0.1\r\n" + key + b"\r\n")).status == 403
            reply = await told(proxy, state + key + b"\r\n")
            assert reply.json()["upstreams"][0]["health"] == "ready"
            body = json.dumps([{"name": "m", "url": "ftp://x"}]).encode()
            put = b"PUT /quarterdeck/upstreams HTTP/1.1\r\nhost: 127.0.0.1\r\n" + key + b"content-length: %d\r\n\r\n%s"
            assert (await told(proxy, put % (len(body), body))).status == 400
            assert (await told(proxy, ask())).status == 200
        assert not file.exists()


async def test_a_taken_port_is_told_in_words():
    async with upstream(tell) as up:
        with pytest.raises(PortTaken, match=f"Port {up.port} on 127.0.0.1 is taken"):
            async with running(ProxySettings(port=up.port)):
                pass


async def test_a_stop_lets_the_running_requests_end_and_cuts_the_rest():
    async with upstream(hang_after_one) as up:
        async with AsyncExitStack() as stack:
            async with proxied(up, drain_seconds=0.2) as proxy:
                asking = await stack.enter_async_context(client(proxy, ask(stream=True)))
                await asking.head()
                proxy.proxy.stopping = True
                assert (await told(proxy, ask())).status == 503
                # leaves the block while the request still runs
                proxy.proxy.records.live[next(iter(proxy.proxy.records.live))].cancel()
            rest = b""
            while part := await asking.part():
                rest += part
            assert rest.endswith(DONE)
        await up.until(lambda: up.running == 0)
