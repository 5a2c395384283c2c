"""What a round costs, and how often a drafter is right."""

from __future__ import annotations

import random

import pytest

from fleet.speculation.acceptance import Acceptance
from fleet.speculation.costs import RoundCost, counts, evaluated_tokens


@pytest.mark.parametrize(("draft_length", "stride", "emitted", "accepted", "seen"), [
    (8, 1, 1, 0, 45), (8, 1, 9, 8, 81), (8, 1, 2, 1, 46), (8, 1, 4, 3, 51), (8, 1, 8, 7, 73), (8, 1, 6, 5, 60),
    (4, 1, 1, 0, 15), (4, 1, 2, 1, 16), (4, 1, 3, 2, 18), (4, 1, 4, 3, 21), (4, 1, 5, 4, 25),
    (2, 1, 3, 2, 9), (2, 1, 1, 0, 6), (8, 2, 2, 0, 29), (8, 2, 2, 1, 25), (4, 2, 2, 0, 11)])
def test_tokens_that_llama_server_was_seen_to_evaluate(draft_length: int, stride: int, emitted: int, accepted: int,
                                                       seen: int) -> None:
    assert evaluated_tokens(draft_length, stride, emitted, accepted) == seen


def test_the_unknowns_are_found_from_rounds() -> None:
    truth, random_ = (0.030, 0.070, 0.0044, 0.008), random.Random(1)
    cost = RoundCost()
    for _ in range(200):
        stride = random_.choice([1, 2, 4])
        length = stride * random_.randint(1, 4)
        right = random_.randint(0, length)
        amounts = counts(length, stride, (right // stride + 1) * stride, right)
        cost.observe(amounts, sum(a * b for a, b in zip(amounts, truth, strict=True)) * random_.gauss(1, 0.02))
    assert cost.predict(counts(8, 1, 4, 3), 0.070) == pytest.approx(0.030 + 0.070 + 51 * 0.0044 + 9 * 0.008, rel=0.05)


def test_one_round_and_a_prompt_say_what_a_longer_draft_takes() -> None:
    cost = RoundCost()
    cost.read(200, 0.050 + 200 * 0.0044)
    cost.observe((1.0, 1.0, 15.0, 5.0), 0.156)
    assert cost.predict((1.0, 1.0, 45.0, 9.0), 0.020) == pytest.approx(0.31, rel=0.2)


def test_unknowns_are_never_negative() -> None:
    cost = RoundCost()
    for tokens, seconds in ((5, 0.2), (25, 0.1), (45, 0.05)):
        cost.observe((1.0, 1.0, float(tokens), 5.0), seconds)
    assert min(cost.unknowns(0.05)) >= 0


def test_a_stretch_of_expected_tokens_follows_the_formula() -> None:
    record, random_ = Acceptance(), random.Random(2)
    for _ in range(4000):
        record.observe(8, next((k for k in range(8) if random_.random() > 0.8), 8))
    assert record.emitted(8, 1) == pytest.approx((1 - 0.8**9) / 0.2, rel=0.15)
    assert record.emitted(8, 4) == pytest.approx(4 * (1 + 0.8**4 + 0.8**8), rel=0.15)
    assert record.emitted(0, 1) == 1


def test_a_change_is_noticed_after_a_few_rounds_and_chance_is_not() -> None:
    random_ = random.Random(3)
    record, alarms = Acceptance(), 0
    for _ in range(1000):
        alarms += record.observe(4, next((k for k in range(4) if random_.random() > 0.8), 4))
    assert alarms <= 10
    rounds = next(n for n in range(1, 20) if record.observe(4, 0))
    assert rounds <= 6 and record.at(0) < 0.6


def test_positions_are_told_apart() -> None:
    record = Acceptance()
    for _ in range(60):
        record.observe(4, 2)
    assert record.at(0) > 0.9 and record.at(1) > 0.9 and record.at(2) < 0.15


def test_a_draft_that_is_not_there_is_a_wrong_one() -> None:
    record = Acceptance()
    for _ in range(60):
        record.observe(4, 0)
    assert record.emitted(4, 1) < 1.2


@pytest.mark.parametrize(("asked", "accepted"), [(0, 0), (-3, 2), (4, 99), (1000, 1000)])
def test_odd_figures_do_no_harm(asked: int, accepted: int) -> None:
    record = Acceptance()
    record.observe(asked, accepted)
    assert 0 <= record.rate <= 1 and 1 <= record.emitted(8, 1) <= 9
