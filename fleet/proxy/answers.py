"""What goes to an upstream so that its answer can be counted, and answers that come at once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from fleet.proxy.exchange import RepairSettings
from fleet.proxy.tool_calls import number_whole
from fleet.proxy.usage import Usage, usage_of, usage_of_timings

_ASKED = frozenset(("chat", "completion"))      # whose streams tell usage only when they are asked


def wants_usage(body: Mapping[str, object]) -> bool:
    """The client asked for usage in its stream; an answer that comes at once always has it."""
    if body.get("stream") is not True:
        return True
    options = body.get("stream_options")
    return isinstance(options, Mapping) and options.get("include_usage") is True


def prepare_request(body: dict[str, object], settings: RepairSettings, kind: str = "chat") -> dict[str, object]:
    """The request with `stream_options.include_usage`, where it streams; the very same object where nothing changes.

    Leave it out for llama-server: it tells its counts in `timings` unasked, and moves them from the last chunk with a
    choice into the one for usage when it is asked, so that the client would get another stream than directly.
    """
    if kind not in _ASKED or not settings.usage or body.get("stream") is not True or wants_usage(body):
        return body
    options = body.get("stream_options")
    if options is not None and not isinstance(options, Mapping):
        return body                                # wrong: the server says so better than we could
    return {**body, "stream_options": {**(options or {}), "include_usage": True}}


@dataclass(frozen=True, slots=True)
class WholeAnswer:
    """An answer that came at once: the bytes for the client and what was read of them."""

    body: bytes
    usage: Usage | None = None
    timings: Mapping[str, object] = field(default_factory=dict)
    repairs: tuple[str, ...] = ()
    failed: bool = False                           # it is an error object

    @property
    def tokens(self) -> int:
        """Tokens of the answer, as the server counts."""
        return self.usage["completion_tokens"] if self.usage else 0


def repair_answer(body: bytes, settings: RepairSettings) -> WholeAnswer:
    """Read an answer that came at once, and number its tool calls where two have one index.

    The bytes stay as they are unless something is repaired, also when they are no JSON at all.
    """
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        return WholeAnswer(body)
    if not isinstance(said, dict):
        return WholeAnswer(body)
    timings = said.get("timings")
    usage = usage_of(said.get("usage")) or usage_of_timings(timings)
    changed = False
    choices = said.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        message = choice.get("message") if isinstance(choice, dict) else None
        if isinstance(message, dict) and settings.tool_call_index:
            changed |= number_whole(message.get("tool_calls"))
    return WholeAnswer(json.dumps(said, separators=(",", ":")).encode() if changed else body, usage,
                       timings if isinstance(timings, Mapping) else {}, ("tool_call_index",) if changed else (),
                       bool(said.get("error")))
