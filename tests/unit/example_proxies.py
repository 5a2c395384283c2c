"""Proxies to look at: one that is well, one in trouble, one that is silent, one with much to do."""

from __future__ import annotations

import math
from dataclasses import replace

import example_fleets as fleets
from example_fleets import EPOCH, NOW

from fleet.model import Problem, Proxy, ProxyLoad, ProxyRequest, ProxyUpstream, Snapshot

URL = "http://127.0.0.1:8088"


def history(samples: int = 150, waiting: int = 0) -> tuple[ProxyLoad, ...]:
    """Two and a half minutes, busier towards the end."""
    return tuple(ProxyLoad(NOW - samples + n, round(max(0.0, 62 + 45 * math.sin(n / 9) + 20 * math.sin(n / 2.3)
                                                        - (80 if 40 < n < 58 else 0)), 1),
                           2 + n // 40 + (n % 17 == 0), waiting if n > samples - 12 else 0) for n in range(samples))


def request(number: int, state: str = "done", **more: object) -> ProxyRequest:
    """One request; what is not said is as that of a short chat."""
    seconds = 2.0 + number % 7
    values: dict[str, object] = {
        "kind": "chat", "model": "qwen3-32b", "upstream": "atlas", "client": f"10.20.0.{20 + number % 5}",
        "caller": ("", "kitchen", "notes", "", "phone")[number % 5], "streaming": number % 3 > 0,
        "started_epoch": EPOCH - 400 + number * 3, "seconds": seconds, "to_first_byte": 0.12 + number % 11 * 0.07,
        "per_token": 0.018 + number % 4 * 0.002, "tokens": 60 + number * 13 % 400,
        "prompt_tokens": 400 + number % 90 * 7, "cached_tokens": 300 + number % 90,
        "drafted": 90, "accepted": 61 + number % 9, "status": 200}
    return ProxyRequest(f"9ac1f0-{number}", state=state, **{**values, **more})  # type: ignore[arg-type]


ATLAS = ProxyUpstream("atlas", "http://10.20.0.11:8080", "llama-server", "ready", busy=True, models=("qwen3-32b",),
                      slots=4, running=3, requests=1180, tokens=412_800, context=16_384, build="b10068")
TOWER = ProxyUpstream("tower", "http://10.0.0.40:11434", "ollama", "ready", models=("qwen3:8b", "gemma3:4b"),
                      running=0, requests=214, tokens=38_210)
LIVE = (
    request(1201, "answering", seconds=41.0, tokens=1834, held=0.0, to_first_byte=1.94, streaming=True),
    request(1203, "answering", seconds=12.3, tokens=512, to_first_byte=0.31, per_token=None),
    request(1204, "waiting", seconds=3.2, tokens=0, to_first_byte=None, per_token=None, cached_tokens=None, drafted=0,
            accepted=0, status=0),
)
ENDED = (
    *(request(number) for number in range(1105, 1198)),
    request(1198, "failed", problem="upstream_broke_off", status=502, tokens=12),
    request(1199, "refused", problem="rate_limit_exceeded", status=429, upstream="", tokens=0, to_first_byte=None,
            per_token=None, seconds=0.002, drafted=0, accepted=0, cached_tokens=None, prompt_tokens=0),
    request(1200, "cancelled", tokens=91, status=200), request(1202, retried=1, held=4.2, to_first_byte=4.6))


def proxy(**more: object) -> Proxy:
    """On this machine, as it was half a second ago."""
    values: dict[str, object] = {
        "read_at": NOW - 0.5, "started_epoch": EPOCH - 8000, "total": 1204, "upstreams": (ATLAS, TOWER),
        "models": {"qwen3-32b": ("atlas",), "qwen3:8b": ("tower",)}, "live": LIVE, "ended": ENDED,
        "history": history()}
    return Proxy("atlas", "proxy-8088", URL, **{**values, **more})  # type: ignore[arg-type]


def normal() -> Snapshot:
    """One proxy, two servers, three requests."""
    return replace(fleets.normal(), proxies=(proxy(),))


def empty() -> Snapshot:
    """No proxy at all."""
    return fleets.normal()


def fresh() -> Snapshot:
    """A proxy with nothing behind it, and nobody who asked."""
    return replace(fleets.normal(), proxies=(proxy(upstreams=(), live=(), ended=(), history=(), total=0, models={}),))


def failing() -> Snapshot:
    """One server held for a swap, the other broken, requests wait."""
    held = replace(ATLAS, held=True, busy=False, running=1, failures=3, progress={
        "title": "Swap to gemma-3-27b", "step": "loading", "progress": 0.43, "retry_after": 20})
    broken = replace(TOWER, health="broken", failures=17, reason="Nothing listens at 10.0.0.40:11434.")
    waiting = tuple(request(1300 + number, "held", seconds=21.0 - number * 4, held=20.5 - number * 4, tokens=0,
                            upstream="", to_first_byte=None, per_token=None, cached_tokens=None, drafted=0, accepted=0,
                            status=0) for number in range(4))
    more = tuple(request(1250 + number, "failed", problem="upstream_unavailable", status=503, tokens=0,
                         to_first_byte=None, per_token=None, drafted=0, cached_tokens=None) for number in range(9))
    return replace(fleets.normal(), proxies=(proxy(
        upstreams=(held, broken), live=(LIVE[0], *waiting), ended=(*ENDED, *more), waiting=4, waiting_bytes=48_000,
        history=history(waiting=4)),))


def stale() -> Snapshot:
    """It stopped answering, two minutes ago; another one on bolt is well."""
    silent = proxy(read_at=NOW - 130, problem=Problem(
        "proxy-silent", "The proxy at 127.0.0.1:8088 does not answer.",
        "Look at its log (l); x stops it, s starts it again."))
    other = replace(proxy(live=(), ended=ENDED[:5]), node="bolt", url="http://10.20.0.12:8088")
    return replace(fleets.normal(), proxies=(silent, other))


def crowded(frame: int = 0, live: int = 50) -> Snapshot:
    """Fifty live requests, each of which moves every frame."""
    moving = tuple(request(2000 + number, "answering", seconds=number * 0.9 + frame, tokens=number * 20 + frame * 23,
                           per_token=None) for number in range(live))
    samples = (*history(), ProxyLoad(NOW + frame, 900.0 + frame * 31 % 200, live, 0))
    return replace(fleets.normal(), proxies=(proxy(
        live=moving, read_at=NOW + frame, history=samples[frame:], total=1204 + frame, upstreams=(
            replace(ATLAS, running=live, slots=64, tokens=412_800 + frame * 1150), TOWER)),))
