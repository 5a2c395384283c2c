"""What can go wrong with drafters, target and client: the text stays the target's, and nothing runs on for nobody."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from fleet.speculation.choice import Choice, Mode
from fleet.speculation.drafters import Context, Guess
from fleet.speculation.race import Runner
from fleet.speculation.settings import DrafterKind, DrafterSettings
from tests.unit.proxy.scripted import Asked, Scripted, eventually, upstream, whole
from tests.unit.speculation import tiny_model
from tests.unit.speculation.engines import Engine, engine, prompts, speculating
from tests.unit.speculation.test_speculation_exact import COMPLETION, body, text_in

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

STRIDED = Choice(Mode.STRIDED, 8, 2)


async def same_as_alone(target: Engine, url: str, count: int = 3, seed: int = 41, tokens: int = 40) -> None:
    """The text is that of the target alone."""
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        for prompt in prompts(target, count, tokens=tokens, seed=seed):
            asked = body(COMPLETION, prompt, max_tokens=tokens)
            assert text_in((await http.post(COMPLETION, json=asked)).json()) == text_in(
                target.http.post(COMPLETION, json=asked).json())


def state_of(proxy: object, name: str) -> dict[str, object]:
    """A drafter as the Draft screen has it."""
    drafters = proxy.proxy.state()["drafting"]["drafters"]
    return next(drafter for drafter in drafters if drafter["name"] == name)


@asynccontextmanager
async def drafting_server(script: Callable[..., object]) -> AsyncIterator[Scripted]:
    """A llama-server by its answers to questions about itself, with drafts of a script."""
    async with upstream(script) as server:
        yield server


async def test_a_drafter_that_is_killed_is_done_without(target: Engine, draft_model: Path) -> None:
    with engine(draft_model) as drafter:
        async with speculating(target, DrafterSettings("draft", drafter.url), choice=STRIDED, ngram=False
                               ) as (proxy, _):
            await same_as_alone(target, proxy.url, 1)
            assert state_of(proxy, "draft")["wins"]
            drafter.process.kill()
            drafter.process.wait()
            await same_as_alone(target, proxy.url)
            assert state_of(proxy, "draft")["state"] == "aside" and state_of(proxy, "draft")["problem"]


async def test_a_drafter_that_hangs_costs_one_deadline_and_is_put_aside(target: Engine, draft_model: Path) -> None:
    with engine(draft_model) as drafter:
        async with speculating(target, DrafterSettings("draft", drafter.url), choice=STRIDED, ngram=False,
                               deadline=0.3) as (proxy, fixed):
            await same_as_alone(target, proxy.url, 1)
            drafter.process.send_signal(signal.SIGSTOP)
            fixed.rounds.clear()
            await same_as_alone(target, proxy.url, 1, seed=43)
            assert state_of(proxy, "draft")["state"] == "aside"
            assert sum(round.draft_seconds >= 0.2 for round in fixed.rounds) <= 2, "it was waited for again and again"
            drafter.process.send_signal(signal.SIGCONT)


async def test_a_drafter_with_another_vocabulary_is_asked_in_text(target: Engine, folder: Path) -> None:
    other = tiny_model.write(folder / "other.gguf", order=8)
    with engine(other) as drafter:
        async with speculating(target, DrafterSettings("draft", drafter.url), choice=STRIDED, ngram=False
                               ) as (proxy, fixed):
            await same_as_alone(target, proxy.url)
            assert state_of(proxy, "draft")["drafts"]
            assert sum(round.drafted for round in fixed.rounds) > 0
            runner = next(iter(proxy.proxy.sessions.values()))._bench.race.named("draft")
            assert runner.drafter.same_vocabulary is False


async def test_a_drafter_that_ends_at_once_does_not_end_the_answer(target: Engine) -> None:
    async def ends(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said = {"/tokenize": {"tokens": [5]}, "/detokenize": {"content": "x"}}.get(asked.path)
        if said is None:
            event = b"data: " + json.dumps({"content": "", "tokens": [], "stop": True, "stop_type": "eos"}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
                         + event + b"\n\n")
            await writer.drain()
            writer.close()
        else:
            writer.write(whole(said))

    async with drafting_server(ends) as server:
        drafter = DrafterSettings("draft", f"http://127.0.0.1:{server.port}")
        async with speculating(target, drafter, choice=STRIDED, ngram=False) as (proxy, _):
            await same_as_alone(target, proxy.url)
            assert state_of(proxy, "draft")["state"] == "ready" and state_of(proxy, "draft")["wins"] == 0


async def test_a_drafter_that_answers_nonsense_changes_nothing(target: Engine) -> None:
    failure = b"HTTP/1.1 500 X\r\ncontent-length: 0\r\n\r\n"
    answers = iter([b"\0" * 100, whole({"tokens": "x"}), whole([]), failure] * 99)

    async def nonsense(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(next(answers))
        await writer.drain()

    async with drafting_server(nonsense) as server:
        for kind in (DrafterKind.LLAMA_SERVER, DrafterKind.OLLAMA):
            drafter = DrafterSettings("draft", f"http://127.0.0.1:{server.port}", kind, "m")
            async with speculating(target, drafter, choice=STRIDED, ngram=False) as (proxy, _):
                await same_as_alone(target, proxy.url, 1)


async def test_tokens_that_there_are_not_cost_a_round_and_the_drafter_its_turn(target: Engine) -> None:
    class Liar:
        name, kind, asked = "liar", DrafterKind.LLAMA_SERVER, 0

        async def draft(self, context: Context, most: int) -> Guess:
            self.asked += 1
            return Guess((999_999,) * most)

        def close(self) -> None:
            pass

    async with speculating(target, choice=STRIDED) as (proxy, _):
        await same_as_alone(target, proxy.url, 1)
        race = next(iter(proxy.proxy.sessions.values()))._bench.race
        race.runners[:] = [Runner(liar := Liar())]
        await same_as_alone(target, proxy.url, 1, seed=43)
        assert liar.asked <= 4 and state_of(proxy, "liar")["state"] == "aside"


async def test_what_the_target_refuses_is_refused_in_its_own_words(target: Engine) -> None:
    async with speculating(target, choice=STRIDED) as (proxy, _), \
            httpx.AsyncClient(base_url=proxy.url, timeout=60) as http:
        for wrong in ({"prompt": [999_999], "max_tokens": 4}, {"prompt": "bit", "temperature": "hot"},
                      {"prompt": [999_999], "stream": True}):
            direct, through = target.http.post(COMPLETION, json=wrong), await http.post(COMPLETION, json=wrong)
            assert through.status_code == direct.status_code
            assert through.json()["error"] == direct.json()["error"]


async def test_ollama_is_asked_for_raw_text(target: Engine) -> None:
    prompt = prompts(target, 1, tokens=40, seed=47)[0]
    whole_text = text_in(target.http.post(COMPLETION, json=body(COMPLETION, prompt, max_tokens=40)).json())

    async def oracle(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said = json.loads(asked.body)
        assert asked.path == "/api/generate" and said["raw"] is True and said["model"] == "small"
        written = said["prompt"].removeprefix(prompt)
        writer.write(whole({"response": whole_text[len(written):][:20], "done": True}))

    async with upstream(oracle) as server:
        drafter = DrafterSettings("ollama", f"http://127.0.0.1:{server.port}", DrafterKind.OLLAMA, "small")
        async with speculating(target, drafter, choice=Choice(Mode.STRIDED, 4, 1), ngram=False, look_ahead=False
                               ) as (proxy, fixed), httpx.AsyncClient(base_url=proxy.url, timeout=60) as http:
            answer = (await http.post(COMPLETION, json=body(COMPLETION, prompt, max_tokens=40))).json()
            assert text_in(answer) == whole_text
            drafted, accepted = (sum(getattr(r, name) for r in fixed.rounds) for name in ("drafted", "accepted"))
            assert accepted > 0.6 * drafted > 0


async def test_a_slow_drafter_loses_to_the_ngrams_and_to_its_deadline(target: Engine) -> None:
    async def slow(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with drafting_server(slow) as server:
        drafter = DrafterSettings("draft", f"http://127.0.0.1:{server.port}")
        async with speculating(target, drafter, choice=STRIDED, deadline=0.2, grace=0.05) as (proxy, _):
            await same_as_alone(target, proxy.url)
            assert state_of(proxy, "draft")["state"] == "aside"
        await server.until(lambda: server.running == 0)


async def test_without_any_drafter_alive_the_target_answers(target: Engine) -> None:
    dead = [DrafterSettings(f"dead{n}", f"http://127.0.0.1:{9 + n}") for n in range(3)]
    async with speculating(target, *dead, choice=STRIDED, ngram=False) as (proxy, _):
        await same_as_alone(target, proxy.url)


async def test_a_target_that_dies_ends_the_stream_with_an_error(target_model: Path, drafter: Engine) -> None:
    with engine(target_model) as target:
        prompt = prompts(target, 1, tokens=200, seed=53)[0]
        async with speculating(target, DrafterSettings("draft", drafter.url), choice=Choice(Mode.STRIDED, 2, 1)
                               ) as (proxy, _), httpx.AsyncClient(base_url=proxy.url, timeout=60) as http:
            lines = []
            asked = {**body(COMPLETION, prompt, max_tokens=3000, ignore_eos=True), "stream": True}
            async with http.stream("POST", COMPLETION, json=asked) as answer:
                async for line in answer.aiter_lines():
                    lines.append(line)
                    if len(lines) == 10:
                        target.process.kill()
            told = [line for line in lines if line]
            assert told[-1] == "data: [DONE]" and "error" in json.loads(told[-2].removeprefix("data: "))
            await eventually(lambda: not proxy.proxy.records.live)
            assert proxy.proxy.records.ring[-1].state == "failed"
            # Nothing had gone to this client yet: it is told by a status.
            answer = await http.post(COMPLETION, json=body(COMPLETION, prompt))
            assert answer.status_code in (502, 503)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_ends_all_work(target: Engine, drafter: Engine, stream: bool) -> None:
    prompt = prompts(target, 1, tokens=200, seed=59)[0]
    async with speculating(target, DrafterSettings("draft", drafter.url), choice=Choice(Mode.STRIDED, 8, 1)
                           ) as (proxy, fixed), httpx.AsyncClient(base_url=proxy.url, timeout=60) as http:
        asked = {**body(COMPLETION, prompt, max_tokens=3500, ignore_eos=True), "stream": stream}
        task = asyncio.create_task(http.post(COMPLETION, json=asked))
        await eventually(lambda: len(fixed.rounds) > 5)
        task.cancel()
        await asyncio.wait((task,))
        await eventually(lambda: not proxy.proxy.records.live)
        rounds = len(fixed.rounds)
        await eventually(lambda: target.busy() == 0 and drafter.busy() == 0)
        assert proxy.proxy.records.ring[-1].state == "cancelled"
        assert len(fixed.rounds) == rounds
        session = next(iter(proxy.proxy.sessions.values()))
        assert session._bench.shares.streams == 0 and session._answering == 0
        await same_as_alone(target, proxy.url, 1)


async def test_a_request_can_be_cancelled_at_the_proxy(target: Engine, drafter: Engine) -> None:
    prompt = prompts(target, 1, tokens=200, seed=61)[0]
    async with speculating(target, DrafterSettings("draft", drafter.url), choice=Choice(Mode.STRIDED, 8, 1)
                           ) as (proxy, fixed), httpx.AsyncClient(base_url=proxy.url, timeout=60) as http:
        task = asyncio.create_task(streamed_lines(http, body(COMPLETION, prompt, max_tokens=3500, ignore_eos=True)))
        await eventually(lambda: len(fixed.rounds) > 5)
        assert proxy.proxy.cancel(next(iter(proxy.proxy.records.live)))
        lines = await task
        assert lines[-1] == "data: [DONE]" and "cancelled" in lines[-2]
        await eventually(lambda: target.busy() == 0)


async def streamed_lines(http: httpx.AsyncClient, asked: dict[str, object]) -> list[str]:
    async with http.stream("POST", COMPLETION, json={**asked, "stream": True}) as answer:
        return [line async for line in answer.aiter_lines() if line]


async def test_every_answer_is_asked_for_again_where_that_is_set(target: Engine, drafter: Engine) -> None:
    async with speculating(target, DrafterSettings("draft", drafter.url), choice=STRIDED, honesty=1.0) as (proxy, _):
        session = next(iter(proxy.proxy.sessions.values()))
        for seed in (71, 73):
            await same_as_alone(target, proxy.url, 1, seed=seed)
            await eventually(lambda: not session.honesty._busy)
        told = proxy.proxy.state()["drafting"]["honesty"]
        assert told["compared"] == told["identical"] == 2 and told["verdict"] == "identical 2/2"
