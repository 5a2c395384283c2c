"""Toned text: nothing but what shows, in exactly the cells there are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from widgets.entries import Cut, Fact, Gauge, Heading, Paragraph, text_of_entries
from widgets.meters import Meter, bar
from widgets.spans import Keep, Span, Tone, cut, fit, joined, line, plain, printable, width_of, wrap
from widgets.steps import StepEntry

ANY_TEXT = st.text(max_size=60)


@pytest.mark.parametrize(("raw", "shown"), [
    ("plain [b]name[/b]", "plain [b]name[/b]"),
    ("\x1b[31mred", "\\x1b[31mred"),
    ("a\x9bb\x07", "a\\x9bb\\x07"),
    ("two\nlines\tand\rback", "two\\nlines\\tand\\rback"),
    ("\u202eevil\u2066", "\\u202eevil\\u2066"),
    ("zero\u200bwidth", "zero\\u200bwidth"),
    ("no\u00a0break", "no break"),
    ("\udc80", "\\udc80"),
    ("é", "é"),
    ("日本", "日本"),
])
def test_what_a_terminal_would_obey_is_spelled_out(raw: str, shown: str) -> None:
    assert printable(raw) == shown


def test_towers_of_combining_marks_are_cut_down() -> None:
    assert printable("a" + "\u0301" * 50).count("\u0301") == 2


@given(ANY_TEXT)
def test_no_span_can_hold_what_does_not_show(text: str) -> None:
    shown = Span(text).text
    assert all(char.isprintable() for char in shown)


@given(ANY_TEXT, ANY_TEXT, st.integers(0, 40), st.sampled_from(list(Keep)), st.booleans())
def test_a_fitted_line_has_exactly_its_width(first: str, second: str, width: int, keep: Keep, right: bool) -> None:
    assert width_of(fit(line(first, Span(second, Tone.BAD)), width, keep, right=right)) == width


@given(ANY_TEXT, st.integers(0, 40), st.sampled_from(list(Keep)))
def test_a_cut_text_is_never_wider_than_asked(text: str, width: int, keep: Keep) -> None:
    assert cell_len(cut(printable(text), width, keep)) <= width


@given(ANY_TEXT, ANY_TEXT, st.integers(2, 40), st.integers(0, 10))
def test_wrapped_lines_fit_and_lose_no_letter(first: str, second: str, width: int, indent: int) -> None:
    spans = line(first, Span(second, Tone.BAD))
    lines = wrap(spans, width, indent)
    assert all(width_of(each) <= width for each in lines)
    letters = "".join(plain(each) for each in lines).replace(" ", "")
    assert letters == plain(spans).replace(" ", "")



@pytest.mark.parametrize(("keep", "shown"), [
    (Keep.START, "/models/Q…"), (Keep.END, "…K_M.gguf"), (Keep.BOTH, "/mod….gguf")])
def test_the_telling_end_is_kept(keep: Keep, shown: str) -> None:
    assert cut("/models/Qwen3-32B-Q4_K_M.gguf", len(shown), keep) == shown


def test_a_cut_line_says_that_something_is_missing() -> None:
    assert plain(fit(line("abc", Span("defgh", Tone.BAD)), 6)) == "abcde…"
    assert plain(fit(line("abc", Span("defgh", Tone.BAD)), 6, Keep.END)) == "…defgh"


def test_empty_parts_leave_no_gap() -> None:
    assert plain(joined((line("a"), (), line("b")))) == "a  b"


@pytest.mark.parametrize(("fraction", "drawn"), [
    (0.0, "▁▁▁▁▁▁▁▁"), (0.001, "▖▁▁▁▁▁▁▁"), (0.5, "▄▄▄▄▁▁▁▁"), (0.55, "▄▄▄▄▖▁▁▁"), (1.0, "▄▄▄▄▄▄▄▄"), (7.0, "▄▄▄▄▄▄▄▄"),
    (-3.0, "▁▁▁▁▁▁▁▁")])
def test_bars_show_their_share_in_glyphs(fraction: float, drawn: str) -> None:
    assert plain(bar(fraction, 8)) == drawn


@given(st.none() | st.floats(0, 1), st.integers(0, 50))
def test_a_meter_has_exactly_its_width(fraction: float | None, width: int) -> None:
    assert width_of(Meter(fraction, line("10.9/24.0")).drawn(width)) == width


def test_a_meter_without_a_fraction_shows_its_figures_alone() -> None:
    assert plain(Meter(None, line("not known")).drawn(20)).strip() == "not known"


@given(st.integers(1, 100))
def test_every_entry_fits_its_pane(width: int) -> None:
    entries = (
        Heading("a title", line("● up")), Fact("name", line("some value that is long enough to wrap somewhere")),
        Fact("path", line("/a/very/long/path/to/some/file.gguf"), Keep.END),
        Gauge("memory", Meter(0.4, line("1 of 2"))),
        Paragraph(line("words and words and words and words"), 2), Cut(line("/usr/bin/something-long"), Keep.END),
        StepEntry("✕", "failed", "Load the model", Tone.BAD, "because of this and that", telling=True),
        StepEntry("▸", "running", "Load the model", Tone.ACCENT, "7 of 9 GiB", 0.4, "3 s", current=True),
    )
    if width >= 24:
        assert all(width_of(each) <= width for entry in entries for each in entry.lines(width))


def test_a_step_gives_up_its_detail_before_its_title() -> None:
    step = StepEntry("✓", "done", "Check builds and protocols", Tone.GOOD, "b10068 on 3 nodes", took="1 s")
    assert "b10068 on 3 nodes" in plain(step.lines(80)[0])
    narrow = plain(step.lines(46)[0])
    assert "Check builds and protocols" in narrow and "b10068" not in narrow and narrow.endswith("1 s  done")


def test_entries_can_be_copied_as_text() -> None:
    assert text_of_entries((Heading("atlas"), Fact("is", line("up"))), 20) == "atlas ──────────────\nis          up"
