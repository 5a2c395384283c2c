"""Three kinds of figure, each broken on purpose: what cannot be trusted is unknown, and says why."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from fleet.experts.counters import Counters, Tally
from fleet.experts.estimate import estimated_hit_rate
from fleet.experts.figures import Figure, Kind, exact_hit_rate, exact_missing
from fleet.experts.worst import LayerHits, layers_of, worst_layers

SLICE, TOKEN = 278_528, 80_216_064           # the mixture of 12 layers that was measured
COUNTERS = Counters(pid=7, layers=2, experts=2, moe_layers=2, used=1, token_bytes=200, passes=100, started=1.0,
                    updated=9.0, decode=Tally(50, 100, 80, 10_000, 1_500), prompt=Tally(0, 0, 0, 0, 0), prefetched=0,
                    spent=0.1, trace_bytes=0, unread=0, assumed=0, prefetches=True, blind=False, ambiguous=False,
                    trace_full=False, cells=bytes(64))
LATER = replace(COUNTERS, passes=200, decode=Tally(100, 200, 170, 20_000, 2_000))


def test_counted_figures_are_exact():
    assert exact_hit_rate(COUNTERS) == Figure(0.85, Kind.EXACT, "counted by the shim")
    assert exact_hit_rate(LATER, COUNTERS).value == 0.95 and exact_missing(LATER, COUNTERS).value == 10
    assert str(exact_hit_rate(COUNTERS)) == "0.850 (exact: counted by the shim)"


@pytest.mark.parametrize(("now", "before", "why"), [
    (replace(LATER, blind=True), COUNTERS, "another user"),
    (replace(LATER, ambiguous=True), COUNTERS, "Two models"),
    (replace(LATER, pid=8), COUNTERS, "started anew"),
    (replace(LATER, started=2.0), COUNTERS, "started anew"),
    (COUNTERS, LATER, "started anew"),
    (COUNTERS, COUNTERS, "Nothing was decoded"),
    (replace(LATER, unread=50), COUNTERS, "not understood"),
    (replace(COUNTERS, decode=Tally(1, 5, 6, 100, 0)), None, "contradict"),
    (replace(COUNTERS, decode=Tally(1, 5, 5, 100, 200)), None, "contradict"),
])
def test_a_broken_count_is_unknown(now: Counters, before: Counters | None, why: str):
    for figure in (exact_hit_rate(now, before), exact_missing(now, before)):
        assert figure.value is None and figure.kind is Kind.UNKNOWN and not figure.known and why in figure.why


@pytest.mark.parametrize(("true", "bound", "readahead", "corrected"), [
    (0.909, 0.807, 128, 0.90), (0.929, 0.909, 32, 0.927), (0.799, 0.728, 32, 0.78),
    (0.9445, 0.943, 0, 0.943), (0.826, 0.823, 0, 0.823),
])
def test_the_estimate_is_as_near_as_it_was_measured(true: float, bound: float, readahead: int, corrected: float):
    read = round((1 - bound) * 192 * TOKEN)
    figure = estimated_hit_rate(read, 192, TOKEN, slice_bytes=SLICE, readahead=readahead)
    assert figure.kind is Kind.ESTIMATED and figure.low == pytest.approx(bound, abs=0.001)
    assert figure.value == pytest.approx(corrected, abs=0.003) and abs(figure.value - true) < 0.02
    assert figure.low <= figure.value


@pytest.mark.parametrize(("changes", "why"), [
    ({"read": None}, "another user"), ({"tokens": None}, "--metrics"), ({"read": -5}, "started anew"),
    ({"tokens": -5}, "started anew"), ({"tokens": 0}, "Nothing was decoded"), ({"prompts": True}, "prompt"),
    ({"readahead": None}, "reads ahead"), ({"read": 600 * TOKEN}, "something else"),
    ({"resident": 1000, "cached": 300}, "outside the limit"), ({"token_bytes": 0}, "Nothing"),
    ({"readahead": 8192}, "drowns"),
])
def test_a_broken_estimate_is_unknown(changes: dict, why: str):
    whole = {"read": 20 * TOKEN, "tokens": 192, "token_bytes": TOKEN, "slice_bytes": SLICE, "readahead": 128} | changes
    figure = estimated_hit_rate(**whole)
    assert figure.value is None and figure.kind is Kind.UNKNOWN and why in figure.why
    if changes == {"readahead": None}:
        assert figure.low == pytest.approx(1 - 20 / 192)           # that much is sure all the same


def test_what_lies_within_the_limit_is_no_reason_for_doubt():
    assert estimated_hit_rate(0, 5, TOKEN, slice_bytes=SLICE, readahead=128, resident=1000, cached=1200).value == 1


def test_layers_are_told_apart():
    def cells(*rows: tuple[int, int]) -> bytes:
        return b"".join(struct.pack("=4I", requests, hits, 9, 9) for requests, hits in rows)

    before = replace(COUNTERS, cells=cells((4, 4), (4, 4), (2, 1), (2, 1)))
    now = replace(COUNTERS, cells=cells((8, 8), (8, 6), (6, 2), (2, 1)))
    assert layers_of(now, before) == (LayerHits(0, 8, 6), LayerHits(1, 4, 1))
    assert worst_layers(layers_of(now, before), 1) == (LayerHits(1, 4, 1),)
    assert LayerHits(1, 4, 1).rate == 0.25 and LayerHits(1, 0, 0).rate is None
    assert layers_of(replace(now, blind=True)) == layers_of(now, replace(before, pid=1)) == ()
