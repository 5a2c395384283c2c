"""Every way to speculate in front of one server, measured side by side: prompt by prompt, in turns.

Each way is a proxy of its own on a free port of this machine, as it would serve; the server alone is asked directly.
Tokens a second are over whole requests, reading the prompt and the controller's trials with them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

from fleet.errors import ServiceError
from fleet.proxy.exchange import ProxySettings, UpstreamSettings
from fleet.proxy.serve import Running, running
from fleet.proxy.wire import WireError
from fleet.runtimes.head_answers import count, mapping
from fleet.speculation.asking import Asker, Refused
from fleet.speculation.settings import SpeculationMode, SpeculationSettings

TIMEOUT = 600.0                # seconds of one answer
FIRST_TIMEOUT = 10.0           # seconds for the first sign of the server
READY = 20.0                   # seconds until a proxy has found the server
PROMPTS = (
    "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,",
    "Once upon a time there was a small village by a river, and the people of the village",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "The days of the week are Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday. The months of the year "
    "are January, February,",
)


@dataclass(frozen=True, slots=True)
class Measured:
    """One way."""

    way: str                       # plain, native, strided, injection, n-gram, auto
    tokens: int = 0
    seconds: float = 0.0
    drafted: int = 0
    accepted: int = 0
    problem: str = ""              # why it could not be measured, or did not draft

    @property
    def tokens_per_second(self) -> float:
        """0 = nothing was measured."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0


def ways_of(settings: SpeculationSettings) -> dict[str, SpeculationSettings]:
    """The ways through a proxy, by name."""
    found = {}
    if settings.drafters:
        found["strided"] = replace(settings, mode=SpeculationMode.STRIDED, ngram=False, honesty=0.0)
        found["injection"] = replace(settings, mode=SpeculationMode.INJECTION, ngram=False, honesty=0.0)
    if settings.ngram:
        found["n-gram"] = replace(settings, mode=SpeculationMode.AUTO, drafters=(), honesty=0.0)
    if settings.drafters:
        found["auto"] = replace(settings, mode=SpeculationMode.AUTO, honesty=0.0)
    return found


async def compare(target: str, settings: SpeculationSettings, *, key: str = "", tokens: int = 96,
                  prompts: Sequence[str] = PROMPTS, report: Callable[[str, int, int], None] = lambda *_: None
                  ) -> list[Measured]:
    """Measure them all.

    Args:
        target: the server's URL.
        settings: drafters, and the longest drafts.
        key: that the server wants.
        report: told the way, and how many of how many requests are done.

    Raises:
        ConfigError: a URL is none.
        ServiceError: the server alone does not answer.
    """
    upstream = UpstreamSettings("target", target, key=key)
    async with AsyncExitStack() as stack:
        alone = Asker.at(target, key)
        stack.callback(alone.close)
        try:
            await alone.get("/v1/models", FIRST_TIMEOUT)
        except (WireError, Refused) as error:
            raise ServiceError(f"The server does not answer: {error}", "See its log, or `quarterdeck status`.",
                               code="no-answer") from error
        askers, proxies = {"plain": alone}, {}
        for way, wanted in ways_of(settings).items():
            proxy = await stack.enter_async_context(running(ProxySettings(
                port=0, upstreams=(replace(upstream, speculation=wanted),), probe_interval=1.0, drain_seconds=1.0)))
            askers[way], proxies[way] = Asker.at(proxy.url), proxy
            stack.callback(askers[way].close)
        for proxy in proxies.values():
            await _ready(proxy)
        found = {way: Measured(way) for way in askers}
        names = list(askers)
        for number, prompt in enumerate(prompts):
            # The order turns, so that a busy moment hits all of them.
            for turn, way in enumerate(names[number % len(names):] + names[:number % len(names)]):
                report(way, number * len(names) + turn, len(prompts) * len(names))
                found[way] = await _asked(askers[way], prompt, tokens, found[way])
        for way, proxy in proxies.items():
            why = next((str(session.state().get("why", "")) for session in proxy.proxy.sessions.values()), "")
            if why and not found[way].problem:
                found[way] = replace(found[way], problem=why)
    plain = found["plain"]
    if plain.drafted:
        found["plain"] = replace(plain, way="native", problem="The head drafts by itself: it has no speed alone.")
    return list(found.values())


async def _ready(proxy: Running) -> None:
    try:
        async with asyncio.timeout(READY):
            while proxy.proxy.routes.upstreams["target"].health.state != "ready":      # noqa: ASYNC110  no event tells
                await asyncio.sleep(0.05)
    except TimeoutError as error:
        health = proxy.proxy.routes.upstreams["target"].health
        raise ServiceError(f"The server does not get ready: {health.reason or 'it does not answer'}.",
                           "See `quarterdeck status`.", code="no-answer") from error


async def _asked(asker: Asker, prompt: str, tokens: int, so_far: Measured) -> Measured:
    begun = time.monotonic()
    try:
        said = mapping(await asker.post("/v1/completions", {
            "prompt": prompt, "max_tokens": tokens, "temperature": 0}, TIMEOUT))
    except (WireError, Refused) as error:
        if so_far.way == "plain":
            raise ServiceError(f"The server does not answer: {error}", "See its log.", code="no-answer") from error
        return replace(so_far, problem=str(error))
    seconds, timings = time.monotonic() - begun, mapping(said.get("timings"))
    written = count(mapping(said.get("usage")).get("completion_tokens")) or count(timings.get("predicted_n")) or 0
    return replace(so_far, tokens=so_far.tokens + written, seconds=so_far.seconds + seconds,
                   drafted=so_far.drafted + (count(timings.get("draft_n")) or 0),
                   accepted=so_far.accepted + (count(timings.get("draft_n_accepted")) or 0))
