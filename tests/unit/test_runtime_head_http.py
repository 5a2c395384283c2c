"""Talking to heads: scripted ones that answer all there is, in every broken way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import CommandTimeout, FleetError, PortClosed
from fleet.nodes.local import LocalTransport
from fleet.runtimes import head_http
from fleet.runtimes.head_answers import (
    Piece,
    Timings,
    error_message,
    read_chat_piece,
    read_completion,
    read_completion_piece,
    read_props,
    read_slots,
    read_timings,
)
from fleet.runtimes.head_http import HeadClient, HeadError
from fleet.runtimes.head_metrics import parse_metrics
from fleet.runtimes.sse import DataLines

DATA = Path(__file__).parents[1] / "data"
NODE = LocalTransport("here")
PROPS = {
    "total_slots": 4,
    "model_alias": "gemma",
    "model_path": "/models/g.gguf",
    "build_info": "b1-571d0d5",
    "chat_template": "{{ messages }}",
    "is_sleeping": False,
    "default_generation_settings": {"n_ctx": 2048},
}
CHATML = "{%- for message in messages -%}{{- '<|im_start|>' + message.role -}}{%- endfor -%}"
Answer = tuple[int, bytes]


class Head:
    """A scripted head: answers by path, and remembers what was asked."""

    def __init__(self, **answers: object) -> None:
        self.answers = {f"/{path.replace('__', '/')}": answer for path, answer in answers.items()}
        self.asked: list[tuple[str, dict[str, str], bytes]] = []
        self.left = asyncio.Event()  # a client hung up while an answer was under way
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while request := await reader.readline():
                headers: dict[str, str] = {}
                while line := (await reader.readline()).decode().strip():
                    name, _, value = line.partition(":")
                    headers[name.lower()] = value.strip()
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                path = request.decode().split()[1]
                self.asked.append((path, headers, body))
                if not await self._answer(path, reader, writer):
                    return
        finally:
            writer.transport.abort()

    async def _answer(self, path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        answer = self.answers.get(path, (404, b"{}"))
        if callable(answer):
            return await answer(reader, writer)
        status, body = answer if isinstance(answer, tuple) else (200, answer)
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
        writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body))
        await writer.drain()
        return True

    def paths(self) -> list[str]:
        return [path for path, _, _ in self.asked]


def streams(*events: str, end: bool = True, then: Callable[[asyncio.StreamReader], Awaitable[None]] | None = None):
    """An endpoint that sends server-sent events in odd pieces."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        data = "".join(events).encode()
        for start in range(0, len(data), 7):
            piece = data[start : start + 7]
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await writer.drain()
        if then is not None:
            await then(reader)
        if end:
            writer.write(b"0\r\n\r\n")
            await writer.drain()
        return end

    return answer


def event(value: object) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"


@asynccontextmanager
async def client_of(head: Head, **more: object) -> AsyncIterator[HeadClient]:
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())  # type: ignore[arg-type]
        await head.serve(reader, writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        async with HeadClient(NODE, "127.0.0.1", port, **more) as client:  # type: ignore[arg-type]
            yield client
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# --- health


@pytest.mark.parametrize(
    ("answer", "health", "detail"),
    [
        ((200, {"status": "ok"}), head_http.HeadHealth.READY, "It answers."),
        (
            (503, {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}),
            head_http.HeadHealth.LOADING,
            "Loading model",
        ),
        ((404, b"<html>"), head_http.HeadHealth.DOWN, "no llama-server (HTTP 404)"),
    ],
)
async def test_health_is_told_with_a_sentence(answer: Answer, health: head_http.HeadHealth, detail: str):
    async with client_of(Head(health=answer)) as client:
        assert await client.health() is health
        assert detail in client.health_detail


async def test_a_head_that_does_not_listen_is_down():
    server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    async with HeadClient(NODE, "127.0.0.1", port) as client:
        assert await client.health() is head_http.HeadHealth.DOWN
        assert str(port) in client.health_detail
        with pytest.raises(PortClosed):
            await client.props()


async def test_a_head_that_takes_connections_and_says_nothing_is_starting(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(head_http, "ASK_TIMEOUT", 0.2)

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        return bool(await reader.read())

    async with client_of(Head(health=silent)) as client:
        assert await client.health() is head_http.HeadHealth.STARTING


async def test_what_the_node_says_goes_through():
    class Gone(LocalTransport):
        async def open_connection(self, host: str, port: int, *, timeout: float = 5.0):
            raise CommandTimeout("bolt does not answer.")

    async with HeadClient(Gone("bolt"), "127.0.0.1", 1) as client:
        with pytest.raises(CommandTimeout):
            await client.health()


async def test_an_address_for_all_is_dialled_as_loopback():
    dialled = []

    class Noting(LocalTransport):
        async def open_connection(self, host: str, port: int, *, timeout: float = 5.0):
            dialled.append(host)
            raise PortClosed("no.")

    for bind in ("0.0.0.0", "::", "10.0.0.3", "fd00::1"):
        async with HeadClient(Noting("x"), bind, 1) as client:
            await client.health()
    assert dialled == ["127.0.0.1", "::1", "10.0.0.3", "fd00::1"]


async def test_a_head_that_ends_its_connections_is_no_failure():
    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        await writer.drain()
        return False

    head = Head(health=once)
    async with client_of(head) as client:
        for _ in range(5):
            assert await client.health() is head_http.HeadHealth.READY
    assert head.connections == 5


# --- what it says of itself


async def test_props_slots_and_metrics_are_read():
    head = Head(
        props=PROPS,
        slots=[{"id": 0, "is_processing": True, "n_ctx": 512}, {"id": 1}],
        metrics=(DATA / "server/metrics_spec.prom").read_bytes(),
    )
    async with client_of(head) as client:
        props = await client.props()
        assert (props.alias, props.context, props.slots, props.build_info) == ("gemma", 2048, 4, "b1-571d0d5")
        assert [(slot.is_processing, slot.context) for slot in await client.slots()] == [(True, 512), (False, None)]
        metrics = await client.metrics()
        assert metrics.accepted_by_position == (344, 250, 148)
        assert metrics.value("predicted_tokens_seconds") is None  # nan: not known yet
        assert metrics.requests_processing == 1


async def test_a_sleeping_head_is_not_woken():
    head = Head(props=PROPS | {"is_sleeping": True}, slots=[{"id": 0}], metrics=b"a 1\n")
    async with client_of(head) as client:
        assert await client.slots() == ()
        assert (await client.metrics()).values == {}
    assert set(head.paths()) == {"/props"}


async def test_a_head_without_slots_or_metrics_just_tells_less():
    head = Head(props=PROPS, slots=(501, {"error": {"message": "off"}}), metrics=(501, {"error": {"message": "off"}}))
    async with client_of(head) as client:
        assert await client.slots() == ()
        assert (await client.metrics()).values == {}


@pytest.mark.parametrize(
    ("answer", "code", "sentence"),
    [
        ((401, {"error": {"message": "Invalid API Key"}}), "api-key", "wants an API key"),
        ((503, {"error": {"message": "Loading model"}}), "loading", "not ready: Loading model"),
        ((500, b"\xff"), "head", "HTTP 500"),
    ],
)
async def test_an_error_is_told_in_a_sentence(answer: Answer, code: str, sentence: str):
    async with client_of(Head(props=answer)) as client:
        with pytest.raises(HeadError, match=sentence) as wrong:
            await client.props()
        assert wrong.value.code == code and wrong.value.remedy


async def test_an_answer_without_end_is_not_held():
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(b"x" * 65536)
            await writer.drain()

    async with client_of(Head(props=endless)) as client:
        with pytest.raises(HeadError, match="more than 8 MiB"):
            await client.props()


async def test_the_key_is_read_from_the_heads_own_file_and_never_told(tmp_path: Path):
    keys = tmp_path / "keys"
    keys.write_text("\ns3cret\nother\n")
    head = Head(props=(401, {"error": {"message": "Invalid API Key"}}), health={})
    async with client_of(head, api_key_file=str(keys)) as client:
        await client.health()
        with pytest.raises(HeadError) as wrong:
            await client.props()
    assert "s3cret" not in str(wrong.value)
    assert [headers.get("authorization") for _, headers, _ in head.asked] == [None, "Bearer s3cret"]


async def test_a_key_file_that_holds_no_key_is_told(tmp_path: Path):
    keys = tmp_path / "keys"
    keys.write_bytes(b"\x00\xff\x01\n")
    async with client_of(Head(props=PROPS), api_key_file=str(keys)) as client:
        with pytest.raises(FleetError, match="no API key"):
            await client.props()
    async with client_of(Head(props=PROPS), api_key_file=str(tmp_path / "none")) as client:
        with pytest.raises(FleetError, match="cannot be read"):
            await client.props()


# --- completions


async def collected(pieces: AsyncIterator[Piece]) -> list[Piece]:
    return [piece async for piece in pieces]


TIMINGS = {
    "prompt_n": 6,
    "prompt_ms": 140.0,
    "cache_n": 2,
    "predicted_n": 3,
    "predicted_ms": 100.0,
    "draft_n": 4,
    "draft_n_accepted": 2,
}


async def test_a_completion_is_one_answer():
    done = {"content": " Paris", "tokens_evaluated": 6, "tokens_predicted": 1, "stop_type": "limit", "timings": TIMINGS}
    head = Head(completion=done)
    async with client_of(head) as client:
        completion = await client.complete("The capital of France is", n_predict=1)
    assert (completion.text, completion.prompt_tokens, completion.tokens, completion.stop) == (" Paris", 6, 1, "limit")
    assert json.loads(head.asked[0][2]) == {"prompt": "The capital of France is", "n_predict": 1, "cache_prompt": True}


async def test_a_streamed_completion_ends_with_its_timings():
    head = Head(
        completion=streams(
            event({"content": "Pa", "stop": False}),
            ": ping\n\n",
            event({"content": "ris — é"}),
            event({"content": "", "stop": True, "stop_type": "eos", "timings": TIMINGS}),
        )
    )
    async with client_of(head) as client:
        pieces = await collected(client.stream_completion("x", n_predict=4))
    assert [piece.text for piece in pieces] == ["Pa", "ris — é", ""]
    assert pieces[-1].stop == "eos"
    assert pieces[-1].timings == Timings(6, 2, 0.14, 3, 0.1, 4, 2)
    assert pieces[-1].timings.tokens_per_second == pytest.approx(20)


async def test_a_streamed_chat_ends_with_its_timings():
    def chunk(delta: object, finish: str | None = None, **more: object) -> str:
        return event({"choices": [{"delta": delta, "finish_reason": finish}], **more})

    head = Head(
        v1__chat__completions=streams(
            chunk({"role": "assistant", "content": None}),
            chunk({"reasoning_content": "hm"}),
            chunk({"content": "Hi"}),
            chunk({}, "stop", timings=TIMINGS),
            event({"choices": [], "usage": {}}),
            "data: [DONE]\n\n",
        )
    )
    async with client_of(head) as client:
        pieces = await collected(client.stream_chat([{"role": "user", "content": "x"}], temperature=0.0))
    assert [(piece.text, piece.reasoning) for piece in pieces] == [("", "hm"), ("Hi", ""), ("", "")]
    assert pieces[-1].stop == "stop" and pieces[-1].timings is not None
    asked = json.loads(head.asked[0][2])
    assert asked["temperature"] == 0.0 and asked["messages"] == [{"role": "user", "content": "x"}]


@pytest.mark.parametrize("end", [True, False])
async def test_an_answer_that_breaks_off_is_no_whole_answer(end: bool):
    """A head whose worker dies: bytes stop, sometimes in good order, without the last event."""
    head = Head(completion=streams(event({"content": "Pa"}), end=end))
    got: list[str] = []

    async def take(pieces: AsyncIterator[Piece]) -> None:
        async for piece in pieces:
            got.append(piece.text)

    async with client_of(head) as client:
        with pytest.raises(HeadError, match="broke off"):
            await take(client.stream_completion("x"))
    assert got == ["Pa"]


async def test_an_error_amid_an_answer_is_told():
    head = Head(completion=streams(event({"content": "Pa"}), event({"error": {"message": "the worker is gone"}})))
    async with client_of(head) as client:
        with pytest.raises(HeadError, match="the worker is gone"):
            await collected(client.stream_completion("x"))


async def test_leaving_an_answer_early_hangs_up_on_the_head():
    left = asyncio.Event()

    async def wait(reader: asyncio.StreamReader) -> None:
        await reader.read()
        left.set()

    head = Head(completion=streams(event({"content": "Pa"}), then=wait))
    async with client_of(head) as client:
        async with aclosing(client.stream_completion("x")) as pieces:
            async for piece in pieces:
                assert piece.text == "Pa"
                break
        await asyncio.wait_for(left.wait(), 10)


async def test_an_answer_that_does_not_come_is_given_up():
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        return bool(await reader.read())

    async with client_of(Head(completion=silent)) as client:
        with pytest.raises(HeadError, match="no answer within") as wrong:
            await client.complete("x", n_predict=1, timeout=0.2)
        assert wrong.value.code == "silent"


@pytest.mark.parametrize(
    ("template", "tokens", "chats"),
    [
        ("{{ own }}", 9, True),
        (CHATML, 1, True),  # trained with ChatML: its mark is one token
        (CHATML, 7, False),  # lent by llama-server to a model without a template
        ("", 9, False),
    ],
)
async def test_a_base_model_continues_text_and_a_chat_model_chats(template: str, tokens: int, chats: bool):
    finish = {"choices": [{"delta": {"content": "chat"}, "finish_reason": "stop"}]}
    head = Head(
        props=PROPS | {"chat_template": template},
        tokenize={"tokens": list(range(tokens))},
        completion=streams(event({"content": "text", "stop": True})),
        v1__chat__completions=streams(event(finish)),
    )
    messages = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}]
    async with client_of(head) as client:
        pieces = await collected(client.chat(messages))
    assert pieces[0].text == ("chat" if chats else "text")
    if not chats:
        assert json.loads(head.asked[-1][2])["prompt"] == "one\ntwo"


# --- reading what may be anything

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "choices",
                    "delta",
                    "content",
                    "timings",
                    "stop",
                    "error",
                    "message",
                    "prompt_n",
                    "predicted_ms",
                    "id",
                    "default_generation_settings",
                    "n_ctx",
                    "finish_reason",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)


@given(json_values)
def test_any_json_is_read_without_an_error(value: object):
    read_props(value), read_slots(value), read_completion(value), read_completion_piece(value)
    read_chat_piece(value), error_message(value)
    timings = read_timings(value)
    if timings is not None:
        assert timings.tokens_per_second is None or timings.tokens_per_second >= 0


@given(st.text(max_size=300))
def test_any_metrics_text_is_read_without_an_error(text: str):
    parse_metrics(text)


def test_the_chance_of_a_drafted_token_is_told_by_position():
    found = parse_metrics((DATA / "server/metrics_spec.prom").read_text())
    assert found.chance_by_position == pytest.approx((344 / 400, 250 / 344, 148 / 250))
    assert parse_metrics("llamacpp:n_decode_total 4\n").chance_by_position == ()


def test_events_come_whole_from_single_bytes():
    data = (DATA / "server/metrics_spec.prom").read_bytes()[
        :0
    ] + 'data: {"a":"é漢"}\r\n\r\n: c\ndata:\n\ndata: [DONE]'.encode()
    lines = DataLines()
    found = [value for index in range(len(data)) for value in lines.feed(data[index : index + 1])]
    assert found + list(lines.end()) == ['{"a":"é漢"}', "[DONE]"]


def test_a_line_without_end_is_cut():
    lines = DataLines(limit=10)
    assert list(lines.feed(b"data: " + b"x" * 1000)) == []
    assert list(lines.feed(b"\ndata: ok\n")) == ["xxxx", "ok"]


def test_one_token_has_no_speed():
    assert Timings(tokens=1, seconds=0.000001).tokens_per_second is None
    assert Timings(prompt_tokens=10, prompt_seconds=2).prompt_tokens_per_second == 5
