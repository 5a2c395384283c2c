"""Which piece next, from whom, and how fast: pure rules."""

from __future__ import annotations

import random

import pytest

from fleet.node.client import parse_peer
from fleet.node.limits import Throttle, TokenBucket, parse_rate
from fleet.node.pick import Rarity, best_source, share
from fleet.node.tracker import MOST_OF_ADDRESS, TTL, Tracker
from fleet.node.trouble import SwarmError
from fleet.node.turns import REST, Turns

ALL = set(range(40))


def test_the_rarest_piece_comes_first() -> None:
    rarity = Rarity(range(40), 40, random.Random(1))
    rarity.gain(ALL)
    rarity.gain(ALL - {7, 9})
    rarity.gain(ALL - {7})
    assert rarity.first([ALL]) == 7
    rarity.unwant(7)
    assert rarity.first([ALL]) == 9
    rarity.gain([9])
    rarity.lose([3])
    rarity.lose([3])
    assert rarity.first([ALL]) == 3
    assert rarity.first([ALL - {3}]) != 3


def test_equals_come_in_another_order_for_every_puller_and_in_order_from_one_source() -> None:
    def order(seed: int, in_order: bool = False) -> list[int]:
        rarity, taken = Rarity(range(40), 40, random.Random(seed)), []
        rarity.set_in_order(in_order)
        rarity.gain(ALL)
        while (index := rarity.first([ALL])) is not None:
            taken.append(index)
            rarity.unwant(index)
        return taken

    assert order(1) == order(1) != order(2)
    assert sorted(order(1)) == order(3, in_order=True) == list(range(40))


def test_what_nobody_has_is_not_chosen_and_what_is_wanted_again_is() -> None:
    rarity = Rarity([1, 2], 5, random.Random(1))
    assert rarity.first([ALL]) is None
    rarity.gain([1])
    assert rarity.first([{2}]) is None
    assert rarity.first([{1}]) == 1
    rarity.unwant(1)
    assert rarity.first([{1}]) is None
    rarity.want(1)
    assert rarity.first([{1}]) == 1
    assert len(rarity) == 2


def test_peers_that_come_and_go_a_thousand_times_do_not_fill_the_memory() -> None:
    rarity = Rarity(range(40), 40, random.Random(1))
    for _ in range(1_000):
        rarity.gain(ALL)
        rarity.lose(ALL)
    rarity.gain([5])
    assert sum(map(len, rarity._heaps.values())) < 8 * 40 + 1_100
    assert rarity.first([ALL]) == 5


def test_work_is_shared_by_measured_speed() -> None:
    active, counts = [0, 0], [0, 0]
    for _ in range(12):
        chosen = best_source([(30e6, active[0]), (10e6, active[1])])
        active[chosen] += 1
        counts[chosen] += 1
    assert counts == [9, 3]
    assert best_source([(10e6, 1), (0.0, 0)]) == 1
    assert share(1_000_000, 1.0, 3.0, 1_000) == 750_000
    assert share(1_000_000, 0.0, 0.0, 1_000) == 500_000
    assert share(500, 1.0, 1.0, 1_000) == 0


def test_a_bucket_gives_its_rate_and_no_more() -> None:
    now = [0.0]
    bucket = TokenBucket(1_000.0, lambda: now[0])
    sent = 0
    while now[0] < 10.0:
        sent += 100
        now[0] += bucket.reserve(100)
    assert 10_000 <= sent <= 10_500
    bucket.set_rate(0)
    assert bucket.reserve(10 ** 9) == 0


def test_a_peer_has_its_own_limit_within_the_total() -> None:
    now = [0.0]
    throttle = Throttle(10_000, 1_000, lambda: now[0])
    throttle.reserve("a", 1_250)
    assert throttle.reserve("a", 1_000) == pytest.approx(2.0)
    assert throttle.reserve("b", 250) == 0.0
    for number in range(3_000):
        throttle.reserve(str(number), 1)
    assert len(throttle._peers) <= 1_024


@pytest.mark.parametrize(("text", "rate"), [("50M", 50e6), ("800k", 8e5), ("1.5G", 1.5e9), ("0", 0), ("1234", 1234)])
def test_a_rate_is_read(text: str, rate: float) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "fast", "-1", "nan", "inf", "1e30", "M"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - argparse words it
        parse_rate(text)


@pytest.mark.parametrize(("text", "url"), [
    ("tower", "http://tower:9080"), ("10.0.0.7:81", "http://10.0.0.7:81"), ("http://[fd00::1]:9/", "http://[fd00::1]:9"),
    ("http://tower:9080/models/a%20b", "http://tower:9080/models/a%20b"),
])
def test_a_peer_is_read(text: str, url: str) -> None:
    assert parse_peer(text).url == url


@pytest.mark.parametrize("text", ["", "https://x", "file:///etc/passwd", "http://u:p@x", "http://x:99999", "http://x/?a",
                                  "http://x/#a", "http://a b", "http://x/\r\nHost: y", "x" * 600, "http://", "http://[::1"])
def test_what_is_no_peer_is_refused(text: str) -> None:
    with pytest.raises(SwarmError):
        parse_peer(text)


def test_a_source_that_gives_once_hides_what_it_gave_and_shows_it_again_in_the_end() -> None:
    now = [0.0]
    turns = Turns([0, 1, 2], lambda: now[0])
    assert turns.begin(1)
    assert turns.shown.snapshot() == (0, 2)
    assert not turns.begin(1)
    turns.end(1, sent=False)
    assert turns.shown.snapshot() == (0, 1, 2)
    for index in (0, 1, 2):
        assert turns.begin(index)
        turns.end(index, sent=True)
    assert turns.shown.snapshot() == ()
    turns.look()
    assert not turns.begin(0)
    now[0] = REST
    turns.look()
    assert turns.shown.snapshot() == (0, 1, 2)
    assert turns.begin(0)


def test_the_tracker_forgets_and_is_bounded() -> None:
    now = [0.0]
    tracker = Tracker(lambda: now[0])
    one, other = "a" * 64, "b" * 64
    assert tracker.announce(one, "10.0.0.1", 9080) == []
    assert tracker.announce(one, "10.0.0.2", 9080) == [("10.0.0.1", 9080)]
    assert tracker.announce(other, "10.0.0.3", 9080) == []
    now[0] = TTL + 1
    assert tracker.announce(one, "10.0.0.1", 0) == []
    for port in range(1, 500):
        tracker.announce(one, "10.0.0.9", port)
    assert len(tracker._swarms[one]) == MOST_OF_ADDRESS
    for number in range(600):
        tracker.announce(f"{number:064x}", f"10.1.{number // 200}.{number % 200}", 9080)
    assert len(tracker._swarms) <= 256
