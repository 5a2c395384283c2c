"""Clients that leave anywhere, and an upstream whose settings change while it works: nothing is lost or left behind."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from contextlib import AsyncExitStack, suppress
from dataclasses import replace

import pytest

from fleet.proxy import listener
from fleet.proxy.exchange import HoldSettings
from tests.unit.proxy.scripted import (
    DONE,
    HEAD,
    ask,
    client,
    event,
    eventually,
    framed,
    nothing_left,
    proxied,
    tell,
    told,
    upstream,
    whole,
)


@pytest.fixture(params=["httptools", "h11"])
def parser(request, monkeypatch):
    if request.param == "h11":
        monkeypatch.setattr(listener.importlib.util, "find_spec", lambda name: None)
    return request.param


async def in_pieces(asked, reader, writer):
    """An answer of many parts, with pauses between them."""
    if not json.loads(asked.body).get("stream"):
        await asyncio.sleep(0.003)
        writer.write(whole({"choices": []}))
        return
    writer.write(HEAD)
    for _ in range(20):
        writer.write(framed(event("x" * 50)))
        await writer.drain()
        await asyncio.sleep(0.001)
    writer.write(framed(event("", "stop")) + framed(DONE) + framed(b""))


async def leave_somewhere(proxy, chance: random.Random) -> None:
    """Begin a request, and leave within it, before its answer, within that, or behind it with another one sent."""
    asked = ask(stream=chance.random() < 0.7)
    async with client(proxy, b"") as asking:
        with suppress(ConnectionError):
            match chance.randrange(4):
                case 0:
                    asking.writer.write(asked[:chance.randrange(len(asked))])
                case 1:
                    asking.writer.write(asked)
                    await asyncio.sleep(chance.random() * 0.02)
                case 2:
                    asking.writer.write(asked)
                    await asking.reader.read(chance.randrange(1, 2000))
                case _:
                    asking.writer.write(asked + asked)
                    await asking.reader.read(100)
            if chance.random() < 0.3:
                asking.writer.write_eof()
                await asyncio.sleep(chance.random() * 0.01)
        if chance.random() < 0.5:
            asking.writer.transport.abort()


async def test_clients_that_leave_anywhere_leave_nothing_behind(parser):
    async with upstream(in_pieces, slots=3) as up, proxied(up) as proxy:
        tasks = len(asyncio.all_tasks())
        for round_ in range(3):
            async with asyncio.timeout(60):
                await asyncio.gather(*(leave_somewhere(proxy, random.Random(round_ * 100 + n)) for n in range(100)))
        await nothing_left(proxy)
        assert proxy.proxy.routes.upstreams["m"].pool.open <= 3
        await eventually(lambda: len(asyncio.all_tasks()) <= tasks + 3)      # of the upstream's own idle connections
        assert (await told(proxy, ask())).status == 200


async def test_a_server_whose_settings_change_gets_no_more_at_once_than_it_takes():
    go_on = asyncio.Event()

    async def wait(asked, reader, writer):
        await go_on.wait()
        await tell(asked, reader, writer)

    async with upstream(wait, slots=2) as up, proxied(up) as proxy, AsyncExitStack() as stack:
        for _ in range(6):
            await stack.enter_async_context(client(proxy, ask()))
        await up.until(lambda: up.running == 2)
        await eventually(lambda: proxy.proxy.gate.waiting == 4)
        for weight in (2.0, 3.0):
            proxy.proxy.set_upstreams([replace(up.settings, weight=weight)])
            assert proxy.proxy.routes.upstreams["m"].free == 0 and proxy.proxy.gate.waiting == 4
        assert await proxy.proxy.drain("m", 0.05) == 2        # those that came by the former settings count
        proxy.proxy.release("m")
        go_on.set()
        await nothing_left(proxy)
        assert len(up.asked) == 6 and up.most_running == 2


async def test_nothing_is_lost_while_holds_drains_and_settings_chase_each_other():
    async with upstream(in_pieces, slots=2) as up, proxied(up, hold=HoldSettings(count=1000)) as proxy:
        here, ended, chance = proxy.proxy, Counter(), random.Random(7)

        async def keep_asking(stream: bool) -> None:
            while not over.is_set():
                reply = await told(proxy, ask(stream=stream))
                ended[reply.status, reply.body.endswith(DONE) if stream else bool(reply.json())] += 1

        over = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for n in range(20):
                group.create_task(keep_asking(bool(n % 2)))
            for _ in range(150):
                match chance.randrange(5):
                    case 0:
                        here.hold("m", None, 0.01)
                    case 1:
                        here.release("m")
                    case 2:
                        draining = asyncio.ensure_future(here.drain("m", chance.random() * 0.03))
                        await asyncio.sleep(chance.random() * 0.03)
                        draining.cancel()
                        await asyncio.wait([draining])
                    case 3:
                        here.set_upstreams([replace(up.settings, weight=1 + chance.random())])
                    case 4:
                        here.hold("m")
                await asyncio.sleep(0.002)
            here.release("m")
            over.set()
        assert set(ended) == {(200, True)} and up.most_running <= 2
