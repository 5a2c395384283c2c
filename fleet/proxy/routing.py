"""Which upstream gets a request: by the model's name, by health, by load, and by who has the conversation cached."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from hashlib import blake2b

from fleet.proxy.exchange import BackendKind
from fleet.proxy.upstream import Health, Upstream

MOST_REMEMBERED = 10_000       # prefixes
MOST_MESSAGES = 256            # of one conversation that are looked at, from its start
BLOCK = 1024                   # characters of a plain prompt between two marks
_ALIAS_DEPTH = 8


@dataclass(frozen=True, slots=True)
class Target:
    """What a name means: the model, and the upstreams that serve it (in the order of configuration)."""

    model: str
    upstreams: tuple[Upstream, ...]


class Routes:
    """The upstreams by the names of what they serve."""

    def __init__(self, aliases: Mapping[str, str], default_model: str) -> None:
        self.upstreams: dict[str, Upstream] = {}
        self.aliases = dict(aliases)
        self.default_model = default_model
        # Models that could be served: whether a request for one that is not has it brought up.
        self.catalogue: dict[str, bool] = {}
        self._found: dict[str, Target] = {}

    def changed(self) -> None:
        """Some upstream serves other models now, or was added or removed."""
        self._found.clear()

    def target(self, name: str) -> Target:
        """What `name` means; no upstreams where nobody serves it."""
        found = self._found.get(name)
        if found is None:
            found = self._resolve(name)
            if len(self._found) < MOST_REMEMBERED and len(name) <= 512:
                self._found[name] = found
        return found

    def models(self) -> dict[str, list[Upstream]]:
        """Every name that a client may ask for, groups and aliases included."""
        names: dict[str, list[Upstream]] = {}
        for upstream in self.upstreams.values():
            for name in (*upstream.models, *((upstream.settings.group,) if upstream.settings.group else ())):
                names.setdefault(name, []).append(upstream)
        for alias in self.aliases:
            if alias not in names and (found := self.target(alias).upstreams):
                names[alias] = list(found)
        return names

    def _resolve(self, name: str) -> Target:
        everybody = tuple(self.upstreams.values())
        name = name or self.default_model
        for _ in range(_ALIAS_DEPTH):
            if name not in self.aliases:
                break
            name = self.aliases[name]
        if not name:
            return Target("", everybody if len({up.models[:1] for up in everybody}) <= 1 else everybody[:1])
        serving = tuple(up for up in everybody if name in up.models or name in (up.settings.group, up.name))
        if serving:
            return Target(name, serving)
        if name in self.catalogue:                   # another model must not answer in its place
            return Target(name, ())
        unknown = tuple(up for up in everybody if not up.models)
        if unknown:
            return Target(name, unknown)
        # One llama-server with one model takes any name, and clients rely on that ("gpt-3.5-turbo").
        if len(everybody) == 1 and everybody[0].settings.backend is BackendKind.LLAMA_SERVER \
                and len(everybody[0].models) == 1:
            return Target(name, everybody)
        return Target(name, ())


def choose(upstreams: Collection[Upstream], *, sticky: str = "", tried: Collection[str] = ()) -> Upstream | None:
    """The upstream that should take a request now, None where none may.

    One that was tried already is taken again only when there is no other. Among those that may take it, the one that
    has the conversation cached goes first, then the least loaded by its weight.
    """
    able = [upstream for upstream in upstreams if upstream.may_take()]
    able = [upstream for upstream in able if upstream.name not in tried] or able
    if not able:
        return None
    if len(able) == 1:
        return able[0]
    return min(able, key=lambda up: (up.health.state is Health.TRIAL, up.health.state is not Health.READY,
                                     up.name != sticky, _load(up), up.last_used))


def _load(upstream: Upstream) -> float:
    slots = upstream.slots or 1
    return (upstream.running + 1) / slots / max(upstream.settings.weight, 1e-6)


class Conversations:
    """Where the start of a conversation is cached: marks of its prefixes, the most recent ones."""

    def __init__(self, keep_seconds: float, clock: Callable[[], float]) -> None:
        self._keep = keep_seconds
        self._clock = clock
        self._seen: OrderedDict[bytes, tuple[str, float]] = OrderedDict()

    def find(self, marks: list[bytes]) -> str:
        """Name of the upstream that had the longest of these prefixes, "" where none had."""
        oldest = self._clock() - self._keep
        for mark in reversed(marks):
            found = self._seen.get(mark)
            if found is not None:
                if found[1] >= oldest:
                    return found[0]
                del self._seen[mark]
        return ""

    def remember(self, marks: list[bytes], upstream: str) -> None:
        """`upstream` has read this conversation."""
        now = self._clock()
        for mark in marks[-2:]:                  # all of it, and all but the last turn (asked again)
            self._seen[mark] = (upstream, now)
            self._seen.move_to_end(mark)
        while len(self._seen) > MOST_REMEMBERED:
            self._seen.popitem(last=False)

    def forget(self, upstream: str) -> None:
        """Its cache is gone."""
        for mark in [mark for mark, (name, _) in self._seen.items() if name == upstream]:
            del self._seen[mark]


def prefix_marks(asked: Mapping[str, object], model: str) -> list[bytes]:
    """A mark for each prefix of a conversation, the shortest first; a system message alone is no conversation."""
    digest = blake2b(model.encode("utf-8", "surrogatepass"), digest_size=12)
    for key in ("system", "instructions", "tools"):
        if key in asked:
            digest.update(_bytes(asked[key]))
    turns = asked.get("messages", asked.get("input", asked.get("prompt")))
    marks: list[bytes] = []
    if isinstance(turns, str):
        for begin in range(0, min(len(turns), BLOCK * MOST_MESSAGES), BLOCK):
            digest.update(turns[begin:begin + BLOCK].encode("utf-8", "surrogatepass"))
            marks.append(digest.digest())
        return marks
    if not isinstance(turns, list):
        return []
    for turn in turns[:MOST_MESSAGES]:
        digest.update(_bytes(turn))
        if not (isinstance(turn, Mapping) and turn.get("role") in ("system", "developer")) or marks:
            marks.append(digest.digest())
    return marks


def _bytes(value: object) -> bytes:
    try:
        return json.dumps(value, separators=(",", ":")).encode()
    except (ValueError, TypeError, RecursionError):
        return b""
