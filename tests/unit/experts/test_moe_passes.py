"""Drafts over streamed experts: the laws with the figures that were measured elsewhere, and on traces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_trace import made

from fleet.errors import ModelFileError
from fleet.experts.passes import (
    break_even,
    break_even_of,
    judge_passes,
    judge_ratio,
    misses_with_drafts,
    overlap_of,
    speed_up,
    tokens_a_pass,
    union_by_chance,
    union_from_overlap,
    union_of,
)
from fleet.experts.trace import Routed, Trace

RHO = (16 - 12.68) / 8                   # 12.68 of 256 experts for two tokens of 8


def test_the_measured_union_and_its_break_even():
    assert union_by_chance(256, 8, 2) == pytest.approx(15.75)
    assert pytest.approx(0.415) == RHO and union_from_overlap(8, RHO) == pytest.approx(12.68)
    union = 8 / RHO
    assert union == pytest.approx(19.3, abs=0.05)                      # experts that are really in question
    assert union_from_overlap(8, RHO) / 8 == pytest.approx(1.585)
    assert tokens_a_pass(0.574, 2) == pytest.approx(1.574)
    assert break_even(RHO) == pytest.approx(0.585)


def test_the_measured_acceptance_is_just_below():
    verdict = judge_passes(8, RHO, 0.574)
    assert verdict.loses and verdict.experts / verdict.tokens == pytest.approx(1.007, abs=0.0005)
    assert verdict.sentence == (
        "Speculation loses here, by 1 %: a pass over 2 tokens reads 1.585 times the experts of one and writes 1.574 "
        "tokens at an acceptance of 0.574; from 0.585 on it would win.")
    assert not judge_passes(8, RHO, 0.586).loses


def test_a_wide_drafter_cannot_catch_up():
    """2.8 times the experts for at most 2.0 tokens, as 5 tokens by chance and drafts that are right half the time."""
    assert tokens_a_pass(0.5, 50) == pytest.approx(2.0)
    for width in (3, 4, 5, 8):
        verdict = judge_ratio(2.8, 0.5, width=width)
        assert verdict.loses and verdict.experts > 2.0 > verdict.tokens
        assert "wider passes cannot help, 2.00 tokens are the most" in verdict.sentence
    assert judge_ratio(2.8, 1.0, width=2).break_even is None


def test_a_cache_makes_it_harsher():
    verdict = judge_passes(8, RHO, 0.85, misses=1.22)
    assert verdict.loses and "1.22 times as much has to be read for a token" in verdict.sentence
    assert not judge_passes(8, RHO, 0.95, misses=1.0).loses


@given(st.floats(0, 1), st.integers(1, 9), st.integers(1, 32))
def test_a_union_is_between_one_token_and_all(rho: float, width: int, used: int):
    union = union_from_overlap(used, rho, width)
    assert used - 1e-6 <= union <= used * width + 1e-6
    assert union_from_overlap(used, rho, 2) == pytest.approx(used * (2 - rho))
    assert tokens_a_pass(break_even(rho), width) == pytest.approx(union / used, abs=1e-6)


@given(st.floats(1, 4), st.floats(0, 1), st.integers(2, 8))
def test_a_verdict_is_the_ratio(experts: float, acceptance: float, width: int):
    verdict = judge_ratio(experts, acceptance, width=width)
    assert verdict.loses == (verdict.tokens < experts)
    even = break_even_of(experts, width)
    if even is not None and abs(acceptance - even) > 1e-6:
        assert verdict.loses == (acceptance < even)


def test_fixed_cost_is_what_drafts_save():
    assert speed_up(1.574, 1.585, fixed=0.0, reading=0.03) < 1 < speed_up(1.574, 1.585, fixed=0.03, reading=0.01)
    assert speed_up(1.9, 1.5, fixed=0.01, reading=0.01, draft=0.05) < 1
    assert speed_up(2, 1, fixed=0, reading=0) == 1


def test_a_trace_tells_its_overlap_and_unions():
    trace = Trace(1, 8, 1, (Routed(0, ((0, 1),)), Routed(0, ((1, 2),)), Routed(0, ((3, 4),)), Routed(0, ((3, 4),))))
    assert overlap_of(trace) == pytest.approx(3 / 6)
    assert union_of(trace, 2) == pytest.approx((3 + 4 + 2) / 3) and union_of(trace, 5) is None
    # A prompt stands between two answers: what is before it is no neighbour of what comes after.
    parted = Trace(1, 8, 1, (trace.passes[0], Routed(0, ((5, 6), (6, 7))), trace.passes[1]))
    assert overlap_of(parted) is None
    assert overlap_of(Trace(1, 8, 1, ())) is None


def test_the_law_of_overlap_holds_on_a_trace():
    trace = made(layers=3, experts=64, used=6, tokens=300)
    rho = overlap_of(trace)
    assert union_of(trace, 2) == pytest.approx(union_from_overlap(6, rho), abs=0.05)


def test_drafts_save_no_miss():
    trace = made(layers=3, experts=48, used=4, tokens=400)
    room = 3 * 12
    ratios = [misses_with_drafts(trace, room, acceptance) for acceptance in (0.0, 0.574, 0.85, 1.0)]
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[0] > 1.4 and ratios[1] > 1.15 and ratios[3] == pytest.approx(1.0, abs=0.03)
    assert misses_with_drafts(trace, 3 * 48, 0.5) is None or misses_with_drafts(trace, 3 * 48, 0.5) <= 1.5
    with pytest.raises(ModelFileError):
        misses_with_drafts(Trace(1, 2, 1, ()), 1, 0.5)
