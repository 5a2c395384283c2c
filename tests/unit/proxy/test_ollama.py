"""Ollama's API in front of servers that speak OpenAI's, through the official client."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable

import httpx
import ollama
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from fleet.proxy.errors import error_body, forbidden
from fleet.proxy.exchange import Answer, ApiKind, Call, Caller, Exchange, Problem
from fleet.proxy.ollama import FaceRequest, OllamaFace

WEATHER = {"type": "function", "function": {"name": "weather", "description": "", "parameters": {
    "type": "object", "properties": {"town": {"type": "string"}}}}}


def sse(*events: object) -> bytes:
    return b"".join(b"data: %s\n\n" % json.dumps(said).encode() for said in events) + b"data: [DONE]\n\n"


def delta(finish: str | None = None, **said: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": said, "finish_reason": finish}]}


USAGE = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9},
         "timings": {"prompt_n": 7, "cache_n": 0, "predicted_n": 2, "prompt_ms": 50.0, "predicted_ms": 20.0}}


class Upstream:
    """A Forward that gives one answer and remembers what it was asked."""

    def __init__(self, body: bytes, status: int = 200, pieces: int = 7) -> None:
        self.body, self.status, self.pieces = body, status, pieces
        self.calls: list[Call] = []
        self.closed = 0

    async def __call__(self, call: Call) -> Answer:
        self.calls.append(call)
        return Answer(self.status, [(b"content-type", b"text/event-stream")], self._chunks(),
                      Exchange("1", call.kind, call.path), self._close)

    async def _chunks(self) -> AsyncGenerator[bytes, None]:
        for start in range(0, len(self.body), self.pieces):
            yield self.body[start:start + self.pieces]

    async def _close(self) -> None:
        self.closed += 1

    def models(self, caller: Caller) -> list[dict[str, object]]:
        meta = {"size": 253, "n_params": 268_000_000, "n_ctx": 4096}
        return [{"id": "small", "created": 1_700_000_000, "meta": meta}, {"id": "qwen3:8b"}]

    @property
    def asked(self) -> dict[str, object]:
        return json.loads(self.calls[-1].body)


def client(upstream: Upstream, check: Callable[[str], Problem | None] = lambda model: None) -> ollama.AsyncClient:
    face = OllamaFace(upstream, clock=lambda: 5.0, wall=lambda: 1_700_000_000.5)

    async def handle(request: Request) -> StreamingResponse:
        told = await face.answer(FaceRequest(request.method, request.url.path, await request.body(),
                                             tuple(request.headers.raw), check_model=check))

        async def chunks() -> AsyncIterator[bytes]:
            try:
                async for chunk in told.chunks:
                    yield chunk
            finally:
                await told.close()

        headers = {name.decode(): value.decode() for name, value in told.headers}
        return StreamingResponse(chunks(), told.status, headers)

    app = Starlette(routes=[Route("/{path:path}", handle, methods=["GET", "POST", "DELETE"])])
    return ollama.AsyncClient("http://proxy", transport=httpx.ASGITransport(app=app))


async def collected(asked: ollama.AsyncClient, *, stream: bool) -> str:
    messages = [{"role": "user", "content": "x"}]
    if not stream:
        return (await asked.chat("small", messages)).message.content or ""
    return "".join([part.message.content or "" async for part in await asked.chat("small", messages, stream=True)])


async def test_models_are_listed_shown_and_running() -> None:
    asked = client(Upstream(b""))
    listed = await asked.list()
    assert [model.model for model in listed.models] == ["small", "qwen3:8b"]
    assert listed.models[0].details is not None and listed.models[0].details.parameter_size == "268M"
    assert [model.model for model in (await asked.ps()).models] == ["small", "qwen3:8b"]
    assert "tools" in ((await asked.show("small:latest")).capabilities or [])
    with pytest.raises(ollama.ResponseError, match="no model 'big'"):
        await asked.show("big")


async def test_a_chat_that_streams() -> None:
    upstream = Upstream(sse(delta(role="assistant", content=None), delta(content="caf\u00e9 "),
                            delta(content="\U0001f999"), delta("stop"), USAGE))
    parts = [part async for part in await client(upstream).chat(
        "small:latest", [{"role": "user", "content": "hi"}], stream=True,
        options={"num_predict": 5, "temperature": 0, "seed": 3, "top_k": 4, "stop": ["x"], "num_ctx": 99})]
    assert [part.message.content for part in parts] == ["caf\u00e9 ", "\U0001f999", ""]
    last = parts[-1]
    assert (last.done, last.done_reason, last.prompt_eval_count, last.eval_count) == (True, "stop", 7, 2)
    assert (last.prompt_eval_duration, last.eval_duration) == (50_000_000, 20_000_000)
    assert last.model == "small:latest" and last.created_at == "2023-11-14T22:13:20.500000Z"
    assert upstream.asked == {
        "model": "small", "messages": [{"role": "user", "content": "hi"}], "stream": True, "max_tokens": 5,
        "temperature": 0, "seed": 3, "top_k": 4, "stop": ["x"], "stream_options": {"include_usage": True}}
    assert upstream.closed == 1 and upstream.calls[0].kind is ApiKind.CHAT


async def test_what_is_ignored_is_said() -> None:
    face = OllamaFace(Upstream(sse(delta("stop", content="x"))), clock=lambda: 0.0, wall=lambda: 0.0)
    told = await face.answer(FaceRequest("POST", "/api/chat", json.dumps({
        "model": "small", "messages": [{"role": "user", "content": "x"}], "keep_alive": "5m",
        "options": {"num_ctx": 8, "a\nb": 1, "num_predict": -1}}).encode()))
    assert dict(told.headers)[b"x-quarterdeck-ignored"] == b"keep_alive, options.num_ctx, options.a?b"


async def test_a_chat_at_once_with_thinking() -> None:
    whole = json.dumps({"choices": [{"message": {"role": "assistant", "content": "4", "reasoning_content": "2+2"},
                                     "finish_reason": "length"}], "usage": USAGE["usage"]}).encode()
    answer = await client(Upstream(whole)).chat("small", [{"role": "user", "content": "2+2"}])
    assert (answer.message.content, answer.message.thinking, answer.done_reason) == ("4", "2+2", "length")
    upstream = Upstream(whole)
    answer = await client(upstream).chat("small", [{"role": "user", "content": "2+2"}], think=False)
    assert answer.message.thinking is None and upstream.asked["chat_template_kwargs"] == {"enable_thinking": False}
    await client(upstream).chat("small", [{"role": "user", "content": "x"}], think="low")
    assert upstream.asked["reasoning_effort"] == "low"


async def test_a_streamed_tool_call_comes_whole_and_its_answer_finds_it() -> None:
    def part(**said: object) -> dict[str, object]:
        return delta(tool_calls=[said])

    upstream = Upstream(sse(
        part(index=0, id="a", function={"name": "weather", "arguments": ""}),
        part(index=0, function={"arguments": '{"town":'}), part(index=0, function={"arguments": '"Ulm"}'}),
        part(index=1, id="b", function={"name": "weather", "arguments": "{}"}), delta("tool_calls")))
    messages: list[dict[str, object]] = [{"role": "user", "content": "weather?"}]
    parts = [part async for part in await client(upstream).chat("small", messages, stream=True, tools=[WEATHER])]
    calls = [call for part in parts for call in part.message.tool_calls or ()]
    assert [(call.function.name, dict(call.function.arguments)) for call in calls] == [
        ("weather", {"town": "Ulm"}), ("weather", {})]
    assert upstream.asked["tools"] == [WEATHER] and parts[-1].done_reason == "stop"

    messages += [{"role": "assistant", "tool_calls": [call.model_dump() for call in calls]},
                 {"role": "tool", "tool_name": "weather", "content": "wet"},
                 {"role": "tool", "tool_name": "weather", "content": "dry"}]
    _ = [part async for part in await client(upstream).chat("small", messages, stream=True)]
    _, made, first, second = upstream.asked["messages"]      # type: ignore[misc]
    assert [call["id"] for call in made["tool_calls"]] == [first["tool_call_id"], second["tool_call_id"]]
    assert json.loads(made["tool_calls"][0]["function"]["arguments"]) == {"town": "Ulm"}


async def test_a_tool_call_that_was_cut_off_by_its_length_is_left_out() -> None:
    calls = [{"index": place, "id": str(place), "function": {"name": "f", "arguments": arguments}}
             for place, arguments in enumerate(("{}", '{"a": "'))]
    upstream = Upstream(sse(delta(tool_calls=calls), delta("length")))
    parts = [part async for part in await client(upstream).chat("small", [{"role": "user"}], stream=True)]
    assert [len(part.message.tool_calls or ()) for part in parts] == [1, 0] and parts[-1].done_reason == "length"


async def test_generate_is_a_chat_of_one_turn_and_raw_is_a_completion() -> None:
    upstream = Upstream(sse(delta(content="blue"), delta("stop"), USAGE))
    parts = [part async for part in await client(upstream).generate("small", "sky?", system="short", stream=True,
                                                                    format="json")]
    assert [part.response for part in parts] == ["blue", ""] and parts[-1].eval_count == 2
    assert upstream.asked["messages"] == [{"role": "system", "content": "short"}, {"role": "user", "content": "sky?"}]
    assert upstream.asked["response_format"] == {"type": "json_object"}
    raw = Upstream(json.dumps({"choices": [{"text": " is blue", "finish_reason": "stop"}]}).encode())
    schema = {"type": "object"}
    answer = await client(raw).generate("small", "The sky", raw=True, format=schema)
    assert answer.response == " is blue" and raw.asked["prompt"] == "The sky"
    assert raw.asked["response_format"] == {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    assert raw.calls[0].path == "/v1/completions"


async def test_a_request_without_a_prompt_loads_nothing_and_asks_nobody() -> None:
    upstream = Upstream(b"")
    answer = await client(upstream).generate("small")
    assert answer.done and answer.done_reason == "load" and not upstream.calls


async def test_pictures_go_to_who_has_eyes() -> None:
    upstream = Upstream(sse(delta("stop", content="a cat")))
    picture = b"\x89PNG\r\n\x1a\n"
    await (await client(upstream).chat("small", [{"role": "user", "content": "?", "images": [picture]}],
                                       stream=True)).__anext__()
    parts = upstream.asked["messages"][0]["content"]         # type: ignore[index]
    assert parts[1]["image_url"]["url"].startswith("data:image/png;base64,iVBOR")
    with pytest.raises(ollama.ResponseError, match="PNG, JPEG"):
        await client(upstream).chat("small", [{"role": "user", "content": "?", "images": [b"MZ nonsense"]}])


@pytest.mark.parametrize("stream", [True, False])
async def test_refusals_have_ollamas_form(stream: bool) -> None:
    sentence = "image input is not supported"
    upstream = Upstream(error_body(Problem(500, "x", sentence)), 500)
    with pytest.raises(ollama.ResponseError, match=sentence) as caught:
        await collected(client(upstream), stream=stream)
    assert caught.value.status_code == 500 and upstream.closed == 1
    with pytest.raises(ollama.ResponseError, match="may not") as caught:
        await client(upstream, lambda model: forbidden("You may not.", "no")).chat("big", [{"role": "user"}])
    assert caught.value.status_code == 403
    with pytest.raises(ollama.ResponseError, match="not served here"):
        await client(upstream).pull("small")


@pytest.mark.parametrize(("stream", "message"), [
    (b'data: {"error":{"message":"decode failed"}}\n\n', "decode failed"),
    (b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n', "before it was finished"),
    (sse(delta(tool_calls=[{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{"}}]), delta("stop")),
     "no JSON object"),
])
async def test_an_error_in_the_midst_reaches_the_client(stream: bytes, message: str) -> None:
    with pytest.raises(ollama.ResponseError, match=message):
        _ = [part async for part in await client(Upstream(stream)).chat("small", [{"role": "user"}], stream=True)]


@pytest.mark.parametrize("body", [
    b"", b"[]", b"nonsense", b"{}", b'{"model":3}', b'{"model":"small","messages":{"a":1}}',
    b'{"model":"small","messages":[3]}', b'{"model":"small","messages":[{"role":3}]}',
    b'{"model":"small","messages":[{"role":"user","content":[]}],"options":[1]}',
    b'{"model":"small","messages":[{"role":"user"}],"stream":"no"}',
    b'{"model":"small","messages":[{"role":"user"}],"format":5}',
    b'{"model":"small","messages":[{"role":"user"}],"think":"much"}',
    b'{"model":"small","messages":[{"role":"user","tool_calls":[{}]}]}',
    b'{"model":"small","messages":[{"role":"user"}],"tools":{"a":1}}', b"[" * 100_000,
])
async def test_a_wrong_request_is_400_with_a_sentence(body: bytes) -> None:
    upstream = Upstream(b"")
    face = OllamaFace(upstream, clock=lambda: 0.0, wall=lambda: 0.0)
    told = await face.answer(FaceRequest("POST", "/api/chat", body))
    assert told.status == 400 and not upstream.calls
    assert json.loads(b"".join([chunk async for chunk in told.chunks]))["error"].endswith(".")
