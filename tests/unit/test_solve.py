"""The split: exact against every other deal, within every limit, and the same each time."""

from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fleet.planning.solve import Layer, Place, by_memory, solve, weighed
from fleet.planning.split import layer_map

GIB = 1 << 30
MIB = 1 << 20


def layers(count=10, size=GIB, kv=0, output=None):
    return (*(Layer(size, kv, size) for _ in range(count)), Layer(size if output is None else output, 0,
                                                                 size if output is None else output))


def place(name, gib, speed=100e9, **more):
    return Place(name, int(gib * GIB), seconds_per_byte=1 / speed, **more)


def nothing(first, last):
    return 0


def every_deal(n, places):
    if places == 1:
        yield (n,)
        return
    for count in range(n + 1):
        for rest in every_deal(n - count, places - 1):
            yield (count, *rest)


sizes = st.integers(1, 40)
fleets = st.lists(st.builds(Place, st.just("d"), limit=st.integers(0, 200), reserve=st.integers(0, 10),
                            seconds_per_byte=st.sampled_from((1e-9, 2e-9, 5e-9, 3.3e-8)),
                            hop=st.sampled_from((0.0, 1e-9, 1e-7)), output_hop=st.sampled_from((0.0, 1e-7))),
                  min_size=1, max_size=3)
models = st.lists(st.builds(Layer, weights=sizes, kv=st.integers(0, 10), read=sizes), min_size=1, max_size=6)


@example([Layer(1, 0, 1)], [Place("d", 0, reserve=1), Place("d", 1)], 0)
@given(models, fleets, st.integers(0, 20))
def test_no_deal_of_all_is_faster_and_none_fits_where_it_finds_none(model, places, buffer):
    found = solve(model, places, lambda first, last: buffer)
    fitting = [deal for counts in every_deal(len(model), len(places))
               if (deal := weighed(model, places, lambda first, last: buffer, counts)).fits]
    assert (found is None) == (not fitting)
    if found is not None:
        assert found.fits and found.seconds == min(deal.seconds for deal in fitting)


big_models = st.integers(1, 40).flatmap(lambda n: st.lists(
    st.builds(Layer, weights=sizes, kv=st.integers(0, 10), read=sizes), min_size=n, max_size=n))
big_fleets = st.lists(st.builds(Place, st.just("d"), limit=st.integers(1, 2000), reserve=st.integers(0, 10),
                                seconds_per_byte=st.floats(1e-12, 1e-6), hop=st.floats(0, 1e-2)),
                      min_size=1, max_size=15)


@settings(max_examples=60)
@given(big_models, big_fleets, st.integers(0, 20))
def test_every_layer_is_placed_within_every_limit_as_llama_cpp_will_deal_them(model, places, buffer):
    found = solve(model, places, lambda first, last: buffer)
    if found is None:
        return
    assert sum(found.counts) == len(model)
    for where, need, count in zip(places, found.needs, found.counts, strict=True):
        assert not count or need + where.reserve <= where.limit
    dealt = layer_map(len(model) - 1, found.counts, len(model))
    assert dealt == tuple(number for number, count in enumerate(found.counts) for _ in range(count))
    assert all(one <= other for one, other in pairwise(dealt)), "ranges are contiguous and in order"
    assert found == solve(model, places, lambda first, last: buffer), "and the same each time"


@settings(max_examples=60)
@given(big_models, big_fleets)
def test_it_is_never_slower_than_shares_by_memory_and_finds_one_where_they_do(model, places):
    plain = by_memory(model, places, nothing)
    if plain is not None:
        found = solve(model, places, nothing)
        assert plain.fits and found is not None and found.seconds <= plain.seconds * (1 + 1e-12)


@settings(max_examples=60)
@given(big_models, big_fleets, st.data())
def test_more_memory_never_makes_it_refuse_or_slower(model, places, data):
    found = solve(model, places, nothing)
    number = data.draw(st.integers(0, len(places) - 1))
    more = data.draw(st.integers(1, 1000))
    larger = [Place(p.name, p.limit + (more if i == number else 0), p.reserve, p.seconds_per_byte, p.hop)
              for i, p in enumerate(places)]
    if found is not None:
        then = solve(model, larger, nothing)
        assert then is not None and then.seconds <= found.seconds


def test_devices_that_are_alike_are_filled_alike():
    found = solve(layers(9), [place("a", 24), place("b", 24)], nothing)
    assert found.counts == (5, 5)
    assert solve(layers(9), [place("a", 12), place("b", 24)], nothing).counts in ((3, 7), (4, 6))


def test_the_faster_device_is_filled_first_and_the_slow_one_left_out_where_it_can_be():
    fast, slow = place("fast", 20, 900e9), place("slow", 64, 40e9, hop=0.002)
    assert solve(layers(10), [slow, fast], nothing).counts == (0, 11)
    assert solve(layers(30), [slow, fast], nothing).counts == (11, 20)


def test_a_device_that_has_to_take_part_does():
    fast, slow = place("fast", 20, 900e9), place("slow", 64, 40e9, hop=0.002, least=1)
    assert solve(layers(10), [slow, fast], nothing).counts == (1, 10)


def test_a_small_model_crosses_no_wire_that_it_need_not():
    workers = [place(name, 24, hop=0.003) for name in "abc"]
    assert sorted(solve(layers(10), workers, nothing).counts) == [0, 0, 11]


def test_the_output_layer_stays_where_its_logits_cross_no_wire():
    """A megabyte a token at 125 MB/s is 8 ms; the layer itself is read as fast on either."""
    worker, own = place("worker", 24, hop=0.001, output_hop=0.008), place("own", 4)
    assert solve(layers(10), [worker, own], nothing).counts[1] >= 1


def test_buffers_and_reserve_count():
    roomy, tight = place("a", 12), place("a", 12, reserve=2 * GIB)
    assert solve(layers(10), [roomy], lambda first, last: GIB) is not None
    assert solve(layers(10), [tight], lambda first, last: 0) is None
    assert solve(layers(10), [roomy], lambda first, last: GIB + 1) is None


@pytest.mark.parametrize(("gib", "expected"), [((16, 12, 8, 11), (27, 21, 14, 19)), ((24, 24), (41, 40))])
def test_by_memory_is_in_proportion(gib, expected):
    assert by_memory(layers(80, 400 * MIB), [place("d", size) for size in gib], nothing).counts == expected


def test_by_memory_what_cannot_hold_its_share_gets_none():
    """2 GiB of 49 would be three layers of 500 MiB: with buffers and reserve they are too much for it."""
    places = [place("d", size, reserve=256 * MIB) for size in (16, 12, 8, 11, 2)]
    found = by_memory(layers(80, 500 * MIB), places, lambda first, last: 400 * MIB)
    assert found.counts[-1] == 0 and sum(found.counts) == 81 and found.fits


def test_by_memory_finds_nothing_where_nothing_fits():
    assert by_memory(layers(80), [place("d", 16), place("d", 8)], nothing) is None


def test_a_deal_that_is_none_is_refused():
    with pytest.raises(ValueError, match="deal every layer"):
        weighed(layers(3), [place("a", 1)], nothing, (3,))
