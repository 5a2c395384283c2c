"""Injection against real llama-servers: exact, with fewer passes, and only where a head's pool takes drafts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from fleet.speculation.asking import Asker
from fleet.speculation.choice import Choice, Mode
from fleet.speculation.drafters import Context
from fleet.speculation.injection import Injector, takes_drafts
from fleet.speculation.race import Draft
from fleet.speculation.settings import DrafterSettings, SpeculationMode
from tests.unit.proxy.scripted import eventually
from tests.unit.speculation.engines import FLAGS, Engine, Fixed, engine, prompts, speculating, streamed

pytestmark = pytest.mark.engine

POOL = ("--spec-type", "ngram-mod", "--spec-ngram-mod-n-match", "6", "--spec-ngram-mod-n-min", "2",
        "--spec-ngram-mod-n-max", "16")
INJECTION = Choice(Mode.INJECTION, 8, 1, "", "", 32)


@pytest.fixture(scope="module")
def pooled(target_model: Path) -> Iterator[Engine]:
    with engine(target_model, *FLAGS, *POOL) as running:
        yield running


@pytest.fixture(scope="module")
def twin(target_model: Path) -> Iterator[Engine]:
    """It is always right."""
    with engine(target_model) as running:
        yield running


async def tried(url: str) -> bool:
    asker = Asker.at(url)
    try:
        return await takes_drafts(asker, 280)
    finally:
        asker.close()


async def test_a_head_whose_pool_is_shared_is_told_from_one_that_does_not_draft(pooled: Engine, target: Engine) -> None:
    assert await tried(pooled.url)
    assert not await tried(target.url)


async def test_a_head_that_wants_long_drafts_or_has_a_draft_model_is_none_for_injection(
        target_model: Path, draft_model: Path) -> None:
    with engine(target_model, *FLAGS, "--spec-type", "ngram-mod") as usual:
        assert not await tried(usual.url)
    with engine(target_model, *FLAGS, "-md", str(draft_model), "--spec-type", "draft-simple") as native:
        assert not await tried(native.url)


@pytest.mark.parametrize("length", [4, 8])
async def test_the_text_is_the_targets_own(pooled: Engine, target: Engine, drafter: Engine, length: int) -> None:
    async with speculating(pooled, DrafterSettings("draft", drafter.url),
                           choice=Choice(Mode.INJECTION, length, 1, "", "", 24)) as (proxy, fixed), \
            httpx.AsyncClient(base_url=proxy.url, timeout=60) as http:
        for prompt in prompts(target, 6):
            body = {"prompt": prompt, "max_tokens": 96, "temperature": 0}
            said = (await http.post("/v1/completions", json=body)).json()
            assert said["choices"][0]["text"] == target.complete(prompt, 96)["content"]
            events = await streamed(http, "/v1/completions", body)
            text = "".join(event["choices"][0]["text"] for event in events if event["choices"])
            assert text == said["choices"][0]["text"]
    assert {one.mode for one in fixed.rounds} == {Mode.INJECTION}
    assert sum(one.emitted for one in fixed.rounds) >= 12 * 90


class Oracle:
    """A race whose one drafter knows the answer."""

    def __init__(self, answer: list[int]) -> None:
        self.answer = answer

    async def draft(self, context: Context, most: int, *, only: str = "") -> Draft | None:
        return Draft(tuple(self.answer[:most]), "oracle") if self.answer else None


async def test_a_right_draft_saves_passes(pooled: Engine, target: Engine) -> None:
    prompt, = prompts(target, 1, tokens=64, seed=5)
    ids = target.http.post("/tokenize", json={"content": prompt, "add_special": True}).json()["tokens"]
    truth = target.complete(ids, 64)["tokens"]
    judged: list[tuple[int, int]] = []
    oracle, context = Oracle(truth), Context(list(ids))
    asker = Asker.at(pooled.url)
    injector = Injector(asker, oracle, context, 64, "", 60.0,      # type: ignore[arg-type]
                        lambda drafter, drafted, written: judged.append((len(drafted), len(written))))
    async with asyncio.TaskGroup() as group:
        task = group.create_task(injector.run())
        while not injector.idle:           # noqa: ASYNC110  its rest is no event for others
            await asyncio.sleep(0.01)
        before = pooled.counter("n_decode_total")
        said = pooled.complete(ids, 64)
        passes = pooled.counter("n_decode_total") - before
        oracle.answer = []
        context.ids += said["tokens"]
        injector.grew()
        await eventually(lambda: judged)
        task.cancel()
    asker.close()
    assert said["tokens"] == truth
    assert passes <= 16                    # 64 without
    assert judged == [(64, 64)]


async def test_what_became_of_a_draft_is_shown(pooled: Engine, target: Engine, twin: Engine) -> None:
    prompt, = prompts(target, 1, tokens=600, seed=5)
    async with speculating(pooled, DrafterSettings("twin", twin.url), choice=INJECTION) as (proxy, _), \
            httpx.AsyncClient(base_url=proxy.url, timeout=60) as http:
        said = (await http.post("/v1/completions", json={"prompt": prompt, "max_tokens": 600, "temperature": 0})).json()
        state = (await _state(proxy))["drafting"]
    assert said["usage"]["completion_tokens"] == 600
    shown = [one for one in state["rounds"] if one["mode"] == "injection"]
    assert shown and all(one["drafter"] == "twin" and one["drafted"] <= 8 for one in shown)
    assert any(one["accepted_tokens"] for one in shown)


async def _state(proxy: object) -> dict:
    return proxy.proxy.state()      # type: ignore[attr-defined]


async def test_a_stream_may_go_from_plain_to_injection_to_rounds(pooled: Engine, target: Engine, drafter: Engine
                                                                 ) -> None:
    ways = [Choice(Mode.PLAIN, stretch=24), INJECTION, Choice(Mode.STRIDED, 4, 1),
            Choice(Mode.INJECTION, 4, 1, "", "", 24)]

    class Turning(Fixed):
        def choose(self, context: int) -> Choice:
            return ways[len(self.rounds) % len(ways)]

    turning = Turning(ways[0])
    async with speculating(pooled, DrafterSettings("draft", drafter.url), choice=ways[0]) as (proxy, _), \
            httpx.AsyncClient(base_url=proxy.url, timeout=60) as http:
        next(iter(proxy.proxy.sessions.values()))._steer = lambda abilities, names: turning
        for prompt in prompts(target, 3, seed=7):
            said = (await http.post("/v1/completions", json={
                "prompt": prompt, "max_tokens": 120, "temperature": 0})).json()
            assert said["choices"][0]["text"] == target.complete(prompt, 120)["content"]
            assert said["usage"]["completion_tokens"] <= 120
    assert {one.mode for one in turning.rounds} == {Mode.PLAIN, Mode.INJECTION, Mode.STRIDED}


async def test_a_drafter_that_is_gone_leaves_the_stream_as_it_is(pooled: Engine, target: Engine, draft_model: Path
                                                                 ) -> None:
    with engine(draft_model) as gone:
        async with speculating(pooled, DrafterSettings("gone", gone.url), choice=INJECTION, ngram=False
                               ) as (proxy, _), httpx.AsyncClient(base_url=proxy.url, timeout=60) as http:
            prompt, = prompts(target, 1, seed=8)
            gone.process.kill()
            said = (await http.post("/v1/completions", json={
                "prompt": prompt, "max_tokens": 96, "temperature": 0})).json()
    assert said["choices"][0]["text"] == target.complete(prompt, 96)["content"]


async def test_chances_of_tokens_are_the_targets_own(pooled: Engine, target: Engine, drafter: Engine
                                                                      ) -> None:
    async with speculating(pooled, DrafterSettings("draft", drafter.url), choice=INJECTION) as (proxy, _), \
            httpx.AsyncClient(base_url=proxy.url, timeout=60) as http:
        prompt = next(one for one in prompts(target, 20, seed=9)          # of a character in parts the last one is told
                      if (said := target.complete(one, 32)["content"]).isascii() and len(said) > 100)
        asked = {"prompt": prompt, "max_tokens": 32, "temperature": 0, "logprobs": 2}
        said = (await http.post("/v1/completions", json=asked)).json()["choices"][0]
        alone = target.http.post("/v1/completions", json=asked).json()["choices"][0]
    assert said["text"] == alone["text"]
    for one, other in zip(said["logprobs"]["content"], alone["logprobs"]["content"], strict=True):
        assert one["id"] == other["id"] and one["logprob"] == pytest.approx(other["logprob"], abs=0.01)


async def test_where_injection_is_wanted_and_impossible_the_target_answers_alone_and_it_is_said(
        target: Engine, drafter: Engine) -> None:
    async with speculating(target, DrafterSettings("draft", drafter.url), mode=SpeculationMode.INJECTION
                           ) as (proxy, _), httpx.AsyncClient(base_url=proxy.url, timeout=60) as http:
        answer = await http.post("/v1/completions", json={"prompt": "ka", "max_tokens": 4, "temperature": 0})
        state = (await _state(proxy))["drafting"]
    assert answer.status_code == 200
    assert "--spec-type ngram-mod" in state["reason"] and state["mode"] == "plain"


async def test_the_controller_has_it_among_its_ways(pooled: Engine, target: Engine, drafter: Engine) -> None:
    async with speculating(pooled, DrafterSettings("draft", drafter.url)) as (proxy, _), \
            httpx.AsyncClient(base_url=proxy.url, timeout=60) as http:
        for prompt in prompts(target, 2, seed=10):
            said = (await http.post("/v1/completions", json={
                "prompt": prompt, "max_tokens": 128, "temperature": 0})).json()
            assert said["choices"][0]["text"] == target.complete(prompt, 128)["content"]
        state = (await _state(proxy))["drafting"]
    assert {one["mode"] for one in state["arms"]} == {"strided", "injection"}
    assert not any("ngram" in one["name"] for one in state["arms"])          # of its own the head has itself


async def test_without_a_drafter_a_head_with_a_pool_is_left_alone(pooled: Engine) -> None:
    async with speculating(pooled) as (proxy, _), httpx.AsyncClient(base_url=proxy.url, timeout=60) as http:
        asked = {"prompt": "ka pu ka pu ka pu ka pu ka pu", "max_tokens": 64, "temperature": 0}
        said = (await http.post("/v1/completions", json=asked)).json()
        state = (await _state(proxy))["drafting"]
    assert said["choices"][0]["text"]
    assert state["mode"] == "native" and "by itself" in state["reason"]
