"""The honesty meter."""

from __future__ import annotations

import json
import random

import pytest

from fleet.speculation.honesty import BATCH_NOTE, HonestyMeter


def meter(share: float = 1.0, seed: int = 1) -> HonestyMeter:
    return HonestyMeter(share, clock=lambda: 5.0, random=random.Random(seed).random)


def test_all_alike_says_so() -> None:
    made = meter()
    for _ in range(40):
        assert made.sample(temperature=0, drafted=4, written=3)
        made.compare([1, 2, 3], [1, 2, 3])
    assert made.verdict == "identical 40/40" and made.state()["note"] == ""


def test_the_first_difference_is_shown_with_the_note_about_kernels() -> None:
    made = meter()
    made.compare([1, 2, 3, 4], [1, 2, 9, 4])
    state = json.loads(json.dumps(made.state()))
    assert state["verdict"] == "identical 0/1, first difference at token 3"
    assert state["difference"] == {"token": 2, "drafted": [3, 4], "plain": [9, 4]}
    assert state["note"] == BATCH_NOTE
    assert made.state(quantised=False)["note"] == ""       # with F32 weights there is no such excuse


@pytest.mark.parametrize(("drafted", "plain", "at"), [([1, 2], [1, 2, 3], 2), ([1, 2, 3], [1, 2], 2), ([], [1], 0)])
def test_an_answer_that_ends_early_differs_there(drafted: list[int], plain: list[int], at: int) -> None:
    assert meter().compare(drafted, plain).differs_at == at


@pytest.mark.parametrize("request_", [
    {"temperature": 0.8, "drafted": 4, "written": 9}, {"temperature": 0, "drafted": 0, "written": 9},
    {"temperature": 0, "drafted": 4, "written": 0}])
def test_what_cannot_be_compared_is_not_sampled(request_: dict) -> None:
    assert not meter().sample(**request_)


def test_off_is_off() -> None:
    made = meter(0)
    assert not any(made.sample(temperature=0, drafted=4, written=9) for _ in range(100))
    assert made.verdict == "not checked"


def test_about_its_share_is_sampled_and_one_at_a_time() -> None:
    made, sampled = meter(0.1), 0
    for _ in range(2000):
        if made.sample(temperature=0, drafted=4, written=9):
            sampled += 1
            assert not made.sample(temperature=0, drafted=4, written=9)
            made.gave_up()
    assert 140 < sampled < 260 and made.failed == sampled


def test_old_comparisons_make_way() -> None:
    made = meter()
    made.compare([1], [2])
    for _ in range(500):
        made.compare([1], [1])
    assert made.verdict == "identical 500/501" and made.compared == 501
