"""What a proxy's control interface says, as records. A proxy on a node is not trusted: every field is checked. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from fleet.model import Proxy, ProxyLoad, ProxyRequest, ProxyUpstream

MOST_UPSTREAMS = 256
MOST_REQUESTS = 512
MOST_MODELS = 512
MOST_HISTORY = 120
SHORTEST = 1.0              # seconds that a rate is taken over, at least
TEXT = 400                  # characters of a sentence
NAME = 200
_MOST = 1 << 53             # a number above it is nonsense


def reading(proxy: Proxy, state: Mapping[str, object], requests: Mapping[str, object], now: float) -> Proxy:
    """`proxy` as it is now, its history one sample longer."""
    upstreams = tuple(_upstream(entry) for entry in _list(state.get("upstreams"), MOST_UPSTREAMS))
    live = tuple(_request(entry) for entry in _list(requests.get("live"), MOST_REQUESTS))
    ended = tuple(_request(entry) for entry in _list(requests.get("ended"), MOST_REQUESTS))
    waiting = _count(state.get("waiting"))
    new = replace(
        proxy, read_at=now, problem=None, started_epoch=_number(state.get("started")) or 0.0,
        stopping=state.get("stopping") is True, total=_count(state.get("requests")), waiting=waiting,
        waiting_bytes=_count(state.get("waiting_bytes")),
        held_models=tuple(_text(name, NAME) for name in list(_mapping(state.get("held_models")))[:MOST_MODELS]),
        models={_text(name, NAME): _texts(ups)
                for name, ups in list(_mapping(state.get("models")).items())[:MOST_MODELS]},
        aliases={_text(name, NAME): _text(model, NAME)
                 for name, model in list(_mapping(state.get("aliases")).items())[:MOST_MODELS]},
        upstreams=upstreams, live=live, ended=ended, drafting=_mapping(state.get("drafting")))
    tokens = _written(new)
    load = ProxyLoad(now, _rate(proxy, tokens, now, new.started_epoch), len(live), waiting, tokens)
    return replace(new, history=(*proxy.history, load)[-MOST_HISTORY:])


def wanted(state: Mapping[str, object]) -> dict[str, tuple[int, float]]:
    """Models that requests wait for and that nobody serves: how many wait, and for how many seconds."""
    return {_text(name, NAME): (_count(_mapping(about).get("waiting")), _number(_mapping(about).get("seconds")) or 0.0)
            for name, about in list(_mapping(state.get("wanted")).items())[:MOST_MODELS]}


def drain_of(state: Mapping[str, object], requests: Mapping[str, object], upstream: str) -> tuple[int, float]:
    """How many requests run at an upstream, and for how many seconds the longest has."""
    running = next((_count(entry.get("running")) for entry in _list(state.get("upstreams"), MOST_UPSTREAMS)
                    if entry.get("name") == upstream), 0)
    ages = [_number(entry.get("seconds")) or 0.0 for entry in _list(requests.get("live"), MOST_REQUESTS)
            if entry.get("upstream") == upstream and entry.get("state") != "held"]
    return running, max(ages, default=0.0)


def _written(proxy: Proxy) -> int:
    """Tokens of ended requests, and of those that still write."""
    return sum(up.tokens for up in proxy.upstreams) + sum(request.tokens for request in proxy.live)


def _rate(before: Proxy, tokens: int, now: float, started: float) -> float:
    """Tokens a second. Over a moment it would be anything: where a request ends it counts twice, or not at all."""
    if before.started_epoch != started:
        return 0.0
    earlier = next((load for load in reversed(before.history) if now - load.at >= SHORTEST), None)
    if earlier is None:
        return 0.0
    return max(0.0, (tokens - earlier.tokens) / (now - earlier.at))


def _upstream(entry: Mapping[str, object]) -> ProxyUpstream:
    lost = _text(entry.get("lost"), TEXT)
    return ProxyUpstream(
        _text(entry.get("name"), NAME), _text(entry.get("url"), TEXT), _text(entry.get("backend"), NAME),
        "lost" if lost else _text(entry.get("health"), NAME), lost or _text(entry.get("reason"), TEXT),
        entry.get("held") is True, entry.get("busy") is True, _texts(entry.get("models")),
        _count_or_none(entry.get("slots")), _count(entry.get("running")), _count(entry.get("requests")),
        _count(entry.get("failures")), _count(entry.get("tokens")), _count_or_none(entry.get("context")),
        _text(entry.get("build"), NAME), _mapping(entry.get("progress")))


def _request(entry: Mapping[str, object]) -> ProxyRequest:
    return ProxyRequest(
        _text(entry.get("id"), NAME), _text(entry.get("kind"), NAME), _text(entry.get("model"), NAME),
        _text(entry.get("upstream"), NAME), _text(entry.get("state"), NAME), _text(entry.get("client"), NAME),
        _text(entry.get("caller"), NAME), entry.get("streaming") is True, _number(entry.get("started")) or 0.0,
        _number(entry.get("seconds")) or 0.0, _number(entry.get("held")) or 0.0, _count(entry.get("retried")),
        _number(entry.get("to_first_byte")), _number(entry.get("per_token")), _count(entry.get("tokens")),
        _count(entry.get("prompt_tokens")), _count_or_none(entry.get("cached_tokens")), _count(entry.get("drafted")),
        _count(entry.get("accepted")), _count(entry.get("status")), _text(entry.get("problem"), NAME),
        _texts(entry.get("repairs")))


def _list(value: object, most: int) -> list[Mapping[str, object]]:
    return [entry for entry in value[:most] if isinstance(entry, Mapping)] if isinstance(value, list) else []


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _text(value: object, most: int) -> str:
    return value[:most] if isinstance(value, str) else ""


def _texts(value: object) -> tuple[str, ...]:
    return tuple(_text(part, NAME) for part in value[:MOST_MODELS]) if isinstance(value, list | tuple) else ()


def _number(value: object) -> float | None:
    known = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if known and abs(value) < _MOST else None       # type: ignore[arg-type]


def _count_or_none(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST else None


def _count(value: object) -> int:
    return _count_or_none(value) or 0
