"""One figure of an expert cache with where it comes from: counted, estimated, predicted, or unknown and why. Pure.

Never mixed: a hit rate that was counted and one that a simulation predicts are both numbers between 0 and 1, and look
alike; so each carries its kind as long as it lives. What cannot be trusted is unknown, never a number that may be
wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from fleet.experts.counters import Counters, Tally

BLIND = ("The model's file belongs to another user and cannot be written: the kernel does not tell what of it is in "
         "memory.")
AMBIGUOUS = "Two models with experts run in that process: which of them was asked is not known."
RESTARTED = "The head was started anew between the two readings."
NOTHING = "Nothing was decoded between the two readings."
BESIDE = "The counters contradict each other."
SHIM = "counted by the shim"
_UNREAD = 0.01                 # of all passes: so many may be left out before a rate is none any more


class Kind(StrEnum):
    """What a figure is worth."""

    EXACT = "exact"                # counted where it happens
    ESTIMATED = "estimated"        # worked out from something else that was measured
    PREDICTED = "predicted"        # of a simulation
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Figure:
    """A number and its label."""

    value: float | None            # None = unknown
    kind: Kind
    source: str                    # in words: "counted by the shim"
    low: float | None = None       # what it is at the least, where that is surer than the value
    why: str = ""                  # unknown: why, a sentence

    @property
    def known(self) -> bool:
        """Whether there is a number."""
        return self.value is not None

    def __str__(self) -> str:
        if self.value is None:
            return f"unknown: {self.why}"
        bound = f", at least {self.low:.3f}" if self.low is not None else ""
        return f"{self.value:.3f} ({self.kind.value}: {self.source}{bound})"


def unknown(source: str, why: str, low: float | None = None) -> Figure:
    """A figure that there is none of."""
    return Figure(None, Kind.UNKNOWN, source, low, why)


def exact_hit_rate(now: Counters, before: Counters | None = None) -> Figure:
    """The part of the experts' bytes that were in memory when decoding asked for them, 0 to 1.

    Args:
        now: the newer reading.
        before: an earlier one of the same server; None = since it started.
    """
    added = _added(now, before)
    if isinstance(added, str):
        return unknown(SHIM, added)
    return Figure(added.byte_hit_rate, Kind.EXACT, SHIM)


def exact_missing(now: Counters, before: Counters | None = None) -> Figure:
    """Bytes that had to be read for each decoded token."""
    added = _added(now, before)
    if isinstance(added, str):
        return unknown(SHIM, added)
    return Figure(added.missing_per_token, Kind.EXACT, SHIM)


def _added(now: Counters, before: Counters | None) -> Tally | str:
    """What was decoded, or why that is not known."""
    if not now.exact:
        return BLIND if now.blind else AMBIGUOUS
    if before is not None and (before.pid, before.started) != (now.pid, now.started):
        return RESTARTED
    added = now.decode.since(before.decode) if before else now.decode
    passes, unread = now.passes - (before.passes if before else 0), now.unread - (before.unread if before else 0)
    if min(added.tokens, added.requests, added.hits, added.bytes, added.missing, passes, unread) < 0:
        return RESTARTED
    if unread > _UNREAD * (passes + unread):
        return f"{unread} of {passes + unread} passes were not understood: this llama.cpp names its tensors otherwise."
    if not added.tokens or not added.bytes:
        return NOTHING
    if added.hits > added.requests or added.missing > added.bytes:
        return BESIDE
    return added
