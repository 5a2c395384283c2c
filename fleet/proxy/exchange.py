"""The shapes that every part of the proxy shares: settings, a call, its answer, and what is remembered of it.

An `Exchange` is one client's request from its first byte to its end; it changes while it runs. When it has ended a
`RequestRecord`, which never changes, is kept in the ring. A face (OpenAI's, Ollama's) makes a `Call` and gets an
`Answer` from a `Forward`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from fleet.speculation.settings import SpeculationSettings

Headers = list[tuple[bytes, bytes]]      # names in lower case, as ASGI has them


class ApiKind(StrEnum):
    """Which API a request speaks: what decides how its answer is read, counted and repaired."""

    CHAT = "chat"                  # /v1/chat/completions
    COMPLETION = "completion"      # /v1/completions
    MESSAGES = "messages"          # Anthropic's /v1/messages
    RESPONSES = "responses"        # /v1/responses
    EMBEDDINGS = "embeddings"
    NATIVE = "native"              # llama-server's /completion
    OTHER = "other"                # passed through, never read


class ExchangeState(StrEnum):
    """Where a request is."""

    ARRIVED = "arrived"
    HELD = "held"                  # waits: its upstream is held, or none has room
    WAITING = "waiting"            # with an upstream, which has not answered yet
    ANSWERING = "answering"
    DONE = "done"
    FAILED = "failed"              # the upstream's fault; the client was told
    CANCELLED = "cancelled"        # the client went away, or somebody cancelled it here
    REFUSED = "refused"            # never reached an upstream


class BackendKind(StrEnum):
    """What an upstream is: where its load can be read, and how."""

    LLAMA_SERVER = "llama-server"
    OPENAI = "openai"              # anything that speaks OpenAI's API
    VLLM = "vllm"
    OLLAMA = "ollama"
    TINYTITAN = "tinytitan"


@dataclass(frozen=True, slots=True)
class Problem:
    """What went wrong, for the client: `status` of HTTP, `code` a stable word, `message` one or two sentences."""

    status: int
    code: str
    message: str
    kind: str = "server_error"             # `type` of OpenAI's error object
    retry_after: float | None = None       # seconds
    progress: dict[str, object] = field(default_factory=dict)
    param: str = ""                        # the field of the request that is wrong


@dataclass(frozen=True, slots=True)
class RepairSettings:
    """Which repairs are made on the way back, each by itself."""

    tool_call_index: bool = True           # tool calls without index, or all with 0
    empty_data: bool = True                # `data:` with nothing in it, {} without choices
    comments_as_data: bool = True          # `data: : ping`
    usage: bool = True                     # asked for upstream, stripped where the client did not ask
    cumulative_usage: bool = True
    line_ends: bool = True                 # CRLF
    done: bool = True                      # a stream that ends without [DONE]
    broken: bool = True                    # an error event and an end when the upstream dies


@dataclass(frozen=True, slots=True)
class UpstreamSettings:
    """One server behind the proxy. It comes from configuration only, never from a request."""

    name: str
    url: str                               # http://host:port, with a path before /v1 where it has one
    backend: BackendKind = BackendKind.LLAMA_SERVER
    models: tuple[str, ...] = ()           # what it serves; () = what its /v1/models says
    key: str = field(default="", repr=False)
    slots: int | None = None               # requests at once; None = what it says, no limit where it does not say
    weight: float = 1.0
    let_finish: bool = False               # a request whose client left runs to its end: cutting it is known to hurt
    connect_timeout: float = 5.0           # seconds
    first_byte_timeout: float = 1800.0     # seconds of a prefill: busy is not dead
    stall_timeout: float = 300.0           # seconds between two parts of an answer
    group: str = ""                        # a name that several upstreams share, usable as a model
    speculation: SpeculationSettings | None = None    # drafts in front of it


@dataclass(frozen=True, slots=True)
class HoldSettings:
    """How much waits while an upstream is held or full, and how clients are kept waiting."""

    count: int = 1024                      # requests
    size: int = 256 * 1024 * 1024          # bytes of their bodies
    seconds: float = 600.0                 # for one request
    gone_seconds: float = 3.0              # for a model whose every server is broken: one may be starting again
    keep_alive: float = 10.0               # seconds between two SSE comments; 0 = none
    no_keep_alive_agents: tuple[str, ...] = ()   # parts of user agents that take comments for data


@dataclass(frozen=True, slots=True)
class Limits:
    """What one client may send."""

    body: int = 64 * 1024 * 1024           # bytes
    head: int = 64 * 1024                  # bytes of request line and headers
    connections: int = 4096
    body_timeout: float = 60.0             # seconds for the whole body
    head_timeout: float = 30.0             # seconds for request line and headers
    write_timeout: float = 120.0           # seconds in which it takes nothing of its answer


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """Everything that a proxy needs to run."""

    host: str = "127.0.0.1"
    port: int = 8088
    upstreams: tuple[UpstreamSettings, ...] = ()
    aliases: dict[str, str] = field(default_factory=dict)      # a name that clients use -> model
    default_model: str = ""                # for requests that name none; "" = the only one, or any
    keys: tuple[object, ...] = ()          # access.Key
    allow_open: bool = False               # beyond loopback without a key
    cors_origins: tuple[str, ...] = ()     # none = off
    names: tuple[str, ...] = ()            # further host names that clients call it by
    limits: Limits = Limits()
    hold: HoldSettings = HoldSettings()
    repair: RepairSettings = RepairSettings()
    retries: int = 2                       # other tries before a byte has gone to the client
    sticky_seconds: float = 1800.0         # a conversation stays with its upstream that long after its last request
    probe_interval: float = 5.0
    breaker_failures: int = 3              # in a row, until nothing more is sent
    breaker_seconds: float = 5.0           # until one request may try again; doubles up to 60
    drain_seconds: float = 5.0             # of a graceful stop
    records: int = 1000
    keep_bodies: bool = False
    control_file: str = ""                 # whole path of the file with the control token; "" = no control over HTTP


def is_among(model: str, patterns: tuple[str, ...]) -> bool:
    """Whether a model is one of those named: by its name, or by a beginning with * behind it; () = all are."""
    return not patterns or any(
        model.startswith(pattern[:-1]) if pattern.endswith("*") else model == pattern for pattern in patterns)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: the key's name and what it may ask for, as `is_among` reads it."""

    name: str = ""
    models: tuple[str, ...] = ()           # () = all


@dataclass(slots=True)
class Exchange:
    """One request while it runs. Times are the event loop's clock, seconds."""

    id: str
    kind: ApiKind
    path: str
    model: str = ""                        # as the client named it
    streaming: bool = False
    caller: str = ""                       # name of the key
    client: str = ""                       # address
    started: float = 0.0
    started_wall: float = 0.0              # epoch seconds
    upstream: str = ""
    state: ExchangeState = ExchangeState.ARRIVED
    status: int = 0                        # what the client got
    held: float = 0.0                      # seconds
    retried: int = 0
    first_byte: float | None = None        # of the answer's body, to the client
    ended: float | None = None
    tokens: int = 0                        # written
    prompt_tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    repairs: tuple[str, ...] = ()
    problem: str = ""                      # code of what went wrong
    body: bytes = b""                      # kept only where settings say so
    cancel: Callable[[], None] | None = None         # ends it with an error for the client
    drop: Callable[[], object] | None = None         # ends it without a word: the client takes nothing any more
    sending_since: float | None = None               # that a part of the answer waits for the client


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request that has ended. Durations in seconds."""

    id: str
    kind: str
    path: str
    model: str
    upstream: str
    caller: str
    client: str
    streaming: bool
    started: float                         # epoch
    state: str
    status: int
    held: float
    retried: int
    seconds: float
    to_first_byte: float | None
    per_token: float | None
    tokens: int
    prompt_tokens: int
    drafted: int
    accepted: int
    bytes_in: int
    bytes_out: int
    repairs: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    """What a face asks of an upstream: already checked, access granted."""

    kind: ApiKind
    path: str                              # on the upstream, with its query: "/v1/chat/completions"
    body: bytes = b""
    method: str = "POST"
    model: str = ""
    streaming: bool = False
    headers: tuple[tuple[bytes, bytes], ...] = ()    # the client's, names in lower case
    caller: Caller = Caller()
    client: str = ""
    client_wants_usage: bool = True
    parsed: dict[str, object] | None = None             # `body` as JSON, where somebody has read it already
    early: Callable[[], Awaitable[None]] | None = None  # sends a comment, before the first the head of a stream


@dataclass(slots=True)
class Answer:
    """What comes back, repaired. Close it, also after an error, or what runs upstream never ends."""

    status: int
    headers: Headers
    chunks: AsyncGenerator[bytes, None]
    exchange: Exchange
    close: Callable[[], Awaitable[None]]
    begun: bool = False                              # `Call.early` has sent its status and headers already
    last: Callable[[], bool] = lambda: False         # the part that has just come is the last one


class Forward(Protocol):
    """The way to the upstreams."""

    async def __call__(self, call: Call) -> Answer:
        """Send `call` to the upstream that fits. A refusal is an Answer with an error object of OpenAI's form."""
        ...

    def models(self, caller: Caller) -> list[dict[str, object]]:
        """What `caller` may ask for, as entries of OpenAI's /v1/models."""
        ...
