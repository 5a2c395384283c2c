"""A proxy on a node that has neither Quarterdeck nor pip: pushed, used from another node, ended, and nothing left."""
# ruff: noqa: ASYNC110 -- what another machine says is asked for again and again

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from fleets import bring_up, fleet_of, running, tear_down, until, with_node

from fleet.config.schema import FleetConfig, HeadConfig, ProxyConfig
from fleet.engine import Engine
from fleet.events import StartProxy, StopService
from fleet.model import DeploymentState, Operation, OperationState, ServiceKind

PORT = 18088
SERVICE = f"proxy-{PORT}"
KEY = "lab-key-0123456789abcdef"
PATIENCE = 60.0


def config_of(lab, tmp_path: Path, *, head: str, others: tuple[str, ...], bind: str) -> FleetConfig:
    """The model on `head` alone, and a proxy that all may reach who have the key."""
    keys = tmp_path / "keys"
    keys.write_text(f"lab {KEY}\n")
    keys.chmod(0o600)
    config = fleet_of(lab, head, *others, workers=(), proxy=ProxyConfig(listen=f"0.0.0.0:{PORT}", keys_file=str(keys)))
    return with_node(config, head, head=HeadConfig(threads=1, bind=bind))


async def done(engine: Engine, command: StartProxy | StopService) -> Operation:
    operation = await engine.outcome(engine.submit(command))
    assert operation.state is OperationState.DONE, (operation.problem, operation.steps)
    return operation


def curl(lab, client: str, proxy: str, path: str, body: dict | None = None) -> list[str]:
    """The command by which a node asks the proxy of another one, with what every machine has."""
    from fleetlab.node import enter

    words = ["curl", "-sS", "-N", "--max-time", "50", "-H", f"Authorization: Bearer {KEY}",
             f"http://{lab.address(proxy)}:{PORT}{path}"]
    if body is not None:
        words += ["-H", "Content-Type: application/json", "-d", json.dumps(body)]
    return enter(lab.nodes[client], words, "fleet")


async def ask(command: list[str]) -> str:
    """Its whole answer; fails unless it ended well by HTTP's rules."""
    run = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, (run.stdout, run.stderr)
    return run.stdout


async def models(lab, client: str, proxy: str) -> list[str]:
    said = json.loads(await ask(curl(lab, client, proxy, "/v1/models")))
    return [model["id"] for model in said["data"]]


async def until_it_serves(lab, client: str, proxy: str) -> None:
    """The proxy has been told what the fleet serves, and has seen it."""
    async with asyncio.timeout(PATIENCE):
        while "gemma" not in await models(lab, client, proxy):
            await asyncio.sleep(0.2)


def chat(**more: object) -> dict[str, object]:
    return {"model": "gemma", "messages": [{"role": "user", "content": "Count."}], "stream": True, **more}


def events(text: str) -> list[object]:
    """What a stream said; the end is "[DONE]"."""
    said = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    return [entry if entry == "[DONE]" else json.loads(entry) for entry in said]


def left_on(lab, node: str) -> str:
    """Everything of ours on a node: processes, ports, files."""
    return lab.exec(node, "pgrep -af 'fleet.proxy|quarterdeck-proxy' | grep -v pgrep; "
                    f"ss -ltn | grep ':{PORT} '; "
                    "find /home/fleet /tmp/quarterdeck-* -type f -path '*quarterdeck*' ! -name host 2>/dev/null").stdout


@asynccontextmanager
async def proxied(lab, config: FleetConfig, proxy: str) -> AsyncIterator[tuple[Engine, Operation]]:
    """The model served, and a proxy on that node; everything taken down after it."""
    async with running(config, tend=True) as engine:
        try:
            await bring_up(engine)
            await until(engine, lambda s: s.deployment.state is DeploymentState.SERVING)
            yield engine, await done(engine, StartProxy(proxy))
        finally:
            await tear_down(engine)


@asynccontextmanager
async def without_packages(lab, node: str) -> AsyncIterator[None]:
    """Python's own library is all that the node has of it."""
    try:
        assert lab.exec(node, "mv /usr/lib/python3 /usr/lib/python3-hidden").returncode == 0
        assert lab.exec(node, "command -v quarterdeck || python3 -m pip --version", user="fleet").returncode != 0
        yield
    finally:
        lab.exec(node, "mv /usr/lib/python3-hidden /usr/lib/python3")


async def cut(command: list[str], when: str, deed: Callable[[], object]) -> tuple[str, int | None]:
    """Read a stream until `when` is in it, do `deed`, and read to its end."""
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE):
        text = b""
        while when.encode() not in text:
            part = await process.stdout.read(65536)
            assert part, text
            text += part
        await asyncio.to_thread(deed)
        text += await process.stdout.read()
        return text.decode(), await process.wait()


async def test_a_node_with_nothing_installed_gets_the_proxy_serves_others_and_keeps_nothing(lab, tmp_path):
    proxy, client, head = lab.plain[:3]
    config = config_of(lab, tmp_path, head=head, others=(proxy, client), bind="0.0.0.0")
    async with without_packages(lab, proxy), proxied(lab, config, proxy) as (engine, started):
        assert any("MB sent" in step.detail for step in started.steps)
        assert not any("Way" in step.title for step in started.steps)
        await until_it_serves(lab, client, proxy)
        said = events(await ask(curl(lab, client, proxy, "/v1/chat/completions", chat(max_tokens=8))))
        assert said[-1] == "[DONE]" and any(
            choice["delta"].get("content") for entry in said[:-1] for choice in entry["choices"])
        refused = [word for word in curl(lab, client, proxy, "/v1/models") if "Bearer" not in word and word != "-H"]
        assert json.loads(await ask(refused))["error"]["type"] == "authentication_error"

        service = next(s for s in engine.latest.nodes[proxy].services if s.record.id == SERVICE)
        assert service.record.kind is ServiceKind.PROXY and service.record.alive
        assert KEY not in lab.exec(proxy, "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ").stdout
        lines = [line async for line in engine.log_lines(proxy, SERVICE, follow=False)]
        assert any("the proxy serves at" in line for line in lines)
        assert "already" in (await engine.plan(StartProxy(proxy))).title

        body = chat(max_tokens=1500, ignore_eos=True)
        text, status = await cut(curl(lab, client, proxy, "/v1/chat/completions", body), '"content":',
                                 lambda: lab.exec(head, "pkill -9 llama-server"))
        said = events(text)
        assert status == 0 and said[-1] == "[DONE]" and any("error" in entry for entry in said[:-1])

        await done(engine, StopService(proxy, SERVICE))
        assert left_on(lab, proxy) == ""


async def test_a_head_on_its_loopback_is_reached_through_ssh_and_down_leaves_nothing(lab, tmp_path):
    proxy, client, head = lab.plain[:3]
    config = config_of(lab, tmp_path, head=head, others=(proxy, client), bind="127.0.0.1")
    async with proxied(lab, config, proxy) as (engine, started):
        assert any("Way from the proxy" in step.title for step in started.steps)
        await until_it_serves(lab, client, proxy)
        said = events(await ask(curl(lab, client, proxy, "/v1/chat/completions", chat(max_tokens=8))))
        assert said[-1] == "[DONE]" and not [entry for entry in said[:-1] if "error" in entry]
    assert left_on(lab, proxy) == ""
    assert not [service.id for node in engine.latest.nodes.values() if node.local and node.reading
                for service in node.reading.services if service.kind is ServiceKind.RELAY]


@pytest.mark.parametrize(("there", "sentence"), [
    ("", "needs Python 3.11 or newer, and {node} has no python3."),
    ("3.9.2 -", "needs Python 3.11 or newer, and the newest on {node} is Python 3.9.2 (/usr/local/bin/python3).")])
async def test_a_node_without_a_new_python_is_refused_before_anything(lab, tmp_path, there: str, sentence: str):
    name = lab.one("nopython")
    config = fleet_of(lab, name, proxy=ProxyConfig(listen=f"127.0.0.1:{PORT}"))
    if there:
        lab.exec(name, "cd /usr/local/bin && "
                 f"printf '#!/bin/sh\\necho {there}\\n' >python3 && chmod 755 python3")
    try:
        async with running(replace(config, models={})) as engine:
            operation = await engine.outcome(engine.submit(StartProxy(name)))
        assert operation.state is OperationState.REFUSED
        assert sentence.format(node=name) in operation.problem.what
        assert "Install Python 3.11" in operation.problem.remedy
        assert left_on(lab, name) == ""
    finally:
        lab.exec(name, "rm -f /usr/local/bin/python3")
