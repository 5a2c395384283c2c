"""The table: what it draws, what it repaints, where the cursor goes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from textual.app import App, ComposeResult
from textual.geometry import Region

from widgets.meters import Meter
from widgets.row_spec import Column, Row, layout, passes, sort_value
from widgets.row_table import RowTable
from widgets.spans import Keep, Span, Tone, line

COLUMNS = (Column("name", "name", 4, 12, keep=Keep.BOTH), Column("note", "note", 4, 20, need=1, grow=True),
           Column("memory", "GiB", 10, 14, need=2), Column("age", "age", 4, 6, right=True))


def row(name: str, note: str = "", share: float = 0.5, age: str = "live") -> Row:
    return Row(name, (line(name), line(Span(note, Tone.MUTED)), Meter(share, line("1/2")), line(age)),
               (name, note, share, age))


ROWS = (row("bolt", "worker"), row("atlas", "head"), row("cedar"))


class TableApp(App[None]):
    def __init__(self) -> None:
        super().__init__()
        self.heard: list[tuple[str, str]] = []

    def compose(self) -> ComposeResult:
        yield RowTable(COLUMNS, empty=(line("nothing here"),), id="table")

    def on_row_table_highlighted(self, event: RowTable.Highlighted) -> None:
        self.heard.append(("on", event.key))

    def on_row_table_chosen(self, event: RowTable.Chosen) -> None:
        self.heard.append(("chosen", event.key))


@asynccontextmanager
async def table(size: tuple[int, int] = (60, 8)) -> AsyncIterator[tuple[RowTable, TableApp, object]]:
    app = TableApp()
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        yield app.query_one(RowTable), app, pilot


def lines(widget: RowTable) -> list[str]:
    return [widget.render_line(y).text.rstrip() for y in range(widget.size.height)]


async def test_titles_rows_and_cursor_are_drawn() -> None:
    async with table() as (widget, _, _pilot):
        widget.show(ROWS)
        assert lines(widget)[:4] == [
            "  name   note                  GiB          age",
            "▌ bolt   worker                ▄▄▄▁▁▁ 1/2  live",
            "  atlas  head                  ▄▄▄▁▁▁ 1/2  live",
            "  cedar                        ▄▄▄▁▁▁ 1/2  live"]


async def test_an_empty_table_says_so() -> None:
    async with table() as (widget, _, _pilot):
        widget.show(())
        assert lines(widget)[1] == "  nothing here"


async def test_only_the_changed_row_is_repainted() -> None:
    async with table() as (widget, _, pilot):
        widget.show(ROWS)
        await pilot.pause()
        dirty: list[Region] = []
        widget.refresh = lambda *regions, **_: dirty.extend(regions)  # type: ignore[method-assign,assignment]
        widget.show(ROWS)
        assert dirty == []
        widget.show((ROWS[0], row("atlas", "busy"), ROWS[2]))
        assert [(region.y, region.height) for region in dirty] == [(2, 1)]


async def test_the_cursor_stays_on_its_row_when_rows_come_and_go() -> None:
    async with table() as (widget, app, pilot):
        widget.show(ROWS)
        await pilot.press("down")
        assert widget.cursor_key == "atlas"
        widget.show((row("aaa"), *ROWS))
        assert widget.cursor_key == "atlas"
        widget.show((row("aaa"), ROWS[0]))
        await pilot.pause()
        assert widget.cursor_key in ("aaa", "bolt")
        assert app.heard[-1] == ("on", widget.cursor_key)


async def test_keys_move_choose_sort_and_reverse() -> None:
    async with table() as (widget, app, pilot):
        widget.show(ROWS)
        await pilot.press("j", "j", "k", "G")
        assert widget.cursor_key == "cedar"
        await pilot.press("g", "enter")
        assert app.heard[-1] == ("chosen", "bolt")
        await pilot.press("o")
        assert [each.key for each in widget.rows] == ["atlas", "bolt", "cedar"]
        assert lines(widget)[0].startswith("  name↑")
        await pilot.press("O")
        assert [each.key for each in widget.rows] == ["cedar", "bolt", "atlas"]


async def test_the_cursor_is_always_on_the_screen() -> None:
    async with table((60, 5)) as (widget, _, pilot):
        widget.show([row(f"node{number:02d}") for number in range(30)])
        await pilot.press("pagedown", "pagedown", "down")
        assert any(text.startswith("▌") for text in lines(widget))
        await pilot.press("end")
        assert widget.cursor_key == "node29" and any(text.startswith("▌ node29") for text in lines(widget))
        await pilot.press("home")
        assert any(text.startswith("▌ node00") for text in lines(widget))


async def test_the_filter_finds_words_and_leaves_out_others() -> None:
    async with table() as (widget, _, _pilot):
        widget.show(ROWS)
        widget.filter("work")
        assert [each.key for each in widget.rows] == ["bolt"]
        widget.filter("!work !cedar")
        assert [each.key for each in widget.rows] == ["atlas"]
        widget.filter("nothing like it")
        assert widget.rows == () and "esc shows all" in lines(widget)[1]
        widget.filter("")
        assert len(widget.rows) == 3 == widget.total


def test_columns_that_are_needed_least_fall_away_first() -> None:
    assert list(layout(COLUMNS, ROWS, 60)) == ["name", "note", "memory", "age"]
    assert list(layout(COLUMNS, ROWS, 24)) == ["name", "note", "age"]
    assert list(layout(COLUMNS, ROWS, 12)) == ["name", "age"]


def test_a_growing_column_takes_the_room_up_to_its_most() -> None:
    assert layout(COLUMNS, ROWS, 200)["note"] == 20
    assert layout(COLUMNS, ROWS, 36)["note"] < 20


def test_a_row_is_found_by_words_that_are_not_shown() -> None:
    assert passes(Row("a", (line("atlas"),), search="alias.local"), "alias")


def test_numbers_sort_before_words() -> None:
    assert sort_value(row("a", share=0.1), 2) < sort_value(row("a"), 0)
