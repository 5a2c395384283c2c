"""Hits, bytes and speed of a mixture against its budget, predicted from a trace. Pure; bytes and seconds.

    seconds a token = those with all experts in memory + bytes that miss / the disk's rate of random reads

Measured (12 layers of 128 experts, 21 ms a token in memory, a disk that read experts at 415 MB/s): 4.3 MB a token at 29
to 37 tokens a second, where this says 32; 13.7 MB at 17 to 20 (18.4); 21.8 MB at 15 to 16 (13.5).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fleet.experts.figures import Figure, Kind
from fleet.experts.simulate import Lru, Requests, belady, lfu, static
from fleet.experts.worst import LayerHits

POINTS = 24
_DOUBTFUL = 0.05               # of a token's time: less is the difference of two figures that are hardly known as well
SOURCE = "simulated: LRU over a routing trace"


@dataclass(frozen=True, slots=True)
class Point:
    """One budget."""

    budget: int                # bytes, of all that the model takes
    room: int                  # of them, for experts
    hit_rate: float            # by experts, 0 to 1
    missing: float             # bytes that are read for a token
    speed: float | None        # tokens a second; None = the disk or the model's own time is not known
    present: bool = False      # the budget that it has


@dataclass(frozen=True, slots=True)
class Others:
    """Hit rates of other policies in the present room."""

    belady: float              # that knows the future
    lfu: float
    pinned: float              # the hottest of the first half, judged by the second


@dataclass(frozen=True, slots=True)
class Curve:
    """All budgets. Predicted, all of it."""

    points: tuple[Point, ...]          # by budget, the smallest first
    cliff: int                         # the budget below which nothing is hit: one token cycle beside what is fixed
    whole: int                         # from which on everything stays in memory
    new: float                         # the part of the requests that no cache can hit: first ones
    tokens: int                        # that the trace counts
    present: Point | None = None
    others: Others | None = None       # None = not worked out
    worst: tuple[LayerHits, ...] = ()  # every layer in the present room, the lowest rate first

    @property
    def oracle_gap(self) -> float | None:
        """What the best policy there could be would hit more in the present budget."""
        return max(0.0, self.others.belady - self.present.hit_rate) if self.others and self.present else None

    @property
    def hit_rate(self) -> Figure | None:
        """Of the present budget, as what it is."""
        return Figure(self.present.hit_rate, Kind.PREDICTED, SOURCE) if self.present else None


def curve_of(found: Lru, fixed: int, experts: int, *, budget: int = 0, disk_rate: float | None = None,
             compute: float | None = None, others: bool = False, points: int = POINTS,
             budgets: Sequence[int] = ()) -> Curve:
    """The curve of a model.

    Args:
        found: LRU over a trace of it, with the bytes of its experts.
        fixed: bytes that it needs beside experts (`Needs.fixed`).
        experts: bytes of all of its experts.
        budget: the present one; 0 = there is none.
        disk_rate: bytes a second that its disk gives in random reads of experts.
        compute: seconds of a token with all experts in memory.
        others: work out other policies, too: a second or two for a long trace.
        budgets: further ones to be on the curve.
    """
    requests = found.requests
    cycle = cycle_of(requests)
    cliff, whole = fixed + cycle, fixed + experts
    wanted = {fixed + experts * step // points for step in range(points + 1)} | {cliff, *budgets}
    if budget:
        wanted.add(budget)

    def point(at: int) -> Point:
        room = max(0, min(experts, at - fixed))
        missing = found.missing(room)
        return Point(at, room, found.hit_rate(room), missing, speed_of(missing, disk_rate, compute), at == budget)

    every = tuple(point(at) for at in sorted(wanted) if at > 0)
    present = next((one for one in every if one.present), None)
    told, worst = None, ()
    if present is not None:
        worst = tuple(sorted(found.layers(present.room), key=lambda one: (one.rate or 0.0, one.layer)))
        if others:
            told = Others(belady(requests, present.room), lfu(requests, present.room), static(requests, present.room))
    return Curve(every, cliff, whole, found.new, requests.tokens, present, told, worst)


def cycle_of(requests: Requests) -> int:
    """Bytes of the experts of one token."""
    return requests.used * sum(requests.sizes.values())


def speed_of(missing: float, disk_rate: float | None, compute: float | None) -> float | None:
    """Tokens a second; None where one of the two is not known."""
    if not disk_rate or compute is None or disk_rate <= 0 or compute < 0:
        return None
    seconds = compute + missing / disk_rate
    return 1 / seconds if seconds > 0 else None


def compute_from(speed: float, missing: float, disk_rate: float) -> float | None:
    """Seconds of a token with all experts in memory, of a head that runs at so many tokens a second.

    None where its reads alone would take about as long: then fewer bytes miss than is thought, or its disk is faster.
    """
    if speed <= 0 or disk_rate <= 0:
        return None
    found = 1 / speed - missing / disk_rate
    return found if found > _DOUBTFUL / speed else None
