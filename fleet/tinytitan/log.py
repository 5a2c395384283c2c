"""What TinyTitanServer says of its experts, its drafts and its prompt cache: lines of `key=value`, one a request.

    TinyTitan runner expert_hit_rate=0.9431 expert_hits=30110 ...      with TINYTITAN_RUNNER_STATS; of that request
    TinyTitan runner generation decode_tok_s=21.4 prefill_tok_s=188.0
    TinyTitan mtp drafted=120 accepted=69 acceptance=57.5% ...         where a draft is loaded and was used
    TinyTitan generation prefill_s=1.2 decode_s=3.4 decode_tok_s=20.1  where none was
    TinyTitan prompt_cache hit tier=live cached_tokens=812 entry=...
    TinyTitan prompt_cache stored tokens=812 state_bytes=... ram_bytes=... disk_bytes=... entry=...

Older versions call themselves NVMAI. It has no metrics endpoint: these lines are all that it tells, and none is of a
layer or of an expert. What is missing, no number, or out of its range is None.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

LONGEST = 4096             # characters of a line; the longest real one has about 900
MOST_PAIRS = 96
MOST = 1 << 60
_HEAD = re.compile(r"(?:TinyTitan|NVMAI) (runner generation|runner|mtp|generation|prompt_cache)(?: |$)(.*)")
_PAIR = re.compile(r"([a-z][a-z0-9_]{0,63})=(\S{0,256})")
_READY = re.compile(r"Server ready at http://[^\s/]{1,255}:([0-9]{1,5})(?:\s|/|$)")
_ANSI = re.compile(r"\x1b\[[0-9;?]{0,16}[A-Za-z]")      # under a terminal it may colour what it says


@dataclass(frozen=True, slots=True)
class ExpertLine:
    """Experts of one request, counted by TinyTitan itself: exact."""

    hit_rate: float | None = None          # 0 to 1
    hits: int | None = None
    misses: int | None = None
    evictions: int | None = None
    reloads: int | None = None
    read_mib: float | None = None
    load_p50_ms: float | None = None       # of one expert from the SSD
    load_p95_ms: float | None = None
    load_p99_ms: float | None = None
    io_hidden: float | None = None         # share of the reading behind which something was computed, 0 to 1


@dataclass(frozen=True, slots=True)
class SpeedLine:
    """How fast one request was."""

    decode: float | None = None            # tokens a second
    prefill: float | None = None


@dataclass(frozen=True, slots=True)
class DraftLine:
    """What multi-token prediction was worth in one request."""

    drafted: int | None = None
    accepted: int | None = None
    acceptance: float | None = None        # 0 to 1
    passes: int | None = None              # of the target
    emitted_per_pass: float | None = None  # tokens
    decode: float | None = None            # tokens a second


@dataclass(frozen=True, slots=True)
class PromptCacheLine:
    """One thing that happened to the prompt cache."""

    what: str                              # hit, stored, or a failure: restore_failed, snapshot_failed ...
    tier: str = ""                         # of a hit: where it was found
    tokens: int | None = None              # reused, or stored
    state_bytes: int | None = None         # of what was stored
    ram_bytes: int | None = None           # of all that is kept in memory
    disk_bytes: int | None = None          # and on the SSD

    @property
    def failed(self) -> bool:
        """Whether it is a failure."""
        return self.what.endswith("_failed")


@dataclass(frozen=True, slots=True)
class ReadyLine:
    """It listens, and has loaded (or will at the first request)."""

    port: int
    context: int | None = None             # tokens
    expert_slots: int | None = None        # a layer


Line = ExpertLine | SpeedLine | DraftLine | PromptCacheLine | ReadyLine


def read_line(text: str) -> Line | None:
    """What one line says; None of one that says nothing of these. Total: no line raises anything."""
    line = _ANSI.sub("", text[:LONGEST]).rstrip("\r\n")
    if match := _READY.search(line):
        pairs = _pairs(line)
        port = int(match[1])
        return ReadyLine(port, _whole(pairs, "context"), _whole(pairs, "expert_slots")) if 0 < port < 65536 else None
    match = _HEAD.match(line)
    if match is None:
        return None
    kind, pairs = match[1], _pairs(match[2])
    if kind == "runner":
        return _experts(pairs) if any(key.startswith("expert_") for key in pairs) else None
    if kind in ("runner generation", "generation"):
        return SpeedLine(_number(pairs, "decode_tok_s"), _number(pairs, "prefill_tok_s"))
    if kind == "mtp":
        return _drafts(pairs)
    return _prompt_cache(match[2], pairs)


@dataclass
class TinyTitanLog:
    """Everything that a server's log has told so far, in pieces of any length."""

    ready: ReadyLine | None = None
    experts: ExpertLine | None = None      # of the last request
    drafts: DraftLine | None = None
    speed: SpeedLine | None = None
    prompt_cache: PromptCacheLine | None = None
    hits: int = 0                          # of all requests
    misses: int = 0
    drafted: int = 0
    accepted: int = 0
    cached_tokens: int = 0                 # of prompts, that did not have to be read again
    cache_failures: int = 0
    _rest: str = field(default="", repr=False)

    @property
    def hit_rate(self) -> float | None:
        """Of all requests: exact. None while no expert was asked for."""
        asked = self.hits + self.misses
        return self.hits / asked if asked else None

    @property
    def acceptance(self) -> float | None:
        """Of all drafts. None while nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    def feed(self, text: str) -> tuple[Line, ...]:
        """Read on; what is no whole line yet waits. Gives what the new lines said."""
        *lines, rest = (self._rest + text).split("\n")
        self._rest = rest[:LONGEST]
        told = [said for line in lines if (said := read_line(line)) is not None]
        for said in told:
            self._take(said)
        return tuple(told)

    def _take(self, said: Line) -> None:
        if isinstance(said, ExpertLine):
            self.experts = said
            self.hits += said.hits or 0
            self.misses += said.misses or 0
        elif isinstance(said, DraftLine):
            self.drafts = said
            self.speed = SpeedLine(said.decode)
            if said.drafted is not None and said.accepted is not None:
                self.drafted += said.drafted
                self.accepted += said.accepted
        elif isinstance(said, SpeedLine):
            self.speed = said
        elif isinstance(said, PromptCacheLine):
            self.prompt_cache = said
            self.cache_failures += said.failed
            self.cached_tokens += (said.tokens or 0) if said.what == "hit" else 0
        else:
            self.ready = said


def _experts(pairs: Mapping[str, str]) -> ExpertLine:
    return ExpertLine(
        _number(pairs, "expert_hit_rate", 1.0), _whole(pairs, "expert_hits"), _whole(pairs, "expert_misses"),
        _whole(pairs, "expert_evictions"), _whole(pairs, "expert_reloads"), _number(pairs, "expert_read_mib"),
        _number(pairs, "expert_load_p50_ms"), _number(pairs, "expert_load_p95_ms"),
        _number(pairs, "expert_load_p99_ms"), _percent(pairs, "io_hidden_pct"))


def _drafts(pairs: Mapping[str, str]) -> DraftLine | None:
    drafted, accepted = _whole(pairs, "drafted"), _whole(pairs, "accepted")
    if drafted is not None and accepted is not None and accepted > drafted:
        return None
    return DraftLine(drafted, accepted, _percent(pairs, "acceptance"), _whole(pairs, "target_passes"),
                     _number(pairs, "emitted_per_pass"), _number(pairs, "decode_tok_s"))


def _prompt_cache(said: str, pairs: Mapping[str, str]) -> PromptCacheLine | None:
    what = said.split(" ", 1)[0]
    if not re.fullmatch(r"hit|stored|[a-z_]{1,40}_failed", what):
        return None
    tier = pairs.get("tier", "")
    return PromptCacheLine(what, tier if re.fullmatch(r"[a-z0-9_-]{1,24}", tier) else "",
                           _whole(pairs, "cached_tokens" if what == "hit" else "tokens"),
                           _whole(pairs, "state_bytes"), _whole(pairs, "ram_bytes"), _whole(pairs, "disk_bytes"))


def _pairs(text: str) -> dict[str, str]:
    return dict(_PAIR.findall(text)[:MOST_PAIRS])


def _whole(pairs: Mapping[str, str], key: str) -> int | None:
    value = pairs.get(key, "")
    return int(value) if value.isascii() and value.isdigit() and len(value) < 19 and int(value) <= MOST else None


def _number(pairs: Mapping[str, str], key: str, highest: float = 1e15) -> float | None:
    try:
        value = float(pairs.get(key, ""))
    except ValueError:
        return None
    return value if math.isfinite(value) and 0 <= value <= highest else None


def _percent(pairs: Mapping[str, str], key: str) -> float | None:
    """A share of what is written in percent, with its sign or without."""
    value = _number({key: pairs.get(key, "").removesuffix("%")}, key, 100.0)
    return None if value is None else value / 100
