"""Real llama-servers with tiny models, and a proxy in front of them."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import httpx
import pytest

from fleet.proxy.exchange import UpstreamSettings
from fleet.proxy.serve import Running
from fleet.runtimes.binaries import bundled
from fleet.speculation.choice import Choice, Mode, Round
from fleet.speculation.settings import DrafterSettings, SpeculationSettings
from tests.unit.proxy.scripted import eventually, proxied
from tests.unit.speculation import tiny_model

SLOTS = 9
# The cache in F32 and no flash attention: nothing is rounded another way when more is decoded at once.
EXACT = ("-ctk", "f32", "-ctv", "f32", "-fa", "off")
FLAGS = ("-np", str(SLOTS), "-kvu", "--no-cache-idle-slots", "-cram", "0", "--metrics", "-t", "1", *EXACT)


@dataclass
class Engine:
    """A running llama-server."""

    url: str
    process: subprocess.Popen[bytes]
    http: httpx.Client = field(repr=False)

    def complete(self, prompt: Sequence[int] | str, tokens: int, **fields: object) -> dict[str, object]:
        """Its own continuation."""
        answer = self.http.post("/completion", json={
            "prompt": prompt, "n_predict": tokens, "temperature": 0, "return_tokens": True, **fields})
        answer.raise_for_status()
        return answer.json()

    def counter(self, name: str) -> int:
        """One of its counters, such as n_decode_total."""
        for line in self.http.get("/metrics").text.splitlines():
            if line.startswith(f"llamacpp:{name} "):
                return int(line.split()[1])
        raise KeyError(name)

    def busy(self) -> int:
        """Slots that work."""
        return sum(slot["is_processing"] for slot in self.http.get("/slots").json())

    def text(self, tokens: Sequence[int]) -> str:
        """What tokens say."""
        return self.http.post("/detokenize", json={"tokens": list(tokens)}).json()["content"]


def free_port() -> int:
    """A port that nobody has now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


@contextmanager
def engine(model: Path, *flags: str, context: int = 8192) -> Iterator[Engine]:
    """A llama-server that serves; `flags` in place of FLAGS."""
    folder = bundled()
    if folder is None:
        pytest.skip("the engine extra is not installed")
    port = free_port()
    process = subprocess.Popen(
        [f"{folder}/llama-server", "-m", str(model), "--host", "127.0.0.1", "--port", str(port), "-c", str(context),
         *(flags or FLAGS)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**os.environ, "LD_LIBRARY_PATH": folder, "GGML_NO_BACKTRACE": "1"})
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
            for _ in range(600):
                assert process.poll() is None, "llama-server did not start"
                try:
                    if http.get("/health").status_code == 200:
                        break
                except httpx.TransportError:
                    pass
                time.sleep(0.05)
            yield Engine(f"http://127.0.0.1:{port}", process, http)
    finally:
        process.kill()
        process.wait()


@dataclass
class Fixed:
    """A controller that always says the same and remembers what it is told."""

    choice: Choice
    rounds: list[Round] = field(default_factory=list)

    def choose(self, context: int) -> Choice:
        return self.choice

    def record(self, round: Round) -> None:
        self.rounds.append(round)

    def state(self) -> dict[str, object]:
        return {"mode": str(self.choice.mode)}


@asynccontextmanager
async def speculating(target: Engine | str, *drafters: DrafterSettings, choice: Choice | None = None, **settings: object
                      ) -> AsyncIterator[tuple[Running, Fixed]]:
    """A proxy in front of a target, ready; with `choice` at every round."""
    fixed = Fixed(choice or Choice(Mode.STRIDED, 8, 2, ""))
    url = target if isinstance(target, str) else target.url
    upstream = UpstreamSettings("head", url, speculation=SpeculationSettings(drafters=drafters, **settings))
    async with proxied(upstream) as proxy:
        session = next(iter(proxy.proxy.sessions.values()))
        if choice is not None:
            session._steer = lambda abilities, names: fixed
        async with asyncio.timeout(60):
            await eventually(lambda: proxy.proxy.routes.upstreams["head"].health.state == "ready")
        yield proxy, fixed


def prompts(target: Engine, count: int, *, words: int = 6, tokens: int = 128, seed: int = 0) -> list[str]:
    """Prompts of syllables whose answer the target can tell: to some it writes half a character and fails over it."""
    dice, found = Random(seed), []
    vocabulary = tiny_model.vocabulary()[2:]
    while len(found) < count:
        prompt = " ".join(dice.sample(vocabulary, words))
        if target.http.post("/completion", json={"prompt": prompt, "n_predict": tokens, "temperature": 0}
                            ).status_code == 200:
            found.append(prompt)
    return found


async def streamed(http: httpx.AsyncClient, path: str, body: dict[str, object]) -> list[dict[str, object]]:
    """The events of a streamed answer."""
    events = []
    async with http.stream("POST", path, json={**body, "stream": True}) as answer:
        assert answer.status_code == 200, await answer.aread()
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                events.append(json.loads(line.removeprefix("data: ")))
            elif line:
                assert line == "data: [DONE]"
    return events
