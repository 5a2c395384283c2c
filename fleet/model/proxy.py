"""Proxies as they were last seen, and what goes through them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fleet.model.words import Problem


@dataclass(frozen=True, slots=True)
class ProxyUpstream:
    """One server behind a proxy. What it says of itself is untrusted text."""

    name: str
    url: str
    backend: str
    health: str                           # fleet.proxy.exchange.UpstreamState, as text
    reason: str = ""
    held: bool = False
    busy: bool = False
    models: tuple[str, ...] = ()
    slots: int | None = None
    running: int = 0                      # requests
    requests: int = 0                     # since the proxy started
    failures: int = 0
    tokens: int = 0
    context: int | None = None            # tokens
    build: str = ""
    progress: Mapping[str, object] = field(default_factory=dict)   # of whatever it is held for


@dataclass(frozen=True, slots=True)
class ProxyRequest:
    """One request, live or ended. Durations in seconds."""

    id: str
    kind: str                             # fleet.proxy.exchange.ApiKind, as text
    model: str
    upstream: str
    state: str                            # fleet.proxy.exchange.ExchangeState, as text
    client: str = ""
    caller: str = ""                      # name of the key
    streaming: bool = False
    started_epoch: float = 0.0
    seconds: float = 0.0                  # so far, or in all
    held: float = 0.0
    retried: int = 0
    to_first_byte: float | None = None
    per_token: float | None = None
    tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int | None = None      # of the prompt, that the backend did not compute again; None = it tells not
    drafted: int = 0
    accepted: int = 0
    status: int = 0                       # that the client got
    problem: str = ""                     # code of what went wrong
    repairs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProxyLoad:
    """One sample of a proxy's history."""

    at: float                             # engine clock
    tokens_per_second: float
    live: int
    waiting: int
    tokens: int = 0                       # written since the proxy started


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy that was found: a service on a node, or one inside this engine."""

    node: str                             # "" = inside this engine
    service: str                          # id of its service; "" = inside this engine
    url: str                              # where clients point at
    read_at: float                        # engine clock, of the last answer of its control interface
    problem: Problem | None = None        # why it cannot be asked now: what stands here is old then
    started_epoch: float = 0.0
    stopping: bool = False
    total: int = 0                        # requests since it started
    waiting: int = 0                      # held requests
    waiting_bytes: int = 0
    held_models: tuple[str, ...] = ()
    models: Mapping[str, tuple[str, ...]] = field(default_factory=dict)   # model -> upstreams that serve it
    aliases: Mapping[str, str] = field(default_factory=dict)
    upstreams: tuple[ProxyUpstream, ...] = ()
    live: tuple[ProxyRequest, ...] = ()   # oldest first
    ended: tuple[ProxyRequest, ...] = ()  # the last ones, newest last
    history: tuple[ProxyLoad, ...] = ()   # newest last, one a reading
    drafting: Mapping[str, object] = field(default_factory=dict)   # what its speculation tells, as JSON
