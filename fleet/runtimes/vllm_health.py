"""Talking to vLLM's API server: health, what it serves, its counters, one token. Names as vLLM 0.33.0 has them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from fleet.runtimes.head_answers import HeadHealth, mapping, read_chat_piece
from fleet.runtimes.head_http import ANSWER_TIMEOUT, HeadClient, HeadError, Pieces, as_json

MOST_LINES = 4096
DEAD = "its engine is dead"
_SAMPLE = re.compile(r"^vllm:([a-z_]{1,80})(?:\{[^{}]{0,2000}\})?\s+(\S{1,40})")
_SUMMED = ("num_requests_running", "num_requests_waiting", "generation_tokens_total", "prompt_tokens_total")
_HIGHEST = ("kv_cache_usage_perc",)


@dataclass(frozen=True, slots=True)
class VllmMetrics:
    """What is read of `/metrics`. None = not told."""

    running: int | None = None                 # requests that are worked on
    waiting: int | None = None                 # requests that wait for room
    kv_used: float | None = None               # fraction of the KV cache, of the fullest engine
    prompt_tokens: float | None = None         # read since it began
    generated_tokens: float | None = None      # written since it began


def parse_vllm_metrics(text: str) -> VllmMetrics:
    """Read Prometheus text; engines and models of one server are put together. What makes no sense is left out."""
    found: dict[str, float] = {}
    for line in text.splitlines()[:MOST_LINES]:
        match = _SAMPLE.match(line)
        if match is None or match[1] not in (*_SUMMED, *_HIGHEST):
            continue
        try:
            value = float(match[2])
        except ValueError:
            continue
        if math.isfinite(value) and value >= 0:
            before = found.get(match[1], 0.0)
            found[match[1]] = max(before, value) if match[1] in _HIGHEST else before + value
    return VllmMetrics(_whole(found.get("num_requests_running")), _whole(found.get("num_requests_waiting")),
                       found.get("kv_cache_usage_perc"), found.get("prompt_tokens_total"),
                       found.get("generation_tokens_total"))


def _whole(value: float | None) -> int | None:
    return None if value is None or value > 1e9 else int(value)


class VllmClient(HeadClient):
    """A client of one vLLM server, through its node: what `HeadClient` is for llama-server."""

    async def health(self) -> HeadHealth:
        """How far it is. Its port opens when every stage has loaded; 503 says that its engine has died since.

        Raises:
            NodeError: the node does not answer.
        """
        health = await super().health()
        if health is HeadHealth.LOADING:
            self.health_detail = DEAD
        return health

    async def models(self) -> tuple[str, ...]:
        """The names that it serves under. Raises HeadError, PortClosed."""
        listed = mapping(as_json(await self._ask("/v1/models"))).get("data")
        entries = listed[:64] if isinstance(listed, list) else []
        return tuple(name for entry in entries if isinstance(name := mapping(entry).get("id"), str))

    async def counters(self) -> VllmMetrics:
        """Its counters. Raises HeadError, PortClosed."""
        return parse_vllm_metrics((await self._ask("/metrics", missing=b"")).decode("utf-8", "replace"))

    async def one_token(self, model: str, *, timeout: float = ANSWER_TIMEOUT) -> int:
        """Ask for one token, which goes through every stage; gives how many came. Raises HeadError, PortClosed."""
        wanted = {"model": model, "prompt": "Hello", "max_tokens": 1}
        async with self._answering("POST", "/v1/completions", wanted, timeout) as response:
            answer = mapping(as_json(await self._body(response)))
        count = mapping(answer.get("usage")).get("completion_tokens")
        if not isinstance(count, int):
            raise HeadError(f"{self.name} gave no completion.", "See its log.")
        return count

    async def is_made_to_chat(self) -> bool:
        """vLLM itself refuses to chat with a model that has no template, and says so."""
        return True

    async def stream_chat(self, messages: Sequence[Mapping[str, str]], *, n_predict: int = -1,
                          temperature: float | None = None, timeout: float = ANSWER_TIMEOUT) -> Pieces:
        """Answer `messages`, piece by piece, as `HeadClient` does."""
        names = await self.models()
        wanted: dict[str, object] = {"model": names[0] if names else "", "stream": True,
                                     "messages": [dict(message) for message in messages]}
        if n_predict >= 0:
            wanted["max_tokens"] = n_predict
        if temperature is not None:
            wanted["temperature"] = temperature
        async with aclosing(self._stream("/v1/chat/completions", wanted, read_chat_piece, timeout)) as pieces:
            async for piece in pieces:
                yield piece
