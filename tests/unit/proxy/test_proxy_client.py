"""The control client against a real proxy, through the transport of this machine."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from fleet.errors import FleetError
from fleet.model import ServiceKind, ServiceRecord
from fleet.nodes.local import LocalTransport
from fleet.proxies.of_fleet import OfFleet
from fleet.proxy.client import ProxyClient, ProxyError
from fleet.proxy.exchange import HoldSettings, UpstreamSettings
from tests.unit.proxy.scripted import ask, client, eventually, hang, hang_after_one, proxied, tell, told, upstream


def record(folder: Path, port: int) -> ServiceRecord:
    return ServiceRecord(f"proxy-{port}", ServiceKind.PROXY, 1, "1", ("python",), port, "127.0.0.1", True, 0.0,
                         str(folder))


async def test_what_a_proxy_is_asked_and_told_from_a_node(tmp_path: Path):
    async with upstream(hang_after_one) as up, proxied(up, control_file=str(tmp_path / "control.json")) as proxy:
        control = ProxyClient(LocalTransport("here"), record(tmp_path, proxy.port))
        async with client(proxy, ask(stream=True)) as asking:
            await eventually(lambda: bool(proxy.proxy.records.live))
            await up.until(lambda: up.running == 1)
            assert (await control.state())["live"] == 1
            live = (await control.requests())["live"]
            assert await control.drain("m", 0.0, {"swap": "to n"}, 30.0) == 1
            assert proxy.proxy.routes.upstreams["m"].progress == {"swap": "to n"}
            await control.release("m")
            assert await control.cancel(str(live[0]["id"]))
            assert b"cancelled" in (await asking.reply()).body
        assert not await control.cancel("../state")
        with pytest.raises(ProxyError, match="knows no upstream"):
            await control.release("nobody")
        await control.close()


async def test_what_the_fleet_serves_comes_beside_what_is_configured(tmp_path: Path):
    async with upstream(tell) as up, upstream(tell, model="n") as other, proxied(
            up, control_file=str(tmp_path / "control.json")) as proxy:
        control = ProxyClient(LocalTransport("here"), record(tmp_path, proxy.port))
        await control.fleet(OfFleet((other.settings,), {}, {"big": False}, {"large": "n"}))
        assert (await told(proxy, ask(model="n"))).status == 200
        assert (await told(proxy, ask(model="large"))).status == 200
        assert (await told(proxy, ask(model="big"))).status == 404
        await control.fleet(OfFleet())
        assert (await told(proxy, ask(model="m"))).status == 200
        with pytest.raises(ProxyError, match="configured already"):
            await control.fleet(OfFleet((up.settings,)))
        await control.close()


async def test_a_server_that_is_said_to_be_lost_gets_nothing_more_and_its_clients_are_told(tmp_path: Path):
    async with upstream(hang) as up, proxied(hold=HoldSettings(gone_seconds=0.1),
                                             control_file=str(tmp_path / "control.json")) as proxy:
        control = ProxyClient(LocalTransport("here"), record(tmp_path, proxy.port))
        await control.fleet(OfFleet((up.settings,)))
        await eventually(lambda: proxy.proxy.routes.upstreams["m"].health.state == "ready")
        asking = asyncio.ensure_future(told(proxy, ask()))
        await up.until(lambda: up.running == 1)
        await control.fleet(OfFleet((up.settings,), {"m": "bolt lost its power."}))
        for refused in (await asking, await told(proxy, ask())):
            assert refused.status in (502, 503)
            assert "bolt lost its power" in refused.json()["error"]["message"]
        await control.fleet(OfFleet((up.settings,)))
        up.script = tell
        await eventually(lambda: proxy.proxy.routes.upstreams["m"].may_take())
        assert (await told(proxy, ask())).status == 200
        await control.close()


async def test_who_asks_for_what_is_lost_waits_where_it_comes_back(tmp_path: Path):
    async with upstream(tell) as up, proxied(hold=HoldSettings(gone_seconds=0.1),
                                             control_file=str(tmp_path / "control.json")) as proxy:
        control = ProxyClient(LocalTransport("here"), record(tmp_path, proxy.port))
        await control.fleet(OfFleet((up.settings,), {"m": "bolt lost its power."}, waits=True))
        asking = asyncio.ensure_future(told(proxy, ask()))
        await eventually(lambda: bool(proxy.proxy.gate.waiting))
        await asyncio.sleep(1.2)                       # longer than it is waited for where nothing comes back
        assert not asking.done() and proxy.proxy.gate.progress("m")["state"] == "recovering"
        await control.fleet(OfFleet((up.settings,)))
        assert (await asking).status == 200
        await control.close()


async def test_a_proxy_that_was_started_again_is_asked_with_its_new_token(tmp_path: Path):
    async with proxied(control_file=str(tmp_path / "control.json")) as proxy:
        control = ProxyClient(LocalTransport("here"), record(tmp_path, proxy.port))
        await control.state()
        control._token = "of another life"
        assert (await control.state())["live"] == 0
        await control.close()


@pytest.mark.parametrize("content", ["", "{}", '{"token": "a\\nb"}', '{"token": 5}', "[" * 100_000])
async def test_a_control_file_that_holds_no_token_is_refused_in_words(tmp_path: Path, content: str):
    (tmp_path / "control.json").write_text(content)
    control = ProxyClient(LocalTransport("here"), record(tmp_path, 1))
    with pytest.raises(FleetError, match="control file"):
        await control.state()
    await control.close()


@pytest.mark.parametrize("answer", [b"HTTP/1.1 200 OK\r\n\r\nhello", b"garbage\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n[1]",
                                    b""])
async def test_what_is_no_proxy_is_refused_in_words(tmp_path: Path, answer: bytes):
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    (tmp_path / "control.json").write_text(json.dumps({"token": "t"}))
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    control = ProxyClient(LocalTransport("here"), record(tmp_path, server.sockets[0].getsockname()[1]))
    with pytest.raises(FleetError, match="proxy"):
        await control.state()
    await control.close()
    server.close()


def test_settings_of_an_upstream_survive_the_way():
    from fleet.proxy.client import _plain
    from fleet.proxy.control import read_upstreams

    settings = UpstreamSettings("one", "http://10.0.0.1:8080", models=("a", "b"), key="k", slots=2)
    assert read_upstreams([json.loads(json.dumps(_plain(settings)))]) == (settings,)
