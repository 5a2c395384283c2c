"""Stop strings, n-grams, requests, shares, forms and the walk: all that needs no server."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import ConfigError
from fleet.proxy.exchange import ApiKind, Call
from fleet.speculation.ahead import AGAIN, TRIES, AheadRecord
from fleet.speculation.forms import Form, Tally, Written
from fleet.speculation.ngram import NgramIndex
from fleet.speculation.request import Asked, read_request
from fleet.speculation.settings import (
    DrafterKind,
    DrafterSettings,
    SpeculationMode,
    SpeculationSettings,
    read_speculation,
)
from fleet.speculation.shares import Keeping, Shares
from fleet.speculation.stops import Stops
from fleet.speculation.strided import walk
from fleet.speculation.target import Continuation


def call(kind: ApiKind = ApiKind.CHAT, **fields: object) -> Call:
    path = "/v1/chat/completions" if kind is ApiKind.CHAT else "/v1/completions"
    start: dict[str, object] = {"messages": [{"role": "user", "content": "hello"}]} if kind is ApiKind.CHAT else {
        "prompt": "hello"}
    return Call(kind, path, parsed={**start, **fields})


# --- stop strings ---------------------------------------------------------------------------------------


@given(st.text("ab.", max_size=30), st.lists(st.text("ab.", min_size=1, max_size=4), max_size=3), st.data())
def test_a_stop_string_is_found_however_the_text_is_cut(text: str, stops: list[str], data: st.DataObject) -> None:
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    parts = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
    reader, out = Stops(stops), ""
    for part in parts:
        out += reader.feed(part)
    out += reader.rest() if not reader.found else ""
    # As a server does it that looks at its text after each part: the first part that completes one decides.
    so_far = ""
    for part in parts:
        so_far += part
        found = [so_far.index(stop) for stop in stops if stop in so_far]
        if found:
            assert out == so_far[:min(found)] and reader.found
            return
    assert out == text and not reader.found


# --- n-grams --------------------------------------------------------------------------------------------


def test_what_followed_the_last_time_is_guessed() -> None:
    assert NgramIndex().draft([1, 2, 3, 9, 8, 7, 1, 2, 3], 3) == [9, 8, 7]
    assert NgramIndex().draft([1, 2, 3, 4], 3) == []
    assert NgramIndex().draft([5, 5, 5], 4) == [5, 5, 5, 5]


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(1, 12))
def test_an_index_that_grows_guesses_as_a_new_one(ids: list[int], most: int) -> None:
    growing = NgramIndex()
    for end in range(len(ids) + 1):
        assert growing.draft(ids[:end], most) == NgramIndex().draft(ids[:end], most)
    found = growing.draft(ids, most)
    assert len(found) in (0, most)


# --- requests -------------------------------------------------------------------------------------------


def test_a_request_is_read() -> None:
    asked = read_request(call(model="m", max_tokens=7, stop="x", temperature=0, top_k=3, stream=True, n=2, seed=3,
                              stream_options={"include_usage": True}, logit_bias={"5": -100}))
    assert isinstance(asked, Asked)
    assert (asked.most, asked.stops, asked.answers, asked.greedy, asked.usage) == (7, ("x",), 2, True, True)
    assert asked.sampling == {"temperature": 0, "top_k": 3, "logit_bias": {"5": -100}}
    asked = read_request(call(ApiKind.COMPLETION, prompt=[1, 2, 3], logprobs=2, n_predict=-1))
    assert isinstance(asked, Asked) and asked.tokens == (1, 2, 3) and asked.probabilities == 2 and asked.most is None


@pytest.mark.parametrize("fields", [
    {"tools": [{"type": "function"}]}, {"response_format": {"type": "json_object"}}, {"grammar": "root ::= .*"},
    {"json_schema": {}, "grammar": "x"}, {"mirostat": 2}, {"seed": 5, "temperature": 0.7}, {"seed": 5}, {"n": 0},
    {"n": True}, {"max_tokens": "5"}, {"stop": [""]}, {"stop": [1]}, {"id_slot": 3}, {"top_logprobs": 2},
    {"messages": []}, {"messages": "x"}, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
    {"messages": [{"role": "assistant", "content": "and"}]}, {"messages": [{"role": "tool", "content": "5"}]},
    {"messages": [{"role": "user", "content": None}]}, {"stream_options": 3}, {"reasoning_effort": "low"},
])
def test_what_would_be_answered_otherwise_is_left_to_the_target(fields: dict[str, object]) -> None:
    why = read_request(call(**fields))
    assert isinstance(why, str) and why.endswith(".")


@pytest.mark.parametrize("prompt", ["", [], ["a", "b"], [[1], [2]], [1, "a"], None, {"prompt_string": "x"}, [-1],
                                    [True]])
def test_prompts_that_are_none_or_many_are_left_to_the_target(prompt: object) -> None:
    assert isinstance(read_request(call(ApiKind.COMPLETION, prompt=prompt)), str)


def test_a_model_that_thinks_takes_its_chats_apart_itself() -> None:
    template = "{% if m.reasoning_content %}<think>{% endif %}"
    assert isinstance(read_request(call(), template=template), str)
    assert isinstance(read_request(call(ApiKind.COMPLETION), template=template), Asked)


# --- the walk -------------------------------------------------------------------------------------------


def said(*tokens: int, ended: bool = False) -> Continuation:
    return Continuation(tokens, "x" * len(tokens), ended)


def test_a_walk_goes_on_while_the_target_says_what_was_drafted() -> None:
    found = walk([said(1, 2), said(3, 4), said(5, 6)], [1, 2, 3, 4], 2)
    assert found.ids == (1, 2, 3, 4, 5, 6) and found.accepted == 4 and found.bonus == (5, 6)
    found = walk([said(1, 2), said(3, 9), said(5, 6)], [1, 2, 3, 4], 2)
    assert found.ids == (1, 2, 3, 9) and found.accepted == 3 and found.bonus == ()
    found = walk([said(1, 9), said(3, 4)], [1, 2], 2)
    assert found.ids == (1, 9) and found.accepted == 1


def test_a_walk_ends_where_the_target_ends_even_if_the_draft_agrees() -> None:
    found = walk([said(1, 2, ended=True), said(3, 4)], [1, 2], 2)
    assert found.ids == (1, 2) and found.ended


def test_without_a_draft_a_round_is_plain_decoding() -> None:
    assert walk([said(4, 5, 6)], [], 3).ids == (4, 5, 6)


# --- shares, settings, forms ----------------------------------------------------------------------------


def test_slots_are_shared_fairly() -> None:
    others = 0
    shares = Shares(9, 8192, lambda: others)
    shares.streams = 1
    assert shares.lanes(100) == 9 and shares.lanes(3000) == 2 and shares.lanes(9000) == 1
    shares.streams = 3
    assert shares.lanes(100) == 3
    others = 6
    assert shares.lanes(100) == 1


def test_a_target_that_reads_everything_anew_is_known_by_it() -> None:
    keeping = Keeping()
    for _ in range(5):
        keeping.saw(context=20, prompts=9, read=180)           # too short to tell
        keeping.saw(context=500, prompts=9, read=90)
    assert not keeping.problem
    for read in (4500, 4500, 90, 4500, 4500):
        keeping.saw(context=500, prompts=9, read=read)
    assert not keeping.problem
    keeping.saw(context=500, prompts=9, read=4500)
    assert "--no-cache-idle-slots" in keeping.problem


def test_looking_ahead_stops_where_it_never_comes_true_and_is_tried_again() -> None:
    record = AheadRecord()
    for _ in range(60):
        record.came(False)
    assert not record.pays()
    assert [record.pays() for _ in range(2 * (AGAIN + TRIES))].count(True) == 2 * TRIES
    for _ in range(3):
        record.came(True)
    assert record.pays()


def test_settings_go_through_json_and_back() -> None:
    import dataclasses
    settings = SpeculationSettings(SpeculationMode.STRIDED, (DrafterSettings("a", "http://b", DrafterKind.OLLAMA, "m",
                                                                             "secret"),), draft_length=3, grace=0)
    assert read_speculation(json.loads(json.dumps(dataclasses.asdict(settings))), "x") == settings
    assert read_speculation(None, "x") is None


@pytest.mark.parametrize("wrong", [
    3, [], {"mode": "fast"}, {"ngram": 1}, {"draft_length": 0}, {"draft_length": 2.5}, {"deadline": -1},
    {"drafters": {}}, {"drafters": [{}]}, {"drafters": [{"name": "a", "url": "http://b", "kind": "x"}]},
    {"drafters": [{"name": "a", "url": "http://b", "key": "a\nb"}]}, {"drafters": [{"name": "a"}] * 99},
    {"unknown": 1}, {"honesty": "all"},
])
def test_settings_that_are_none_are_refused(wrong: object) -> None:
    with pytest.raises(ConfigError) as caught:
        read_speculation(wrong, "the upstream 'x'")
    assert "a\nb" not in str(caught.value)


def test_several_answers_are_told_in_the_forms_of_both_apis() -> None:
    tally = Tally(prompt=3, cached=1, prompt_seconds=0.1, written=4, seconds=0.3, drafted=6, accepted=2)
    for kind in (ApiKind.CHAT, ApiKind.COMPLETION):
        asked = read_request(call(kind, n=2))
        assert isinstance(asked, Asked)
        answer = json.loads(Form(asked, model="m", build="b1", now=5.5).whole(
            [Written(0, "a", "stop"), Written(1, "b", "length")], tally))
        assert [choice["index"] for choice in answer["choices"]] == [0, 1]
        assert answer["usage"]["total_tokens"] == 7 and answer["timings"]["draft_n_accepted"] == 2
        assert answer["model"] == "m" and answer["created"] == 5
