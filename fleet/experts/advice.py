"""What a curve of budgets means, in sentences. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fleet.experts.curve import Curve, Point
from fleet.experts.worst import LayerHits

MOST_OF_IT = 0.75              # of what all memory there could be would give: the advice takes the least that gives it
WORTH = 1.1                    # times the speed, or the bytes; less is not worth a sentence of its own
LOST = 0.97                    # of the speed that has to stay where memory could be given back
GAP = 0.02                     # of the hit rate


def advice(curve: Curve) -> tuple[str, ...]:
    """What to do about the present budget; without one what the curve says of any."""
    now = curve.present
    if now is None:
        return (f"Below {_size(curve.cliff)} nothing is hit; from {_size(curve.whole)} on everything stays in memory.",
                *_steps(curve))
    if now.budget < curve.cliff:
        return (f"With {_size(now.budget)} not one expert is hit: less than the experts of one token fit. From "
                f"{_size(curve.cliff)} on some are.",)
    if now.budget >= curve.whole:
        return (f"{_size(now.budget)} hold all of it: more would change nothing.",)
    told = [more(curve), less(curve), _gap(curve), _worst(curve.worst)]
    return tuple(sentence for sentence in told if sentence)


def more(curve: Curve) -> str:
    """The next budget that is worth it."""
    now = curve.present
    above = [point for point in curve.points if now and point.budget > now.budget]
    if now is None or not above:
        return ""
    most = _gain(now, above[-1])
    if most < WORTH:
        return (f"More memory would hardly help: all of it ({_size(curve.whole)}) would lift hits from "
                f"{now.hit_rate:.2f} to {above[-1].hit_rate:.2f}{_times(now, above[-1])}.")
    good = next(point for point in above if math.log(_gain(now, point)) >= MOST_OF_IT * math.log(most))
    return (f"{_size(good.budget - now.budget)} more would lift hits from {now.hit_rate:.2f} to {good.hit_rate:.2f}"
            f"{_times(now, good)}.")


def less(curve: Curve) -> str:
    """What could be given back at no cost."""
    now = curve.present
    if now is None:
        return ""
    enough = [point for point in curve.points
              if max(curve.cliff, 0) <= point.budget < now.budget and _gain(now, point) >= LOST]
    if not enough or now.budget - enough[0].budget < now.budget // 20:
        return ""
    return (f"{_size(now.budget - enough[0].budget)} could be given back: hits would be {enough[0].hit_rate:.2f} "
            f"instead of {now.hit_rate:.2f}{_times(now, enough[0])}.")


def _gap(curve: Curve) -> str:
    if curve.others is None or curve.present is None:
        return ""
    now, others = curve.present.hit_rate, curve.others
    told = (f"A cache that knew the future would hit {others.belady:.2f} in the same memory, "
            f"{max(0.0, others.belady - now):.2f} more.")
    if others.pinned > now + GAP:
        told += f" The hottest experts kept for good would hit {others.pinned:.2f}."
    return told


def _worst(layers: Sequence[LayerHits], count: int = 3) -> str:
    rated = [(layer.layer, layer.rate) for layer in layers if layer.rate is not None]
    if len(rated) < 2 or rated[-1][1] - rated[0][1] < GAP:
        return ""
    named = ", ".join(f"{layer} ({rate:.2f})" for layer, rate in rated[:count])
    return f"Layers that hit least: {named}; the best one {rated[-1][1]:.2f}."


def _steps(curve: Curve) -> tuple[str, ...]:
    found = []
    for wanted in (0.8, 0.9, 0.95):
        point = next((point for point in curve.points if point.hit_rate >= wanted), None)
        if point is not None:
            found.append(f"{_size(point.budget)} for {wanted:.2f}")
    return (f"Hits need {', '.join(found)}.",) if found else ()


def _gain(now: Point, other: Point) -> float:
    """How many times as fast; by bytes read where the speed is not known."""
    if now.speed and other.speed:
        return other.speed / now.speed
    return (now.missing + 1) / (other.missing + 1)


def _times(now: Point, other: Point) -> str:
    if now.speed and other.speed:
        return f", about {other.speed / now.speed:.1f}x" if abs(other.speed / now.speed - 1) >= 0.05 else ", as fast"
    return f", {other.missing / 1e6:.1f} instead of {now.missing / 1e6:.1f} MB read a token"


def _size(count: int) -> str:
    return f"{count / 1024**3:.1f} GiB" if count >= 1024**3 else f"{-(-count // 1024**2)} MiB"
