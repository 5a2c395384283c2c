"""What a swap and a recovery need of the proxy: holds that end by themselves, servers known to be lost, a catalogue."""

from __future__ import annotations

import asyncio

import pytest

from fleet.errors import FleetError
from fleet.proxy.control import read_catalogue
from fleet.proxy.exchange import HoldSettings, UpstreamSettings
from tests.unit.proxy.scripted import (
    ask,
    client,
    eventually,
    hang,
    hang_after_one,
    proxied,
    tell,
    told,
    upstream,
)


async def test_a_hold_whose_holder_died_ends_by_itself():
    async with upstream(tell) as up, proxied(up) as proxy:
        proxy.proxy.hold("m", {"swap": "to n"}, seconds=0.2)
        reply = await told(proxy, ask())
        assert reply.status == 200
        assert not proxy.proxy.routes.upstreams["m"].held


async def test_a_hold_that_is_said_again_goes_on():
    async with upstream(tell) as up, proxied(up) as proxy:
        proxy.proxy.hold("m", seconds=0.3)
        asking = asyncio.ensure_future(told(proxy, ask()))
        for _ in range(8):
            await asyncio.sleep(0.1)
            proxy.proxy.hold("m", seconds=0.3)
        assert not asking.done()
        proxy.proxy.release("m")
        assert (await asking).status == 200


async def test_a_stream_on_a_server_that_is_lost_ends_with_an_error_event_and_one_that_moves_goes_on():
    async with upstream(hang_after_one) as up, proxied(up) as proxy, client(proxy, ask(stream=True)) as asking:
        await up.until(lambda: up.running == 1)
        stream = proxy.proxy.routes.upstreams["m"]
        await eventually(lambda: bool(stream.connections) and next(iter(stream.connections)).begun)
        assert proxy.proxy.fail("m", "Its worker lost power.", still=30.0) == 0
        assert proxy.proxy.fail("m", "Its worker lost power.") == 1
        reply = await asking.reply()
        assert b"Its worker lost power." in reply.body
        assert reply.body.endswith(b"data: [DONE]\n\n")


async def test_a_request_that_has_seen_nothing_of_its_answer_moves_to_a_server_that_can_give_it():
    async with upstream(hang) as lost, upstream(tell) as other:
        both = [UpstreamSettings("lost", f"http://127.0.0.1:{lost.port}", models=("m",), weight=9.0),
                UpstreamSettings("other", f"http://127.0.0.1:{other.port}", models=("m",))]
        async with proxied(*both) as proxy:
            asking = asyncio.ensure_future(told(proxy, ask()))
            await lost.until(lambda: lost.running == 1)
            proxy.proxy.hold("lost")
            assert proxy.proxy.fail("lost", "Its worker lost power.") == 1
            assert (await asking).status == 200
            assert other.asked


async def test_who_asks_for_a_model_that_is_there_waits_for_it_and_gets_no_other_one():
    async with upstream(tell) as up, upstream(tell, model="n") as other, proxied(up) as proxy:
        assert (await told(proxy, ask(model="n"))).status == 200          # a single server takes any name ...
        proxy.proxy.set_catalogue({"n": False})
        refused = await told(proxy, ask(model="n"))                       # ... but not that of another model
        assert (refused.status, refused.json()["error"]["code"]) == (404, "model_not_loaded")
        proxy.proxy.set_catalogue({"n": True, "m": True})
        asking = asyncio.ensure_future(told(proxy, ask(model="n")))
        await eventually(lambda: bool(proxy.proxy.gate.waiting))
        assert proxy.proxy.state()["wanted"]["n"]["waiting"] == 1
        assert (await told(proxy, ask(model="m"))).status == 200
        proxy.proxy.set_upstreams([up.settings, other.settings])
        assert (await asking).status == 200
        assert len(other.asked) == 1


async def test_a_model_that_nobody_brings_up_is_not_waited_for_for_ever():
    async with upstream(tell) as up, proxied(up, hold=HoldSettings(seconds=0.3)) as proxy:
        proxy.proxy.set_catalogue({"n": True})
        refused = await told(proxy, ask(model="n"))
        assert (refused.status, refused.json()["error"]["code"]) == (503, "held_too_long")
        assert "retry-after" in refused.headers


async def test_nobody_fails_what_is_not_there():
    async with upstream(tell) as up, proxied(up) as proxy:
        with pytest.raises(FleetError, match="knows no upstream"):
            proxy.proxy.fail("nobody", "x")


@pytest.mark.parametrize("said", [[], {"a": 1}, {"": True}, "x", {str(n): True for n in range(10_001)}])
def test_a_catalogue_that_is_none_is_refused(said):
    with pytest.raises(FleetError):
        read_catalogue(said)
