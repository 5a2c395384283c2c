"""TinyTitan's log lines: experts, drafts and the prompt cache; nonsense in them is unknown, not wrong."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.tinytitan.log import (
    DraftLine,
    ExpertLine,
    PromptCacheLine,
    ReadyLine,
    SpeedLine,
    TinyTitanLog,
    read_line,
)

LOG = (Path(__file__).parents[2] / "data" / "tinytitan" / "runner.log").read_text()


def test_both_names_of_the_runner_are_read_and_what_is_no_number_is_not_known() -> None:
    first, speed, older, other, empty = (read_line(line) for line in LOG.splitlines())
    assert first == ExpertLine(0.9431, 30110, 1817, 1570, 902, 2811.4, 0.611, 1.902, 4.770, pytest.approx(0.612))
    assert speed == SpeedLine(21.4, 188.0)
    assert older == ExpertLine(0.8770, 1400, 196, 0)
    assert other is None                      # another program's line, though it has the same keys
    assert empty == ExpertLine(None, 0, 0)


def test_requests_are_summed_and_a_rate_that_nobody_asked_for_is_unknown() -> None:
    log = TinyTitanLog()
    assert log.hit_rate is None and log.acceptance is None
    log.feed(LOG)
    assert (log.hits, log.misses) == (31510, 2013)
    assert log.hit_rate == pytest.approx(31510 / 33523) and log.acceptance is None
    assert log.speed == SpeedLine(21.4, 188.0)


@given(st.lists(st.integers(0, len(LOG)), max_size=12))
def test_where_the_log_is_cut_into_pieces_makes_no_difference(cuts: list[int]) -> None:
    whole, pieces = TinyTitanLog(), TinyTitanLog()
    whole.feed(LOG)
    places = [0, *sorted(cuts), len(LOG)]
    for start, end in itertools.pairwise(places):
        pieces.feed(LOG[start:end])
    assert pieces == whole


def test_drafts_generation_and_the_ready_line_are_read() -> None:
    log = TinyTitanLog()
    log.feed("TinyTitan mtp drafted=120 accepted=69 acceptance=57.5% target_passes=120 emitted_per_pass=1.574 "
             "prefill_s=1.1 decode_s=9.0 decode_tok_s=20.9 memory_required_mib=300 memory_budget_mib=384\r\n")
    assert log.drafts == DraftLine(120, 69, pytest.approx(0.575), 120, 1.574, 20.9)
    assert log.acceptance == pytest.approx(0.575) and log.speed == SpeedLine(20.9)
    assert read_line("TinyTitan generation prefill_s=1.0 decode_s=2.0 decode_tok_s=11.0") == SpeedLine(11.0)
    assert read_line("TinyTitan Server ready at http://127.0.0.1:8090 model=m context=32768 prefill_chunk=512 "
                     "expert_slots=64 prompt_cache=single-prefix mtp=off\r") == ReadyLine(8090, 32768, 64)
    assert read_line("\x1b[32mNVMAIServer ready at http://127.0.0.1:8080\x1b[0m") == ReadyLine(8080)


def test_the_prompt_cache_tells_hits_by_tier_stores_and_failures() -> None:
    log = TinyTitanLog()
    log.feed("TinyTitan prompt_cache hit tier=live cached_tokens=812 entry=a-b\n"
             "TinyTitan prompt_cache hit tier=disk cached_tokens=100 entry=c\n"
             "TinyTitan prompt_cache stored tokens=900 state_bytes=1000 ram_bytes=2000 disk_bytes=3000 entry=d\n"
             "TinyTitan prompt_cache disk_write_failed entry=d no space\n")
    assert log.cached_tokens == 912 and log.cache_failures == 1
    assert log.prompt_cache == PromptCacheLine("disk_write_failed")
    assert read_line("TinyTitan prompt_cache stored tokens=900 ram_bytes=2000 disk_bytes=x") == PromptCacheLine(
        "stored", "", 900, None, 2000, None)


@pytest.mark.parametrize("line", [
    "", "TinyTitan", "TinyTitan runner", "TinyTitan runnerexpert_hits=3", "user said: TinyTitan runner expert_hits=3",
    "TinyTitan prompt_cache [bold]x[/] tier=live", "TinyTitan mtp drafted=3 accepted=9",
    "Server ready at http://127.0.0.1:99999", "TinyTitan runner io_ms=3",
])
def test_lines_that_say_nothing_of_it_are_none(line: str) -> None:
    assert read_line(line) is None


def test_figures_out_of_their_range_are_unknown() -> None:
    assert read_line("TinyTitan runner expert_hit_rate=1.5 expert_hits=-3 expert_misses=1e9 expert_read_mib=inf "
                     f"expert_evictions={'9' * 40} expert_reloads=٣ io_hidden_pct=101") == ExpertLine()
    assert read_line("TinyTitan prompt_cache hit tier=\x1b]0;x cached_tokens=5") == PromptCacheLine("hit", "", 5)


@given(st.text(max_size=300), st.sampled_from(["", "TinyTitan runner ", "TinyTitan mtp ", "TinyTitan prompt_cache "]))
def test_no_text_raises_anything_and_nothing_grows_without_end(text: str, head: str) -> None:
    log = TinyTitanLog()
    read_line(head + text)
    log.feed("x" * 100_000)
    log.feed(head + text)
    assert len(log._rest) <= 4096
