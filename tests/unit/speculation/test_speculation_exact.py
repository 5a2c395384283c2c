"""A real target with drafts in front of it says what it says alone, token for token, in as many passes as promised."""

from __future__ import annotations

import asyncio
import itertools
import os
from pathlib import Path

import httpx
import pytest

from fleet.speculation.choice import Choice, Mode
from fleet.speculation.settings import DrafterSettings
from tests.unit.speculation.engines import EXACT, Engine, engine, free_port, prompts, speculating, streamed

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

COMPLETION, CHAT = "/v1/completions", "/v1/chat/completions"
# QUARTERDECK_SPECULATION_PROMPTS=50 is the long run.
MANY = int(os.environ.get("QUARTERDECK_SPECULATION_PROMPTS", "12"))


def body(path: str, prompt: str, **fields: object) -> dict[str, object]:
    said = {"messages": [{"role": "user", "content": prompt}]} if path == CHAT else {"prompt": prompt}
    return {**said, "temperature": 0, "max_tokens": 64, **fields}


def text_of(events: list[dict[str, object]], index: int = 0) -> str:
    choices = [choice for event in events for choice in event["choices"] if choice["index"] == index]
    return "".join(choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in choices)


def text_in(answer: dict[str, object]) -> str:
    choice = answer["choices"][0]
    return choice["text"] if "text" in choice else choice["message"]["content"]


def without_chance(said: object) -> object:
    """Without ids and clocks."""
    if isinstance(said, dict):
        return {key: without_chance(value) for key, value in said.items()
                if key not in ("id", "created", "timings", "prompt_tokens_details")}
    return [without_chance(one) for one in said] if isinstance(said, list) else said


@pytest.mark.parametrize(("length", "stride"), [(8, 1), (8, 2), (8, 4)])
async def test_greedy_text_is_that_of_the_target_alone(target: Engine, drafter: Engine, length: int, stride: int
                                                       ) -> None:
    choice = Choice(Mode.STRIDED, length, stride)
    async with speculating(target, DrafterSettings("draft", drafter.url), choice=choice) as (proxy, fixed), \
            httpx.AsyncClient(base_url=proxy.url, timeout=60) as http:
        for prompt in prompts(target, MANY, tokens=128, seed=stride):
            asked = body(COMPLETION, prompt, max_tokens=128)
            direct = target.http.post(COMPLETION, json=asked).json()
            answer = (await http.post(COMPLETION, json=asked)).json()
            assert without_chance(answer) == without_chance(direct)
        record = proxy.proxy.records.ring[-1]
        assert record.drafted > record.accepted > 0 and record.tokens > 0
    drafted, accepted = (sum(getattr(round, name) for round in fixed.rounds) for name in ("drafted", "accepted"))
    assert 0.1 < accepted / drafted < 0.9, "the draft shall be often wrong, and often right"


async def test_both_apis_stream_and_tell_as_the_target_does(target: Engine, drafter: Engine) -> None:
    async with speculating(target, DrafterSettings("draft", drafter.url), choice=Choice(Mode.STRIDED, 8, 2)
                           ) as (proxy, _), httpx.AsyncClient(base_url=proxy.url, timeout=60) as http:
        direct = httpx.AsyncClient(base_url=target.url, timeout=60)
        for path in (CHAT, COMPLETION):
            for prompt in prompts(target, 3, tokens=40, seed=7):
                for more in ({}, {"stream_options": {"include_usage": True}}, {"model": "mine"}):
                    asked = body(path, prompt, max_tokens=40, **more)
                    got, alone = await streamed(http, path, asked), await streamed(direct, path, asked)
                    assert text_of(got) == text_of(alone)
                    assert without_chance(got[-1]) == without_chance(alone[-1])
                    if path == CHAT:
                        assert without_chance(got[0]) == without_chance(alone[0])
                    assert {key for event in got for key in event} == {key for event in alone for key in event}
                asked = body(path, prompt, max_tokens=40)
                assert without_chance((await http.post(path, json=asked)).json()) == without_chance(
                    (await direct.post(path, json=asked)).json())
        await direct.aclose()


async def test_a_round_costs_as_many_passes_as_its_stride(target: Engine, drafter: Engine) -> None:
    prompt = prompts(target, 1, tokens=64, seed=3)[0]
    for length, stride in ((8, 1), (8, 4)):
        async with speculating(target, DrafterSettings("draft", drafter.url), ngram=False, look_ahead=False,
                               choice=Choice(Mode.STRIDED, length, stride)) as (proxy, fixed), \
                httpx.AsyncClient(base_url=proxy.url, timeout=60) as http:
            # A target's first question is about itself; its passes are no part of any round.
            await http.post(COMPLETION, json=body(COMPLETION, prompt, max_tokens=1))
            before, read = target.counter("n_decode_total"), target.counter("prompt_tokens_total")
            await http.post(COMPLETION, json=body(COMPLETION, prompt, max_tokens=49))
            passes = target.counter("n_decode_total") - before
            read = target.counter("prompt_tokens_total") - read
        # One more for the first token. Within a character a round has one token, and one pass.
        within = sum(round.emitted == 1 for round in fixed.rounds) if stride > 1 else 0
        assert passes <= 1 + stride * len(fixed.rounds) + 3 * 48 // 8
        assert passes >= 1 + stride * (len(fixed.rounds) - within)
        assert len(fixed.rounds) * stride < 48 or stride == 1
        # Each slot reads what was accepted since it was last asked, not the whole context each time.
        lanes = length // stride + 1
        assert read < lanes * (len(prompt.split()) + 2) + sum(
            lanes * (round.emitted + length) for round in fixed.rounds)


async def test_limits_stop_strings_and_the_end_lie_where_they_lie_for_the_target(target: Engine, drafter: Engine
                                                                                 ) -> None:
    async with speculating(target, DrafterSettings("draft", drafter.url), choice=Choice(Mode.STRIDED, 8, 2)
                           ) as (proxy, _), httpx.AsyncClient(base_url=proxy.url, timeout=60) as http:
        for prompt in prompts(target, 4, tokens=48, seed=5):
            whole = target.complete(prompt, 40)["content"]
            words = whole.split(" ")
            cases: list[dict[str, object]] = [{"max_tokens": most} for most in (1, 2, 3, 7, 10, 31)]
            cases += [{"max_tokens": 40, "stop": stop} for stop in (
                words[3], f"{words[5][1:]} {words[6][:2]}", [words[9], words[7]], whole[-4:], "\N{GRINNING FACE}",
                f"{words[2]} {words[3]} {words[4]}", "not there")]
            for fields in cases:
                for path in (CHAT, COMPLETION):
                    asked = body(path, prompt, **fields)
                    direct = target.http.post(path, json=asked)
                    if direct.status_code != 200:
                        continue                                # cut within a character where it cannot tell it
                    answer = (await http.post(path, json=asked)).json()
                    assert without_chance(answer) == without_chance(direct.json()), (prompt, fields)
                    assert text_of(await streamed(http, path, asked)) == text_in(direct.json()).rstrip("\ufffd")


async def test_fields_that_decide_what_is_sampled_reach_the_target(target: Engine, drafter: Engine) -> None:
    async with speculating(target, DrafterSettings("draft", drafter.url), choice=Choice(Mode.STRIDED, 6, 1)
                           ) as (proxy, _), httpx.AsyncClient(base_url=proxy.url, timeout=60) as http:
        prompt = prompts(target, 1, tokens=40, seed=9)[0]
        usual = target.http.post(COMPLETION, json=body(COMPLETION, prompt)).json()["choices"]
        often = int(target.complete(prompt, 1)["tokens"][0])
        for fields in ({"logit_bias": {str(often): -100}}, {"repeat_penalty": 1.8, "repeat_last_n": 64},
                       {"presence_penalty": 1.5, "frequency_penalty": 0.7}, {"ignore_eos": True},
                       {"dry_multiplier": 0.8, "dry_base": 1.75, "dry_allowed_length": 2}):
            asked = body(COMPLETION, prompt, max_tokens=32, **fields)
            direct = target.http.post(COMPLETION, json=asked)
            if direct.status_code != 200:
                continue
            answer = (await http.post(COMPLETION, json=asked)).json()
            assert without_chance(answer) == without_chance(direct.json()), fields
            assert proxy.proxy.records.ring[-1].drafted > 0
            if "ignore_eos" not in fields:
                assert answer["choices"] != usual


async def test_probabilities_are_the_targets(target: Engine, drafter: Engine) -> None:
    async with speculating(target, DrafterSettings("draft", drafter.url), choice=Choice(Mode.STRIDED, 8, 2)
                           ) as (proxy, _), httpx.AsyncClient(base_url=proxy.url, timeout=60) as http:
        for path, fields in ((CHAT, {"logprobs": True, "top_logprobs": 3}), (COMPLETION, {"logprobs": 2})):
            asked = body(path, prompts(target, 1, tokens=24, seed=11)[0], max_tokens=24, **fields)
            direct = target.http.post(path, json=asked).json()["choices"][0]["logprobs"]["content"]
            answer = (await http.post(path, json=asked)).json()["choices"][0]["logprobs"]["content"]
            # Of a character in several tokens the target alone tells the last one only.
            shared = {entry["token"] for entry in direct}
            said = [entry for entry in answer if entry["token"] in shared]
            told = [entry for entry in direct if entry["token"] in {entry["token"] for entry in said}]
            assert [entry["token"] for entry in said] == [entry["token"] for entry in told] and len(said) > 10
            for one, other in zip(said, told, strict=True):
                assert one["logprob"] == pytest.approx(other["logprob"], abs=1e-3)
                assert len(one["top_logprobs"]) == len(other["top_logprobs"])


async def test_several_answers_come_in_one_request(target: Engine, drafter: Engine) -> None:
    async with speculating(target, DrafterSettings("draft", drafter.url), choice=Choice(Mode.STRIDED, 4, 2)
                           ) as (proxy, _), httpx.AsyncClient(base_url=proxy.url, timeout=60) as http:
        asked = body(CHAT, prompts(target, 1, tokens=30, seed=13)[0], max_tokens=30, n=3)
        alone = text_in(target.http.post(CHAT, json={**asked, "n": 1}).json())
        answer = (await http.post(CHAT, json=asked)).json()
        assert [choice["message"]["content"] for choice in answer["choices"]] == [alone] * 3
        assert answer["usage"]["completion_tokens"] == 90
        events = await streamed(http, CHAT, asked)
        assert [text_of(events, index) for index in range(3)] == [alone] * 3
        assert sum(choice["finish_reason"] is not None for event in events for choice in event["choices"]) == 3


async def test_eight_requests_at_once_share_the_slots_and_stay_exact(target: Engine, drafter: Engine) -> None:
    async with speculating(target, DrafterSettings("draft", drafter.url), choice=Choice(Mode.STRIDED, 8, 2)
                           ) as (proxy, fixed), httpx.AsyncClient(base_url=proxy.url, timeout=120) as http:
        asked = [body(COMPLETION, prompt, max_tokens=48) for prompt in prompts(target, 8, tokens=48, seed=17)]
        alone = [text_in(target.http.post(COMPLETION, json=one).json()) for one in asked]
        answers = await asyncio.gather(*(http.post(COMPLETION, json=one) for one in asked))
        assert [text_in(answer.json()) for answer in answers] == alone
        streams = await asyncio.gather(*(streamed(http, COMPLETION, one) for one in asked))
        assert [text_of(stream) for stream in streams] == [text.rstrip("\ufffd") for text in alone]
        session = next(iter(proxy.proxy.sessions.values()))
        assert session._bench is not None and session._bench.shares.streams == 0
    assert max(round.drafted for round in fixed.rounds) <= 8


async def test_the_end_of_the_context_is_the_targets_own(target_model: Path, drafter: Engine) -> None:
    flags = ("-np", "3", "-kvu", "--no-cache-idle-slots", "-cram", "0", "-t", "1", *EXACT)
    with engine(target_model, *flags, context=256) as small:
        async with speculating(small, DrafterSettings("draft", drafter.url), choice=Choice(Mode.STRIDED, 4, 2)
                               ) as (proxy, _), httpx.AsyncClient(base_url=proxy.url, timeout=60) as http:
            context = small.http.get("/props").json()["default_generation_settings"]["n_ctx"]
            start = prompts(small, 1, words=90, tokens=400, seed=19)[0]
            asked = body(COMPLETION, start)
            del asked["max_tokens"]
            direct = small.http.post(COMPLETION, json=asked).json()
            answer = (await http.post(COMPLETION, json=asked)).json()
            assert without_chance(answer) == without_chance(direct)
            assert answer["usage"]["total_tokens"] <= context
            long = body(COMPLETION, " ".join([start] * 5))
            direct_refusal, refusal = small.http.post(COMPLETION, json=long), await http.post(COMPLETION, json=long)
            assert refusal.status_code == direct_refusal.status_code == 400
            assert refusal.json()["error"]["message"] == direct_refusal.json()["error"]["message"]


async def test_a_target_that_is_asked_plainly_says_the_same(target: Engine, drafter: Engine) -> None:
    for choice in (Choice(Mode.PLAIN, stretch=7), Choice(Mode.PLAIN, stretch=1), Choice(Mode.STRIDED, 0, 3),
                   Choice(Mode.PLAIN, stretch=24), Choice(Mode.PLAIN)):
        async with speculating(target, DrafterSettings("draft", drafter.url), choice=choice) as (proxy, fixed), \
                httpx.AsyncClient(base_url=proxy.url, timeout=60) as http:
            asked = body(COMPLETION, prompts(target, 1, tokens=40, seed=23)[0], max_tokens=40)
            alone = text_in(target.http.post(COMPLETION, json=asked).json())
            assert text_in((await http.post(COMPLETION, json=asked)).json()) == alone
            assert text_of(await streamed(http, COMPLETION, asked)) == alone.rstrip("\ufffd")
            assert sum(round.emitted for round in fixed.rounds if round.mode is choice.mode) > 30


async def test_the_way_may_change_at_any_place(target: Engine, drafter: Engine) -> None:
    ways = [Choice(Mode.PLAIN, stretch=24), Choice(Mode.STRIDED, 8, 2), Choice(Mode.PLAIN, stretch=3),
            Choice(Mode.STRIDED, 4, 1)]
    async with speculating(target, DrafterSettings("draft", drafter.url), choice=ways[0]) as (proxy, fixed), \
            httpx.AsyncClient(base_url=proxy.url, timeout=60) as http:
        for number, prompt in enumerate(prompts(target, 6, tokens=128, seed=37)):
            turns = itertools.cycle(ways[number % 4:] + ways[:number % 4])
            fixed.choose = lambda context, turns=turns: next(turns)
            asked = body(COMPLETION, prompt, max_tokens=128)
            alone = target.http.post(COMPLETION, json=asked).json()
            assert without_chance((await http.post(COMPLETION, json=asked)).json()) == without_chance(alone)
            assert text_of(await streamed(http, COMPLETION, asked)) == text_in(alone).rstrip("\ufffd")
    assert {round.mode for round in fixed.rounds} == {Mode.PLAIN, Mode.STRIDED}


async def test_a_change_of_way_at_the_last_token_writes_none_more(target: Engine, drafter: Engine) -> None:
    plain = Choice(Mode.PLAIN, stretch=32)
    async with speculating(target, DrafterSettings("draft", drafter.url), choice=plain) as (proxy, fixed), \
            httpx.AsyncClient(base_url=proxy.url, timeout=60) as http:
        prompt, = prompts(target, 1, tokens=64, seed=41)
        turns = itertools.chain([plain], itertools.repeat(Choice(Mode.STRIDED, 4, 1)))
        fixed.choose = lambda context: next(turns)
        # One token of the prompt's own pass, and a stretch of 32.
        said = (await http.post(COMPLETION, json=body(COMPLETION, prompt, max_tokens=33))).json()
    assert said["usage"]["completion_tokens"] == 33


async def test_the_controller_steers_by_itself_and_nothing_changes(target: Engine, drafter: Engine) -> None:
    async with speculating(target, DrafterSettings("draft", drafter.url)) as (proxy, _), \
            httpx.AsyncClient(base_url=proxy.url, timeout=60) as http:
        for prompt in prompts(target, 4, tokens=96, seed=29):
            asked = body(COMPLETION, prompt, max_tokens=96)
            assert text_of(await streamed(http, COMPLETION, asked)) == text_in(
                target.http.post(COMPLETION, json=asked).json()).rstrip("\ufffd")
        drafting = proxy.proxy.state()["drafting"]
        assert drafting["plain_tokens_per_second"] and drafting["reason"] and drafting["answered"] == 4


async def test_a_target_that_cannot_be_asked_so_answers_alone_and_says_why(target_model: Path) -> None:
    with engine(target_model, "-np", "1", "-t", "1", *EXACT, context=1024) as single:
        async with speculating(single) as (proxy, _), httpx.AsyncClient(base_url=proxy.url, timeout=60) as http:
            asked = body(COMPLETION, prompts(single, 1, tokens=20)[0], max_tokens=20)
            assert text_in((await http.post(COMPLETION, json=asked)).json()) == text_in(
                single.http.post(COMPLETION, json=asked).json())
            assert "-np" in proxy.proxy.state()["drafting"]["why"]


async def test_a_head_that_drafts_by_itself_is_left_alone_and_its_figures_are_told(target_model: Path, draft_model: Path
                                                                                     ) -> None:
    flags = ("-np", "3", "-kvu", "-t", "1", "-md", str(draft_model), "--spec-type", "draft-simple", *EXACT)
    with engine(target_model, *flags) as native:
        async with speculating(native, choice=Choice(Mode.STRIDED, 4, 1)) as (proxy, fixed), \
                httpx.AsyncClient(base_url=proxy.url, timeout=60) as http:
            asked = body(COMPLETION, prompts(native, 1, tokens=40)[0], max_tokens=40)
            await http.post(COMPLETION, json=asked)
            drafting = proxy.proxy.state()["drafting"]
            assert drafting["mode"] == "native" and not fixed.rounds
            assert drafting["drafted"] > 0 and 0 < drafting["acceptance"] < 1


async def test_a_target_that_does_not_keep_its_slots_is_found_out(target_model: Path) -> None:
    flags = ("-np", "5", "-kvu", "-t", "1", *EXACT)                    # idle slots are saved and cleared by default
    with engine(target_model, *flags) as forgetful:
        async with speculating(forgetful, choice=Choice(Mode.STRIDED, 4, 1)) as (proxy, fixed), \
                httpx.AsyncClient(base_url=proxy.url, timeout=60) as http:
            repeated = " ".join([prompts(forgetful, 1, words=9, tokens=40)[0]] * 12)
            asked = body(COMPLETION, repeated, max_tokens=60, ignore_eos=True)
            alone = forgetful.http.post(COMPLETION, json=asked)
            assert text_in((await http.post(COMPLETION, json=asked)).json()) == text_in(alone.json())
            rounds = len(fixed.rounds)
            assert text_in((await http.post(COMPLETION, json=asked)).json()) == text_in(alone.json())
            assert "--no-cache-idle-slots" in proxy.proxy.state()["drafting"]["why"]
            assert len(fixed.rounds) == rounds


async def test_what_has_a_state_of_its_own_goes_through_untouched(target: Engine, drafter: Engine) -> None:
    async with speculating(target, DrafterSettings("draft", drafter.url), choice=Choice(Mode.STRIDED, 8, 2)
                           ) as (proxy, fixed), httpx.AsyncClient(base_url=proxy.url, timeout=60) as http:
        prompt = prompts(target, 1, tokens=20)[0]
        for fields in ({"grammar": 'root ::= (" kan" | " put")+'}, {"seed": 7, "temperature": 0.9}):
            asked = body(COMPLETION, prompt, **{"max_tokens": 8, **fields})
            direct = target.http.post(COMPLETION, json=asked).json()
            assert without_chance((await http.post(COMPLETION, json=asked)).json()) == without_chance(direct)
            assert proxy.proxy.records.ring[-1].drafted == 0
    assert not fixed.rounds and free_port()
