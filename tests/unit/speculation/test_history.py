"""What is shown of speculation over time."""

from __future__ import annotations

from fleet.speculation.choice import Mode, Round
from fleet.speculation.history import EVERY, KEPT, History


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def drafted(right: int, of: int = 4) -> Round:
    return Round(Mode.STRIDED, of, 1, 10, of, right, right + 1, 0.01, 0.09, "draft")


def test_rounds_of_a_few_seconds_become_one_sample() -> None:
    clock = Clock()
    history = History(clock)
    history.note(drafted(4))
    history.note(drafted(1))
    clock.now += EVERY
    history.note(Round(Mode.PLAIN, 32, 1, 20, 0, 0, 8, 0.0, 0.4))
    first, second = history.state()
    assert first == {"seconds_ago": EVERY, "mode": "strided", "draft_length": 4, "stride": 1, "drafted": 8,
                     "accepted": 5, "acceptance": 0.625, "tokens_a_round": 3.5, "tokens_per_second": 35.0}
    assert (second["mode"], second["acceptance"], second["tokens_a_round"]) == ("plain", None, None)
    assert second["tokens_per_second"] == 20.0


def test_a_heads_own_counts_are_told_by_what_is_new_in_them() -> None:
    clock = Clock()
    history = History(clock)
    history.counted(10, 5)
    clock.now += EVERY
    history.counted(10, 5)                 # nothing new
    history.counted(30, 20)
    clock.now += EVERY
    history.counted(4, 4)                  # it counts from its start again
    assert [one["acceptance"] for one in history.state()] == [0.5, 0.75, 1.0]
    assert {one["mode"] for one in history.state()} == {"native"}


def test_no_more_is_kept_than_is_shown() -> None:
    clock = Clock()
    history = History(clock)
    for _ in range(3 * KEPT):
        clock.now += EVERY
        history.note(drafted(2))
    assert len(history.state()) == KEPT


def test_what_gave_nothing_is_no_sample() -> None:
    history = History(Clock())
    history.note(Round(Mode.STRIDED, 4, 1, 10, 4, 0, 0, 0.0, 0.1, "draft"))
    assert history.state() == []
