"""Counted, estimated and simulated hit rates of one answer of a real head, at three budgets: they agree."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest
from made_moe import MIDDLE, make
from served_moe import Server
from test_moe_bounded import NODE, alone, bring_up, fleet_of, home, running, way

from fleet.errors import ModelFileError
from fleet.experts.budget import needs_of
from fleet.experts.counters import Counters, counters_of, read_counters
from fleet.experts.curve import curve_of
from fleet.experts.estimate import estimated_hit_rate
from fleet.experts.figures import Kind, exact_hit_rate
from fleet.experts.layout import layout_of
from fleet.experts.recording import asked
from fleet.experts.shim import STATS, TRACE
from fleet.experts.simulate import lru, requests_of
from fleet.experts.trace import read_trace
from fleet.experts.traces import check_model, trace_of_file
from fleet.models.local import header_of_file
from fleet.models.memory import Ask
from fleet.node.figures import group_figures, process_figures
from fleet.nodes.local import LocalTransport

__all__ = ["alone", "home", "way"]           # fixtures of the other file
pytestmark = [pytest.mark.engine, pytest.mark.timeout(120)]
EVEN = replace(MIDDLE, hot=0.4, topical=0.5, noise=1.2)      # a token asks for more different experts
WARM, WINDOW, WINDOWS = 60, 60, 4           # decoded tokens


@pytest.fixture(scope="module")
def middle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = make(tmp_path_factory.mktemp("middle") / "middle.gguf", EVEN)
    yield path
    path.unlink()


@pytest.mark.parametrize("part", [0.3, 0.18, 0.1])
async def test_three_kinds_of_figure_agree(way, middle: Path, tmp_path: Path, part: float):
    header = header_of_file(str(middle))
    layout = layout_of(header)
    needs = needs_of(header, layout, Ask(512, 1, "f16", "f16", True))
    budget = needs.fixed + round(part * needs.experts)
    config = fleet_of(tmp_path / "state", middle, budget)
    here = LocalTransport(NODE)
    async with running(config) as engine:
        await bring_up(engine)
        reading = engine.latest.nodes[NODE].reading
        record = reading.services[0]

        async def look() -> tuple[Counters, int]:
            return (await counters_of(here, reading.state_folder, record.id),
                    process_figures(record.pid)["read_bytes"])

        async def until(tokens: int) -> tuple[Counters, int]:
            found = await look()
            while found[0].decode.tokens < tokens:
                await asyncio.sleep(0.01)
                found = await look()
            return found

        async with asked(here, record.folder):
            saying = asyncio.create_task(asyncio.to_thread(
                Server(config.nodes[NODE].head.port, 0).say, WARM + WINDOW * WINDOWS + 60, temperature=3.0))
            looks = [await until(WARM + number * WINDOW) for number in range(WINDOWS + 1)]
            await saying
            trace = read_trace((Path(record.folder) / TRACE).read_bytes())
        room = group_figures(record.pid)["cache"] - needs.shared      # buffers take less than is reckoned
        torn = await here.read_file(f"{record.folder}/{STATS}", 0, 100)
    before, after = looks[0], looks[-1]
    exact = exact_hit_rate(after[0], before[0])
    slice_bytes = layout.experts.layers[0].tensors[0].first.length
    off = []
    for (then, read), (now, more) in pairwise(looks):
        window = exact_hit_rate(now, then)
        estimated = estimated_hit_rate(more - read, now.decode.since(then.decode).tokens, needs.token, readahead=0,
                                       slice_bytes=slice_bytes, prompts=now.prompt != then.prompt)
        assert (window.kind, estimated.kind) == (Kind.EXACT, Kind.ESTIMATED) and estimated.low <= estimated.value
        off.append(estimated.value - window.value)
    check_model(trace, layout.experts)
    requests = requests_of(trace, {layer.layer: layer.expert_bytes for layer in layout.experts.layers}, skip=WARM)
    predicted = curve_of(lru(requests), needs.fixed, needs.experts, budget=needs.fixed + room).hit_rate
    assert predicted.kind is Kind.PREDICTED and predicted.value == pytest.approx(exact.value, abs=0.05)
    # Whole pages are read, and at the tightest budget some twice: the estimate is a little low, never high.
    assert max(off) < 0.02 and median(off) > -0.05

    # Each of them broken on purpose: none says a number any more.
    with pytest.raises(ModelFileError):
        read_counters(torn)
    assert exact_hit_rate(before[0], after[0]).kind is Kind.UNKNOWN
    assert estimated_hit_rate(-1, 60, needs.token, slice_bytes=slice_bytes, readahead=0).kind is Kind.UNKNOWN
    (tmp_path / "cut").write_bytes(b"QDMOETRC" + bytes(10))
    with pytest.raises(ModelFileError):
        trace_of_file(str(tmp_path / "cut"))
