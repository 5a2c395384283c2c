"""Clients that stream without pause, and what they got."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx


@dataclass
class Clients:
    """What clients that stream without pause got."""

    url: str
    models: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    stop: bool = False
    news: asyncio.Event = field(default_factory=asyncio.Event)
    first_token: list[float] = field(default_factory=list)

    async def answered(self, count: int) -> None:
        """Wait until so many answers have begun."""
        async with asyncio.timeout(60):
            while len(self.models) < count:
                self.news.clear()
                await self.news.wait()

    async def stream(self, number: int, name: str) -> None:
        """One after another, each whole or written down as wrong."""
        loop = asyncio.get_running_loop()
        async with httpx.AsyncClient(base_url=self.url, timeout=120) as http:
            while not self.stop:
                begun, tokens, ended = loop.time(), 0, False
                asked = {"prompt": f"Client {number} says", "max_tokens": 12, "stream": True, "ignore_eos": True}
                if name:
                    asked["model"] = name
                async with http.stream("POST", "/v1/completions", json=asked) as answer:
                    if answer.status_code != 200:
                        self.wrong.append(f"{answer.status_code} {await answer.aread()!r}")
                        continue
                    async for line in answer.aiter_lines():
                        if line == "data: [DONE]":
                            ended = True
                        elif line.startswith("data: "):
                            said = json.loads(line[6:])
                            if "error" in said:
                                self.wrong.append(line)
                            elif said["choices"] and said["choices"][0].get("text"):
                                tokens += 1
                                if tokens == 1:
                                    self.models.append(said["model"])
                                    self.news.set()
                                    self.first_token.append(loop.time() - begun)
                if not ended:
                    self.wrong.append(f"cut off after {tokens} tokens")


@asynccontextmanager
async def asking(url: str, *names: str) -> AsyncIterator[Clients]:
    """Clients at work, one for each name; "" names no model."""
    clients = Clients(url)
    async with asyncio.TaskGroup() as group:
        for number, name in enumerate(names):
            group.create_task(clients.stream(number, name))
        try:
            yield clients
        finally:
            clients.stop = True
