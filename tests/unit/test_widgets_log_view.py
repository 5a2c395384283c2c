"""The log view: bounded, followed, filtered, harmless."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from textual.app import App, ComposeResult

from widgets.log_view import LINE_CAP, LINES_KEPT, LogLine, LogView, level_of


class LogApp(App[None]):
    def compose(self) -> ComposeResult:
        yield LogView(id="log")


@asynccontextmanager
async def log_view(size: tuple[int, int] = (40, 6)) -> AsyncIterator[tuple[LogView, object]]:
    app = LogApp()
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        yield app.query_one(LogView), pilot


def lines(view: LogView) -> list[str]:
    return [view.render_line(y).text.rstrip() for y in range(view.size.height)]


@pytest.mark.parametrize(("text", "level"), [
    ("0.03.646.170 I srv  load_model", "I"), ("0.03.646.170 E ggml", "E"), ("W slow", "W"),
    ("error: no such file", "E"), ("GGML_ASSERT failed", "E"),
    ("warning: flash attention off", "W"), ("all errorless", "I"), ("D x", "D")])
def test_a_line_has_a_level_by_letter_or_by_word(text: str, level: str) -> None:
    assert level_of(text) == level


def test_a_line_is_capped_and_made_harmless() -> None:
    assert LogLine.of("x" * 90_000).text.startswith("x" * LINE_CAP + "… (89000 more)")
    assert LogLine.of("\x1b]0;title\x07").text == "\\x1b]0;title\\x07"
    assert LogLine.of("10%\r20%\r30%\n").text == "30%"


async def test_it_follows_the_end_and_stops_when_scrolled_up() -> None:
    async with log_view() as (view, pilot):
        view.add(f"line {number}" for number in range(20))
        await pilot.pause()
        assert lines(view)[-1] == "  line 19"
        await pilot.press("up")
        view.add(["line 20"])
        await pilot.pause()
        assert not view.following and lines(view)[-1] == "  line 18"
        await pilot.press("G")
        assert view.following and lines(view)[-1] == "  line 20"


async def test_only_the_last_2000_lines_are_kept() -> None:
    async with log_view() as (view, _pilot):
        for start in range(0, 3_000, 500):
            view.add(f"line {number}" for number in range(start, start + 500))
        assert view.kept == LINES_KEPT and view.came == 3_000
        assert view.text().startswith("line 1000\n")


async def test_levels_filter_and_wrap() -> None:
    async with log_view() as (view, pilot):
        view.add(["0.1.2.3 I fine", "0.1.2.3 E bad thing", "0.1.2.3 W odd thing", "long " * 12])
        assert lines(view)[1] == "E 0.1.2.3 E bad thing" and lines(view)[3].endswith("…")
        view.filter("thing !odd")
        assert view.shown == 1 and view.text() == "0.1.2.3 E bad thing"
        view.filter("")
        await pilot.press("e")
        assert view.shown == 2
        await pilot.press("e", "w")
        assert view.shown == 4 and "…" not in "".join(lines(view))
