"""Changing the model under clients that stream without pause: real llama.cpp, a real proxy, a real bring-up."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from fleet.config.schema import FleetConfig, ProxyConfig, ServingConfig
from fleet.engine import Engine
from fleet.events import BringUp, StartProxy
from fleet.model import DeploymentState, OperationState, StepState
from fleet.planning.planned import size

from .clients import asking
from .here import MODEL, NODE, bring_up, do, free_port, running, tear_down, until, with_model

pytestmark = [pytest.mark.engine, pytest.mark.timeout(240)]
OTHER = "other"


def url(config: FleetConfig) -> str:
    return f"http://{config.proxy.listen}"


@pytest.fixture
def two(config: FleetConfig, state: Path, model: Path, tmp_path: Path) -> FleetConfig:
    """Two models, one file each, and a proxy."""
    other = tmp_path / "other.gguf"
    shutil.copyfile(model, other)
    config = with_model(config, OTHER, file=str(other))
    return replace(config, proxy=ProxyConfig(listen=f"127.0.0.1:{free_port()}"))


async def serving(engine: Engine) -> None:
    """The model is up, and the proxy before it knows it."""
    assert (await do(engine, StartProxy())).state is OperationState.DONE
    await bring_up(engine)
    await until(engine, lambda s: s.proxies and any(up.health == "ready" for up in s.proxies[0].upstreams))


async def test_a_swap_loses_no_request_and_each_is_answered_by_the_model_that_serves(two: FleetConfig):
    async with running(two, tend=True) as engine:
        await serving(engine)
        async with asking(url(two), "", "", "") as clients:
            for wanted in (OTHER, MODEL, OTHER):
                operation = await do(engine, BringUp(wanted))
                assert operation.state is OperationState.DONE, (operation.problem, operation.steps)
                assert operation.kind == "swap"
                before = len(clients.models)
                await clients.answered(before + 6)
                assert set(clients.models[before + 3:]) == {wanted}
        assert clients.wrong == []
        await tear_down(engine)


async def test_workers_that_need_not_change_stay_up_through_a_swap(two: FleetConfig):
    async with running(two, tend=True) as engine:
        await serving(engine)
        pids = {s.record.pid for s in engine.latest.nodes[NODE].services if s.record.kind == "worker"}
        operation = await do(engine, BringUp(OTHER))
        assert operation.state is OperationState.DONE, operation.problem
        assert {s.record.pid for s in engine.latest.nodes[NODE].services if s.record.kind == "worker"} == pids
        await tear_down(engine)


async def test_the_file_of_the_next_model_is_read_into_memory_while_the_old_one_serves(two: FleetConfig):
    path = Path(two.models[OTHER].file)
    async with running(two, tend=True) as engine:
        await serving(engine)
        length = forgotten(path)
        operation = await do(engine, BringUp(OTHER))
        step = next(step for step in operation.steps if step.title.startswith("Read other"))
        whole = size(length)
        assert (step.state, step.detail) == (StepState.DONE, f"{whole} of {whole}")
        titles = [step.title for step in operation.steps]
        assert titles.index(step.title) < next(n for n, title in enumerate(titles) if title.startswith("Hold new"))
        back = await do(engine, BringUp(MODEL, drain=0))
        assert back.state is OperationState.DONE
        await tear_down(engine)


async def test_what_a_model_had_read_is_there_again_after_a_swap_away_and_back(two: FleetConfig):
    """The file is of a model with sliding windows, whose states fit only where they are kept whole."""
    whole = {name: {"extra_args": ("--swa-full",)} for name in (MODEL, OTHER)}
    keeping = replace(two, serving=ServingConfig(keep_prompts=True))
    for name, change in whole.items():
        keeping = with_model(keeping, name, **change)
    text = " ".join(f"word{number} and" for number in range(60))
    async with running(keeping, tend=True) as engine, httpx.AsyncClient(base_url=url(keeping), timeout=120) as http:
        await serving(engine)

        async def read_anew(model: str) -> int:
            answer = await http.post("/completion", json={"prompt": text, "n_predict": 1, "cache_prompt": True})
            assert answer.status_code == 200, answer.text
            assert answer.json()["model"] == model
            return answer.json()["timings"]["prompt_n"]

        assert await read_anew(MODEL) > 200
        away = await do(engine, BringUp(OTHER))
        assert re.search(r"\d{3} tokens of 1 slot", detail(away, "Keep what gemma"))
        assert detail(away, "Read back") == "nothing of it was kept"
        assert await read_anew(OTHER) > 200
        back = await do(engine, BringUp(MODEL))
        assert back.state is OperationState.DONE
        assert await read_anew(MODEL) <= 1
        await tear_down(engine)
    assert list((Path(keeping.nodes[NODE].state_dir) / "slots").iterdir()) == []


def detail(operation, title: str) -> str:
    return next(step.detail for step in operation.steps if step.title.startswith(title))


def forgotten(path: Path) -> int:
    """Take a file out of the page cache; its bytes."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        return os.fstat(handle).st_size
    finally:
        os.close(handle)


async def test_a_swap_that_fails_goes_back_and_who_waited_is_answered_by_the_old_model(two: FleetConfig):
    broken = with_model(two, OTHER, extra_args=("--no-such-option",))
    async with running(broken, tend=True) as engine:
        await serving(engine)
        async with asking(url(broken), "", "") as clients:
            operation = await do(engine, BringUp(OTHER))
            assert operation.state is OperationState.FAILED
            assert not any("could not be undone" in step.detail for step in operation.steps), operation.steps
            await clients.answered(len(clients.models) + 4)
        assert clients.wrong == []
        assert set(clients.models) == {MODEL}
        await until(engine, lambda s: s.deployment.state is DeploymentState.SERVING and s.deployment.model == MODEL)
        assert not any(up.held for up in (await until(engine, lambda s: s.proxies)).proxies[0].upstreams)
        await tear_down(engine)


async def test_a_request_that_runs_too_long_is_cut_at_the_limit_and_its_client_is_told(two: FleetConfig):
    async with running(two, tend=True) as engine, httpx.AsyncClient(
            base_url=f"http://{two.proxy.listen}", timeout=120) as http:
        await serving(engine)
        asked = {"prompt": "Once", "max_tokens": 500, "stream": True, "ignore_eos": True}
        async with http.stream("POST", "/v1/completions", json=asked) as answer:
            lines = answer.aiter_lines()
            assert (await anext(lines)).startswith("data: ")
            swap = asyncio.ensure_future(do(engine, BringUp(OTHER, drain=0.5)))
            rest = [line async for line in lines if line]
        assert (await swap).state is OperationState.DONE
        assert '"error"' in rest[-2] and rest[-1] == "data: [DONE]"
        drained = next(step for step in (await swap).steps if step.title.startswith("Let running"))
        assert (drained.state, drained.detail) == (StepState.DONE, "1 cut")
        await tear_down(engine)


async def test_a_client_that_names_the_old_model_is_told_that_it_is_not_loaded(two: FleetConfig):
    async with running(two, tend=True) as engine, httpx.AsyncClient(
            base_url=f"http://{two.proxy.listen}", timeout=120) as http:
        await serving(engine)
        assert (await do(engine, BringUp(OTHER))).state is OperationState.DONE
        refused = await http.post("/v1/completions", json={"model": MODEL, "prompt": "x", "max_tokens": 1})
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_loaded")
        await tear_down(engine)


async def test_a_request_that_names_another_model_has_it_brought_up_and_one_that_nobody_uses_is_ended(
        two: FleetConfig):
    serving_on_request = replace(two, serving=ServingConfig(on_request=True, idle=3.0, least=0.0))
    async with running(serving_on_request, tend=True, recover=True) as engine, httpx.AsyncClient(
            base_url=f"http://{two.proxy.listen}", timeout=120) as http:
        assert (await do(engine, StartProxy())).state is OperationState.DONE
        for wanted in (MODEL, OTHER):
            answer = await http.post("/v1/completions", json={"model": wanted, "prompt": "x", "max_tokens": 2})
            assert (answer.status_code, answer.json().get("model")) == (200, wanted), answer.text
        await until(engine, lambda s: s.deployment.state is DeploymentState.DOWN)
        assert any("Nobody has used" in notice.text for notice in engine.latest.notices)
        await tear_down(engine)
