"""What a speculating session and the controller that steers it tell each other.

The session asks `choose()` before each round and hands what came of it to `record()`. Both sides see nothing else of
each other, so either can be tested alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol


class Mode(StrEnum):
    """A way to get the target's next tokens. Every one of them is exact; they differ in what they cost."""

    PLAIN = "plain"  # the target alone, one token a pass
    NATIVE = "native"  # the head speculates by itself (draft model, n-grams or MTP among its flags)
    STRIDED = "strided"  # one request with a list of prompts: context + draft[:0], [:s], [:2s] ...
    INJECTION = "injection"  # the draft is put into the head's n-gram pool by a side request


@dataclass(frozen=True, slots=True)
class Choice:
    """What to do next.

    `draft_length` is N and `stride` s of STRIDED; N is the length of one injection for INJECTION. For PLAIN and NATIVE
    nothing is drafted by the session. These two and INJECTION are stretches: `stretch` says after how many tokens the
    controller wants to be asked again, 0 = not before this request is finished. A session may end a stretch early
    (stop string, length).
    """

    mode: Mode
    draft_length: int = 0  # tokens
    stride: int = 1  # tokens
    drafter: str = ""  # name of the drafter to take, "" = none is needed
    reason: str = ""  # a sentence for a person
    stretch: int = 0  # tokens
    ready_length: int = 0  # N of a draft that is there without waiting, 0 = as of any other


@dataclass(frozen=True, slots=True)
class Round:
    """One finished round, or for PLAIN, NATIVE and INJECTION a stretch of `emitted` tokens in `verify_seconds`.

    `accepted` counts the leading drafted tokens that the target chose too, wherever the round ended. A draft may be
    shorter than what was asked for (`drafted` < `draft_length`), and one that was ready in time longer.
    `verify_seconds` is the time from the request to the target until its answer is whole; `draft_seconds` is what was
    waited for the draft *besides*, so a draft that was ready in time, prepared while the round before was verified,
    cost 0. For NATIVE and INJECTION `drafted` and `accepted` are the head's own counts (`draft_n`, `draft_n_accepted`
    of its timings).
    Reading a new prompt is no part of a PLAIN or NATIVE stretch: the first one of a request counts the tokens behind
    its first, and the seconds since that. What the prompt took may be told beside it (`read_tokens`, `read_seconds`):
    it says what a token more in a batch costs before any draft was made. A STRIDED round tells all its seconds, those
    in which its slots read what they had not yet seen of the context too: that is a cost of the mode.
    """

    mode: Mode
    draft_length: int  # N that was asked for
    stride: int
    context: int  # tokens before the round
    drafted: int
    accepted: int
    emitted: int  # tokens that went out
    draft_seconds: float
    verify_seconds: float
    drafter: str = ""
    read_tokens: int = 0  # of a new prompt that was read just before, by the target's timings (prompt_n)
    read_seconds: float = 0.0  # and how long that took (prompt_ms); no part of `verify_seconds`


class Steering(Protocol):
    """The controller as a session sees it. Neither method blocks, and neither raises for odd figures."""

    def choose(self, context: int) -> Choice:
        """What to do next with `context` tokens in front of it."""
        ...

    def record(self, round: Round) -> None:
        """Take note of a finished round. Rounds that emitted nothing, or failed, may be told as well."""
        ...

    def state(self) -> dict[str, Any]:
        """Figures for the Draft screen, ready for JSON: see `fleet.speculation.controller.Controller.state`."""
        ...
