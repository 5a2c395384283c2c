"""Curves of budgets, what they advise, and what an imatrix file says before there is a trace."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_trace import made

from fleet.errors import ModelFileError
from fleet.experts.advice import advice, less, more
from fleet.experts.curve import Curve, Others, Point, compute_from, curve_of, speed_of
from fleet.experts.figures import Kind
from fleet.experts.popularity import Popularity, lru_hit_rate, pinned_hit_rate, popularity_of
from fleet.experts.simulate import lru, requests_of, static
from fleet.experts.worst import LayerHits
from fleet.models.experts import ByteRange, ExpertLayer, Experts, ExpertTensor
from fleet.models.local import header_of_file

MIB, GIB = 1 << 20, 1 << 30
LAYERS, EXPERTS, USED = 4, 32, 4


@pytest.fixture(scope="module")
def found():
    trace = made(LAYERS, EXPERTS, USED, tokens=300)
    return lru(requests_of(trace, dict.fromkeys(range(LAYERS), MIB), skip=50))


def test_a_curve_rises_from_the_cliff_to_all(found):
    curve = curve_of(found, 100 * MIB, LAYERS * EXPERTS * MIB, budget=150 * MIB, disk_rate=400e6, compute=0.02,
                     others=True)
    assert curve.cliff == (100 + LAYERS * USED) * MIB and curve.whole == 228 * MIB
    rates = [point.hit_rate for point in curve.points]
    assert rates == sorted(rates) and all(point.hit_rate == 0 for point in curve.points if point.budget < curve.cliff)
    missing = [point.missing for point in curve.points]
    assert missing == sorted(missing, reverse=True) and missing[0] == LAYERS * USED * MIB
    speeds = [point.speed for point in curve.points]
    assert speeds == sorted(speeds) and [point.present for point in curve.points].count(True) == 1
    now = curve.present
    assert now.room == 50 * MIB and now.hit_rate == found.hit_rate(50 * MIB)
    assert curve.others.belady > now.hit_rate and curve.oracle_gap == curve.others.belady - now.hit_rate
    assert curve.hit_rate.kind is Kind.PREDICTED and curve.hit_rate.value == now.hit_rate
    assert sum(one.hits for one in curve.worst) == round(now.hit_rate * found.requests.total)
    assert [one.rate for one in curve.worst] == sorted(one.rate for one in curve.worst)


def test_speeds_are_those_that_were_measured():
    """At 415 MB/s and 21 ms: 50, 30 and 20 % of a model."""
    for missing, slowest, fastest in ((4.3e6, 29, 37), (13.7e6, 17, 20), (21.8e6, 13, 16)):
        assert slowest <= speed_of(missing, 415e6, 0.021) <= fastest
    assert speed_of(1e6, None, 0.02) is None and speed_of(1e6, 400e6, None) is None and speed_of(0, 1.0, 0.0) is None
    assert speed_of(13.7e6, 415e6, compute_from(18.5, 13.7e6, 415e6)) == pytest.approx(18.5)
    assert compute_from(100, 13.7e6, 415e6) is compute_from(0, 1e6, 1e6) is None       # faster than its reads allow


def hand_made(*points: tuple[int, float, float], now: int) -> Curve:
    """GiB, hit rate, tokens a second; 8 GiB are fixed, a token takes 1 GiB, there are 32 of experts."""
    told = tuple(Point(at * GIB, (at - 8) * GIB, rate, (1 - rate) * 1e9, speed, at == now)
                 for at, rate, speed in points)
    return Curve(told, 9 * GIB, 40 * GIB, 0.0, 1000, next((point for point in told if point.present), None))


STEEP = ((8, 0.0, 1.0), (12, 0.7, 4.0), (16, 0.83, 6.0), (20, 0.94, 10.2), (24, 0.96, 10.8), (40, 1.0, 11.0))


def test_the_advice_is_the_least_memory_that_gives_most_of_it():
    assert more(hand_made(*STEEP, now=16)) == "4.0 GiB more would lift hits from 0.83 to 0.94, about 1.7x."
    assert more(hand_made(*STEEP, now=24)).startswith("More memory would hardly help: all of it (40.0 GiB)")
    assert less(hand_made(*STEEP, now=16)) == ""
    assert less(hand_made(*STEEP, now=40)) == (
        "16.0 GiB could be given back: hits would be 0.96 instead of 1.00, as fast.")


def test_without_a_speed_the_bytes_are_told():
    blind = tuple((at, rate, None) for at, rate, _ in STEEP)
    assert more(hand_made(*blind, now=12)) == (
        "28.0 GiB more would lift hits from 0.70 to 1.00, 0.0 instead of 300.0 MB read a token.")


def test_the_ends_of_a_curve_have_their_own_sentences():
    assert advice(hand_made(*STEEP, now=8)) == (
        "With 8.0 GiB not one expert is hit: less than the experts of one token fit. From 9.0 GiB on some are.",)
    assert advice(hand_made(*STEEP, now=40)) == ("40.0 GiB hold all of it: more would change nothing.",)
    assert advice(hand_made(*STEEP, now=0)) == (
        "Below 9.0 GiB nothing is hit; from 40.0 GiB on everything stays in memory.",
        "Hits need 16.0 GiB for 0.80, 20.0 GiB for 0.90, 24.0 GiB for 0.95.")


def test_the_gap_to_the_best_and_the_worst_layers_are_told():
    curve = hand_made(*STEEP, now=16)
    full = Curve(curve.points, curve.cliff, curve.whole, 0.0, 1000, curve.present, Others(0.9, 0.8, 0.86),
                 (LayerHits(3, 100, 60), LayerHits(5, 100, 70), LayerHits(1, 100, 90)))
    assert advice(full)[1:] == (
        "A cache that knew the future would hit 0.90 in the same memory, 0.07 more. The hottest experts kept for good "
        "would hit 0.86.", "Layers that hit least: 3 (0.60), 5 (0.70), 1 (0.90); the best one 0.90.")


# ---------------------------------------------------------------------------------------------
# Counts


def imatrix(path: Path, counts: dict[str, np.ndarray]) -> Path:
    writer = gguf.GGUFWriter(path, "")
    writer.add_type("imatrix")
    for name, values in counts.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def popularity(path: Path) -> Popularity:
    header = header_of_file(str(path))
    data = path.read_bytes()
    return popularity_of(header, lambda offset, length: data[offset:offset + length])


def model(layers: int = LAYERS, experts: int = EXPERTS, used: int = USED) -> Experts:
    tensor = ExpertTensor("blk.0.ffn_up_exps.weight", "up", experts, ByteRange(0, 0, MIB))
    return Experts(experts, used, 0, tuple(ExpertLayer(layer, experts, (tensor,)) for layer in range(layers)))


def test_counts_of_an_imatrix_predict_what_a_trace_does(tmp_path: Path):
    trace = made(LAYERS, EXPERTS, USED, tokens=600)
    counts = np.zeros((LAYERS, EXPERTS), np.float32)
    for routed in trace.passes:
        counts[routed.layer, list(routed.rows[0])] += 1
    found = popularity(imatrix(tmp_path / "made.gguf", {
        f"blk.{layer}.ffn_{part}_exps.weight.{kind}": counts[layer].reshape(1, -1) if kind == "counts" else
        np.ones((EXPERTS, 8), np.float32) for layer in range(LAYERS) for part in ("gate", "down")
        for kind in ("counts", "in_sum2")}))
    weights = found.weights(model())
    assert sum(weights.values()) == pytest.approx(LAYERS * USED, rel=0.02)
    sizes, requests = dict.fromkeys(range(LAYERS), 1), requests_of(trace, skip=100)
    for room in (24, 48, 96):
        assert pinned_hit_rate(weights, sizes, EXPERTS, room) == pytest.approx(static(requests, room), abs=0.05)
        assert lru_hit_rate(weights, sizes, EXPERTS, room) <= lru(requests).hit_rate(room) + 0.01
    assert lru_hit_rate(weights, sizes, EXPERTS, LAYERS * USED // 2) == 0
    assert lru_hit_rate(weights, sizes, EXPERTS, LAYERS * EXPERTS) == 1


@pytest.mark.parametrize(("counts", "sentence"), [
    ({"blk.0.attn_q.weight.counts": np.ones((1, 1), np.float32)}, "no counts"),
    ({"blk.0.ffn_up_exps.weight.counts": np.zeros((1, 4), np.float32)}, "makes no sense"),
    ({"blk.0.ffn_up_exps.weight.counts": np.array([[1, float("nan")]], np.float32)}, "makes no sense"),
    ({"blk.0.ffn_up_exps.weight.counts": np.array([[1, -1]], np.float32)}, "makes no sense"),
    ({"blk.0.ffn_up_exps.weight.counts": np.array([[1, float("inf")]], np.float32)}, "makes no sense"),
    ({"blk.0.ffn_up_exps.weight.counts": np.ones((1, 4), np.float16)}, "makes no sense"),
])
def test_counts_that_make_no_sense_are_refused(tmp_path: Path, counts: dict, sentence: str):
    with pytest.raises(ModelFileError, match=sentence):
        popularity(imatrix(tmp_path / "made.gguf", counts))


def test_counts_of_another_model_are_refused(tmp_path: Path):
    counts = {"blk.0.ffn_up_exps.weight.counts": np.ones((1, 4), np.float32)}
    found = popularity(imatrix(tmp_path / "made.gguf", counts))
    with pytest.raises(ModelFileError, match="another model"):
        found.weights(model())


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.integers(0, 14))
@settings(deadline=None)
def test_a_rate_of_counts_is_one(parts: list[float], room: int):
    weights = dict(enumerate(parts))
    assert 0 <= pinned_hit_rate(weights, {0: 1}, 12, room) <= 1 + 1e-9
    assert 0 <= lru_hit_rate(weights, {0: 1}, 12, room) <= 1 + 1e-9

