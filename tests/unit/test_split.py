"""Layers to devices: the cases that were seen on real llama-server, and what must always hold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.planning.split import CPU, layer_map, layers_by_weight


def drawn(split, gpu_layers=99, n_layers=18) -> str:
    """The map as the measurements write it: c for the processor, else the device's number."""
    return "".join("c" if device == CPU else str(device) for device in layer_map(n_layers, split, gpu_layers))


@pytest.mark.parametrize(("split", "gpu_layers", "seen"), [
    ((3, 1), 99, "0000000000000001111"),
    ((1, 1, 1), 99, "0000000111111222222"),
    ((1, 0), 99, "0000000000000000000"),
    ((3, 1, 0), 99, "0000000000000001111"),
    ((3, 1), 10, "ccccccccc0000000011"),
    ((3, 1), 18, "c000000000000001111"),
    ((5, 2, 11), 99, "0" * 6 + "1" * 2 + "2" * 11),
])
def test_layers_fall_as_llama_server_was_seen_to_deal_them(split, gpu_layers, seen):
    assert drawn(split, gpu_layers) == seen


@given(st.integers(1, 200), st.lists(st.integers(0, 1 << 40), min_size=1, max_size=15).filter(any))
def test_counts_sum_to_all_layers_and_shares_made_of_them_deal_exactly_so(n_layers, weights):
    counts = layers_by_weight(n_layers, weights)
    assert sum(counts) == n_layers + 1
    assert all(count == 0 for count, weight in zip(counts, weights, strict=True) if weight == 0)
    dealt = layer_map(n_layers, counts, 999)
    assert tuple(dealt.count(device) for device in range(len(counts))) == counts
    assert list(dealt) == sorted(dealt)


@given(st.integers(1, 100), st.integers(1, 15))
def test_equal_devices_differ_by_one_layer_at_most(n_layers, devices):
    counts = layers_by_weight(n_layers, [7] * devices)
    assert max(counts) - min(counts) <= 1


def test_no_weight_at_all_is_refused():
    with pytest.raises(ValueError, match="one of them more"):
        layers_by_weight(10, [0, 0])
