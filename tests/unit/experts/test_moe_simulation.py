"""Simulated caches against what one would do by hand: LRU in every room, LFU, Belady, pinned experts."""

from __future__ import annotations

from collections import Counter, OrderedDict
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_trace import made

from fleet.errors import ModelFileError
from fleet.experts import simulate
from fleet.experts.simulate import belady, lfu, lru, pinned, requests_of, static
from fleet.experts.trace import Routed, Trace

LAYERS, EXPERTS = 3, 5
rows = st.lists(st.lists(st.integers(0, EXPERTS - 1), min_size=2, max_size=2, unique=True).map(tuple), min_size=1,
                max_size=3).map(tuple)
passes = st.lists(st.builds(Routed, st.integers(0, LAYERS - 1), rows), min_size=1, max_size=60).map(tuple)
traces = passes.map(lambda many: Trace(LAYERS, EXPERTS, 2, (Routed(0, ((0, 1),)), *many)))
layer_bytes = st.fixed_dictionaries({layer: st.integers(1, 4) for layer in range(LAYERS)})


def by_hand(requests, room: int) -> tuple[int, int, dict[int, int]]:
    """Hits, their bytes and hits by layer, of a list of the newest that fit."""
    kept: OrderedDict[int, int] = OrderedDict()
    hits = found = 0
    layers: Counter[int] = Counter()
    for key, counts in zip(requests.keys, requests.counted, strict=True):
        size = requests.sizes[key // requests.experts]
        # Whole in memory, as the stack has it: the newest ones that fit into the room together.
        total, inside = 0, False
        for other, its in reversed(kept.items()):
            total += its
            if other == key:
                inside = total <= room
                break
        if counts and inside:
            hits, found = hits + 1, found + size
            layers[key // requests.experts] += 1
        kept[key] = size
        kept.move_to_end(key)
    return hits, found, dict(layers)


@given(traces, layer_bytes)
@settings(max_examples=150, deadline=None)
def test_lru_of_all_rooms_at_once_is_that_of_each(trace: Trace, sizes: dict[int, int]):
    requests = requests_of(trace, sizes)
    found = lru(requests)
    for room in range(sum(sizes.values()) * EXPERTS + 2):
        hits, bytes_hit, layers = by_hand(requests, room)
        assert found.hit_rate(room) == pytest.approx(hits / requests.total)
        assert found.byte_hit_rate(room) == pytest.approx(bytes_hit / requests.bytes)
        assert found.missing(room) == pytest.approx((requests.bytes - bytes_hit) / requests.tokens)
        assert {one.layer: one.hits for one in found.layers(room) if one.hits} == layers
    assert found.new == pytest.approx(1 - found.hit_rate(requests.touched))


@given(traces, st.integers(1, LAYERS * EXPERTS))
@settings(max_examples=150, deadline=None)
def test_lfu_is_that_by_hand(trace: Trace, room: int):
    requests = requests_of(trace)
    count: Counter[int] = Counter()
    inside: dict[int, int] = {}
    hits = 0
    for clock, (key, counts) in enumerate(zip(requests.keys, requests.counted, strict=True)):
        count[key] += 1
        if key in inside:
            hits += counts
        elif len(inside) >= room:
            del inside[min(inside, key=lambda one: (count[one], inside[one]))]
        inside[key] = clock
    assert lfu(requests, room) == pytest.approx(hits / requests.total)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=14), st.integers(1, 4))
@settings(max_examples=100, deadline=None)
def test_nothing_hits_more_than_belady(asked: list[int], room: int):
    requests = requests_of(Trace(1, 5, 1, tuple(Routed(0, ((expert,),)) for expert in asked)))

    @cache
    def best(at: int, inside: frozenset[int]) -> int:
        if at == len(asked):
            return 0
        if asked[at] in inside:
            return 1 + best(at + 1, inside)
        if len(inside) < room:
            return best(at + 1, inside | {asked[at]})
        return max(best(at + 1, inside - {gone} | {asked[at]}) for gone in inside)

    assert belady(requests, room) * len(asked) == pytest.approx(best(0, frozenset()))


@given(traces, layer_bytes, st.integers(0, 40))
@settings(max_examples=100, deadline=None)
def test_policies_stay_between_nothing_and_what_was_asked_before(trace: Trace, sizes: dict[int, int], room: int):
    requests = requests_of(trace, sizes)
    most = lru(requests).hit_rate(requests.touched)
    assert 0 <= lfu(requests, room) <= most + 1e-9 and 0 <= belady(requests, room) <= most + 1e-9
    assert 0 <= static(requests, room) <= 1
    everything = lru(requests).hit_rate(requests.touched)
    assert lfu(requests, requests.touched) == belady(requests, requests.touched) == pytest.approx(everything)


def test_the_order_of_policies_is_that_of_real_routing():
    """At an eighth of the experts LRU and LFU are near each other, and the one that knows the future far above."""
    requests = requests_of(made(layers=4, experts=64, used=4, tokens=400))
    room = 4 * 16
    assert belady(requests, room) > lru(requests).hit_rate(room) + 0.05
    assert belady(requests, room) > lfu(requests, room) and static(requests, room) > 0.2


def test_below_one_token_cycle_nothing_is_hit():
    requests = requests_of(made(layers=6, experts=16, used=4, tokens=200))
    found, cycle = lru(requests), 6 * 4
    assert found.hit_rate(cycle - 4) == 0 and found.hit_rate(cycle) > 0
    assert found.hit_rate(6 * 16) == 1 - found.new


def test_a_prompt_fills_the_cache_and_is_not_counted():
    prompt = Routed(0, ((0, 1), (1, 2), (2, 3)))
    trace = Trace(1, 4, 1, (prompt, Routed(0, ((0, 3),)), Routed(0, ((0, 1),))))
    requests = requests_of(trace)
    assert requests.tokens == 2 and requests.total == 4 and len(requests.keys) == 8
    assert lru(requests).hit_rate(4) == 1 and lru(requests).new == 0
    skipped = requests_of(trace, skip=1)
    assert skipped.tokens == 1 and skipped.total == 2


def test_what_says_nothing_is_said_to_say_nothing():
    with pytest.raises(ModelFileError, match="Nothing is decoded"):
        requests_of(Trace(1, 4, 1, (Routed(0, ((0, 1), (1, 2))),)))
    with pytest.raises(ModelFileError, match="too few"):
        requests_of(made(tokens=5), skip=5)
    with pytest.raises(ModelFileError, match="another model"):
        requests_of(made(layers=2, tokens=3), {0: 100})


def test_the_hottest_for_their_bytes_are_pinned():
    assert pinned({0: 5.0, 1: 9.0, 4: 9.0, 5: 1.0}, {0: 1, 1: 3}, 4, 4) == {0, 1}
    assert pinned({0: 5.0, 99: 9.0}, {0: 1}, 4, 4) == {0}          # of a layer that is not there


def test_a_stack_that_is_packed_is_the_same_stack(monkeypatch: pytest.MonkeyPatch):
    requests = requests_of(made(tokens=100))
    loose = lru(requests).distances
    monkeypatch.setattr(simulate, "_LOOSE", 3)
    assert lru(requests).distances == loose
