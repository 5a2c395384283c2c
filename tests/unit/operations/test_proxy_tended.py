"""The engine and the proxies of its fleet, with real processes: found, read, told what serves, and left alone."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from fleet.config.schema import ProxyConfig
from fleet.events import StartProxy, StopService
from fleet.model import DeploymentState, OperationState
from fleet.proxies.hands import InsideHand
from fleet.proxy.exchange import ProxySettings
from fleet.proxy.serve import running as proxy_running
from tests.unit.operations.here import NODE, bring_up, do, fleet_here, free_port, running, tear_down, until
from tests.unit.proxy.scripted import eventually

HERE = Path(__file__).parents[3]


def with_proxy(state: Path, model: Path | str = "/none.gguf", workers: int = 0, **changes):
    config = fleet_here(state, model, workers=workers)
    return replace(config, proxy=ProxyConfig(listen=f"127.0.0.1:{free_port()}", **changes))


def left_of_proxies(state: Path) -> list[Path]:
    return [path for path in state.rglob("*") if path.is_file() and "proxy" in path.name]


def started(state: Path, model: Path) -> subprocess.Popen:
    """Another process with an engine that starts a proxy and brings the model up."""
    return subprocess.Popen([sys.executable, "-c", STARTER, str(state), str(model)], stdout=subprocess.PIPE, cwd=HERE,
                            start_new_session=True)


def url(config) -> str:
    return f"http://{config.proxy.listen}"


async def test_a_proxy_is_started_found_again_by_another_engine_and_leaves_nothing(state: Path):
    config = with_proxy(state)
    async with running(config, tend=True) as engine:
        operation = await do(engine, StartProxy())
        assert operation.state is OperationState.DONE, operation.problem
        seen = await until(engine, lambda s: s.proxies and s.proxies[0].history)
        proxy = seen.proxies[0]
        assert (proxy.node, proxy.url) == (NODE, url(config))
    async with running(config) as engine:                      # it outlives the engine that started it
        seen = await until(engine, lambda s: s.proxies and s.proxies[0].history)
        assert seen.proxies[0].service == proxy.service
        stopped = await do(engine, StopService(NODE, proxy.service))
        assert stopped.state is OperationState.DONE, stopped.problem
        assert not (await until(engine, lambda s: not s.proxies)).nodes[NODE].services
    assert left_of_proxies(state) == []


@pytest.mark.engine
async def test_clients_of_a_proxy_get_what_the_fleet_serves_and_are_told_when_nothing_does(state: Path, model: Path):
    config = with_proxy(state, model)
    async with running(config, tend=True) as engine, httpx.AsyncClient(base_url=url(config), timeout=60) as http:
        assert (await do(engine, StartProxy())).state is OperationState.DONE
        asked = {"model": "gemma", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
        refused = await http.post("/v1/chat/completions", json=asked)
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_loaded")
        await bring_up(engine)
        await until(engine, lambda s: s.proxies and any(up.health == "ready" for up in s.proxies[0].upstreams))
        answer = await http.post("/v1/chat/completions", json=asked)
        assert answer.status_code == 200, answer.text
        shown = await until(engine, lambda s: s.proxies[0].ended and s.proxies[0].ended[-1].status == 200)
        assert (shown.proxies[0].ended[-1].model, shown.proxies[0].ended[-1].tokens) == ("gemma", 4)
        await tear_down(engine)


async def test_a_proxy_inside_the_engine_is_followed_like_any_other(state: Path):
    config = with_proxy(state)
    async with running(config, tend=True) as engine, proxy_running(ProxySettings(port=0)) as inside:
        engine.run_inside(InsideHand(inside.proxy), inside.url)
        shown = await until(engine, lambda s: s.proxies and s.proxies[0].history)
        assert (shown.proxies[0].node, shown.proxies[0].url) == ("", inside.url)
        assert engine.proxies().keys() == {("", "")}


STARTER = """
import asyncio, json, sys
from pathlib import Path
from fleet.events import StartProxy
from tests.unit.operations.test_proxy_tended import with_proxy
from tests.unit.operations.here import bring_up, do, running, until

async def main():
    config = with_proxy(Path(sys.argv[1]), sys.argv[2])
    async with running(config, tend=True) as engine:
        assert (await do(engine, StartProxy())).state == "done"
        await bring_up(engine)
        await until(engine, lambda s: s.proxies and any(up.health == "ready" for up in s.proxies[0].upstreams))
        node = config.nodes["here"]
        print(json.dumps([config.proxy.listen, node.head.port]), flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.engine
async def test_sigkill_of_the_cockpit_cuts_no_stream_and_the_next_one_finds_the_proxy(state: Path, model: Path):
    starter = started(state, model)
    try:
        line = await asyncio.wait_for(asyncio.to_thread(starter.stdout.readline), 90)
        listen, head_port = json.loads(line)
        config = with_proxy(state, model)
        node = config.nodes[NODE]
        config = replace(config, proxy=replace(config.proxy, listen=listen),
                         nodes={NODE: replace(node, head=replace(node.head, port=head_port))})
        got: list[str] = []
        async with httpx.AsyncClient(base_url=url(config), timeout=60) as http, http.stream(
                "POST", "/v1/completions", json={"model": "gemma", "prompt": "Once", "max_tokens": 200, "stream": True,
                                                 "ignore_eos": True, "temperature": 0}) as answer:
            async for part in answer.aiter_lines():
                if part.startswith("data: "):
                    got.append(part)
                    if len(got) == 3:
                        os.kill(starter.pid, signal.SIGKILL)
                        starter.wait()
        assert got[-1] == "data: [DONE]"
        assert len(got) >= 200
        async with running(config, tend=True) as engine:
            seen = await until(engine, lambda s: s.proxies and s.proxies[0].ended
                               and s.deployment.state is DeploymentState.SERVING)
            assert (seen.proxies[0].ended[-1].state, seen.proxies[0].ended[-1].tokens) == ("done", 200)
            await tear_down(engine)
            await eventually(lambda: not engine.latest.proxies)
    finally:
        if starter.poll() is None:
            os.killpg(starter.pid, signal.SIGKILL)
        starter.stdout.close()
