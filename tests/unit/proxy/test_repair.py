"""Repairs that no input under tests/data/sse has, and any stream at all: never an exception, the same in any cut."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.proxy.exchange import Problem, RepairSettings
from fleet.proxy.repair import StreamRepair, prepare_request, repair_answer
from fleet.proxy.sse import EVENT_LIMIT

DIED = Problem(502, "upstream_died", "The server died.")
ALL = RepairSettings()
KINDS = ("chat", "completion", "messages", "responses", "native", "other")


def through(stream: bytes, kind: str = "chat", *, broken: Problem | None = None, wants: bool = True,
            settings: RepairSettings = ALL) -> tuple[str, StreamRepair]:
    repair = StreamRepair(settings, kind=kind, client_wants_usage=wants)
    return (repair.feed(stream) + repair.finish(broken)).decode(), repair


def sse(*events: object) -> bytes:
    return b"".join(b"data: %s\n\n" % (said if isinstance(said, bytes) else json.dumps(said).encode())
                    for said in events)


def delta(finish: str | None = None, usage: object = None, **said: object) -> dict[str, object]:
    chunk: dict[str, object] = {"id": "c", "choices": [{"index": 0, "delta": said, "finish_reason": finish}]}
    return {**chunk, "usage": usage} if usage else chunk


def read(out: str) -> list[dict[str, object]]:
    return [json.loads(line[6:]) for line in out.split("\n") if line.startswith("data: {")]


def test_a_server_that_dies_in_the_midst_of_an_event_leaves_an_error_and_an_end() -> None:
    out, repair = through(sse(delta(content="a")) + b'data: {"choices":[{"del', broken=DIED)
    assert [list(chunk)[-1] for chunk in read(out)] == ["choices", "error"] and out.endswith("data: [DONE]\n\n")
    assert repair.failed and not repair.finished
    told = read(out)[-1]["error"]
    assert told == {"message": "The server died.", "type": "server_error", "code": "upstream_died", "param": None}


def test_a_server_that_dies_after_its_answer_was_finished_has_answered() -> None:
    out, repair = through(sse(delta(content="a"), delta("stop")), broken=DIED)
    assert "error" not in out and out.endswith("data: [DONE]\n\n") and repair.finished


def test_an_answer_that_just_stops_is_not_passed_off_as_whole() -> None:
    out, repair = through(sse(delta(content="a")))
    assert "upstream_incomplete" in out and repair.failed


@pytest.mark.parametrize(("kind", "end"), [("messages", 'event: error\ndata: {"type":"error"'),
                                           ("responses", 'event: error\ndata: {"type":"error","code":"upstream_died"'),
                                           ("native", 'data: {"error":{"code":502')])
def test_each_api_hears_of_a_death_in_its_own_form(kind: str, end: str) -> None:
    assert end in through(b"", kind, broken=DIED)[0]


def test_parallel_calls_that_all_have_index_0_are_told_apart() -> None:
    def call(**said: object) -> dict[str, object]:
        return delta(tool_calls=[{"index": 0, **said}])

    out, repair = through(sse(call(id="a", function={"name": "f"}), call(function={"arguments": "{}"}),
                              call(id="b", function={"name": "g"}), call(function={"arguments": "[]"}),
                              delta("tool_calls"), b"[DONE]"))
    calls = [choice["delta"]["tool_calls"][0]["index"] for chunk in read(out)           # type: ignore[index]
             for choice in chunk["choices"] if choice["delta"]]                         # type: ignore[attr-defined]
    assert calls == [0, 0, 1, 1] and repair.repairs == ("tool_call_index",)


def test_usage_in_every_chunk_comes_once_at_the_end() -> None:
    stream = sse(delta(content="a", usage={"prompt_tokens": 3, "completion_tokens": 1}),
                 delta(content="b", usage={"prompt_tokens": 3, "completion_tokens": 2}), delta("stop"), b"[DONE]")
    out, repair = through(stream)
    assert [chunk.get("usage") for chunk in read(out)] == [
        None, None, None, {"prompt_tokens": 3, "completion_tokens": 2}]
    assert read(out)[-1]["choices"] == [] and repair.tokens == 2
    assert "usage" not in through(stream, wants=False)[0]


def test_usage_is_made_from_timings_where_it_is_missing() -> None:
    last = {**delta("stop"), "timings": {"prompt_n": 4, "cache_n": 3, "predicted_n": 2}}
    out, repair = through(sse(delta(content="a"), last, b"[DONE]"))
    assert read(out)[-1]["usage"] == {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
    assert repair.timings["cache_n"] == 3
    assert "usage" not in through(sse(delta(content="a"), last, b"[DONE]"), wants=False)[0]


def test_an_error_in_another_form_gets_the_right_one() -> None:
    assert read(through(sse({"error": "out of memory"}))[0])[0]["error"]["message"] == "out of memory"  # type: ignore[index]
    assert read(through(b'error: {"message":"old form"}\n\n')[0])[0]["error"]["message"] == "old form"  # type: ignore[index]


def test_an_event_without_end_ends_the_stream() -> None:
    repair = StreamRepair(RepairSettings(), kind="chat")
    piece, out = b"x" * (1 << 20), b""
    for _ in range(EVENT_LIMIT // len(piece) + 3):
        out += repair.feed(piece)
    assert out.count(b"upstream_event_too_long") == 1 and out.endswith(b"data: [DONE]\n\n")
    assert repair.finish(None) == b""


def test_every_repair_can_be_switched_off() -> None:
    off = RepairSettings(*[False] * 8)
    stream = (b"data:\n\ndata: : x\n\n" + sse(delta(content="a", usage={"prompt_tokens": 1, "completion_tokens": 1}),
                                             delta(tool_calls=[{"id": "a"}]))).replace(b"\n", b"\r\n")
    out, repair = through(stream, settings=off, wants=False, broken=DIED)
    assert out.encode() == stream and repair.repairs == ()


def test_usage_is_asked_for_where_the_client_did_not() -> None:
    settings = RepairSettings()
    asked = prepare_request({"stream": True, "stream_options": {"x": 1}}, settings)
    assert asked["stream_options"] == {"x": 1, "include_usage": True}
    for same in ({"stream": False}, {"stream": True, "stream_options": {"include_usage": True}}, {}):
        assert prepare_request(same, settings) is same
    plain: dict[str, object] = {"stream": True}
    assert prepare_request(plain, RepairSettings(usage=False)) is plain
    assert prepare_request(plain, settings, "messages") is plain


def test_an_answer_at_once_keeps_its_bytes_unless_its_calls_share_an_index() -> None:
    body = b'{"choices": [{"message": {"tool_calls": [{"index": 0}, {"index": 0}]}}], "usage": {"prompt_tokens": 2}}'
    found = repair_answer(body, RepairSettings())
    assert [call["index"] for call in json.loads(found.body)["choices"][0]["message"]["tool_calls"]] == [0, 1]
    assert found.usage is not None and found.usage["prompt_tokens"] == 2
    for same in (b"", b"nonsense", b"[1]", b'{"choices": 3}', b"[" * 100_000, b'{ "error": {} }'):
        assert repair_answer(same, RepairSettings()).body is same


VALUES = st.recursive(st.none() | st.booleans() | st.integers(-2, 9) | st.text(max_size=4), lambda inner: (
    st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([
        "choices", "delta", "tool_calls", "index", "id", "function", "name", "usage", "prompt_tokens", "error",
        "message", "finish_reason", "timings", "content", "type", "stop",
        "response"]), inner, max_size=4)), max_leaves=12)
LINES = st.one_of(
    VALUES.map(lambda said: b"data: " + json.dumps(said).encode()),
    st.binary(max_size=12).map(lambda data: b"data: " + data),
    st.sampled_from([b"data: [DONE]", b": ping", b"event: error", b"event: message_stop", b"data:", b"error: {}",
                     b"\xff"]))
STREAMS = st.lists(st.tuples(LINES, st.sampled_from([b"\n\n", b"\n", b"\r\n\r\n", b"\r\r", b""])), max_size=10).map(
    lambda parts: b"".join(line + end for line, end in parts))


@given(STREAMS, st.sampled_from(KINDS), st.booleans(), st.booleans(), st.lists(st.integers(0, 500), max_size=8))
def test_any_stream_in_any_cut_comes_out_the_same(stream: bytes, kind: str, wants: bool, dies: bool,
                                                  places: list[int]) -> None:
    def run(pieces: list[bytes]) -> tuple[object, ...]:
        repair = StreamRepair(RepairSettings(), kind=kind, client_wants_usage=wants)
        out = b"".join(map(repair.feed, pieces)) + repair.finish(DIED if dies else None)
        return out, repair.tokens, repair.usage, repair.finished, repair.failed, repair.repairs

    edges = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    whole = run([stream])
    assert run([stream[a:b] for a, b in pairwise(edges)]) == whole
    assert run([bytes([byte]) for byte in stream]) == whole
