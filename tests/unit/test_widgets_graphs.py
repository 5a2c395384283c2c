"""Charts, bitfields and rarity: what they draw, in exactly the cells there are, and what they repaint."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.app import App, ComposeResult
from textual.geometry import Region

from widgets.bitfield import MANY, CopiesLine, PieceMap, Pieces, copies, counts, field, rarity
from widgets.ramp import Graphs, level_of
from widgets.row_spec import Column, Row
from widgets.row_table import RowTable
from widgets.spans import Span, Tone, differing, line, plain, width_of
from widgets.sparkline import Sparkline, chart, nice_top

GRAPHS = pytest.mark.parametrize("graphs", list(Graphs))


def bits(text: str) -> bytes:
    """A bitfield from "1101..."."""
    padded = text + "0" * (-len(text) % 8)
    return bytes(int(padded[at:at + 8], 2) for at in range(0, len(padded), 8))


# -- ramps and fields -----------------------------------------------------------------------------


def test_the_ends_of_a_ramp_stand_for_nothing_and_for_all_alone() -> None:
    assert [level_of(part, 83, 5) for part in (0, 1, 27, 28, 56, 82, 83, 99)] == [0, 1, 1, 2, 3, 3, 4, 4]
    assert level_of(1, 0, 5) == 0 and level_of(1, 2, 2) == 0


def test_a_cell_stands_for_its_run_of_pieces() -> None:
    have = bits("1111" "0000" "1000" "1110")
    assert counts(have, 16, 4) == ((4, 4), (0, 4), (1, 4), (3, 4))
    assert plain(field(have, 16, 4)) == "█·░▓"
    assert plain(field(have, 16, 4, Graphs.ASCII)) == "#.:%"
    assert plain(field(have, 16, 2, Graphs.BRAILLE)) == "⡇⣰"


def test_fewer_pieces_than_cells_take_several_each() -> None:
    assert plain(field(bits("101"), 3, 9)) == "███···███"


def test_a_field_that_is_too_short_lacks_what_it_does_not_tell() -> None:
    assert counts(b"\xff", 16, 2) == ((8, 8), (0, 8)) and counts(b"", 16, 1) == ((0, 16),)
    assert counts(b"\xff" * 100, 8, 1) == ((8, 8),), "what is told beyond the end is nothing"


@given(st.binary(max_size=40), st.integers(0, 300), st.integers(0, 90), st.sampled_from(list(Graphs)))
def test_every_field_takes_exactly_its_cells(have: bytes, pieces: int, width: int, graphs: Graphs) -> None:
    assert width_of(field(have, pieces, width, graphs)) == width
    if pieces and width:
        assert width_of(rarity((have, b"\xff"), pieces, width, graphs)) == width
    drawn = PieceMap(have, pieces, 4, graphs=graphs).lines(width)
    assert all(width_of(each) == width for each in drawn) and len(drawn) <= 4


def test_copies_are_those_of_the_rarest_piece_of_a_run() -> None:
    fields = (bits("11111111"), bits("11110000"), bits("11000001"))
    assert copies(fields, 8, 8) == (3, 3, 2, 2, 1, 1, 1, 2)
    assert copies(fields, 8, 4) == (3, 2, 1, 1)
    assert copies(fields[1:], 8, 2) == (1, 0)
    assert copies((b"\xff",) * 20, 8, 1) == (MANY,)
    assert plain(rarity(fields[1:], 8, 4)) == "▂▁✕✕" and plain(rarity(fields[1:], 8, 4, Graphs.ASCII)) == "21!!"


def test_a_piece_that_nobody_has_is_told_by_glyph_and_tone() -> None:
    assert rarity((bits("1100"),), 4, 2) == (Span("▁", Tone.WARN), Span("✕", Tone.BAD))


def test_a_map_gives_every_piece_a_cell_where_there_is_room() -> None:
    drawn = PieceMap(bits("1111000011"), 10, 5).lines(5)
    assert [plain(each) for each in drawn] == ["████·", "···██"]


# -- charts ---------------------------------------------------------------------------------------


def test_a_chart_shows_what_is_there_and_a_groove_for_nothing() -> None:
    assert [plain(each) for each in chart((0, 1, 4, 8), 8, 6)] == ["  ▁▂▄█"]
    assert [plain(each) for each in chart((0, 8, 16), 16, 3, 2)] == ["  █", "▁██"]
    assert [plain(each) for each in chart((0, 4, 8, 8), 8, 2, graphs=Graphs.BRAILLE)] == ["⢠⣿"]
    assert [plain(each) for each in chart((0, 4, 8), 8, 3, graphs=Graphs.ASCII)] == ["_:#"]
    assert chart((0, 1), 8, 2)[0][0].tone is Tone.TRACK


@GRAPHS
@given(values=st.lists(st.floats(), max_size=60), top=st.floats(0, 1e9), width=st.integers(0, 40),
       height=st.integers(0, 4))
def test_every_chart_takes_exactly_its_cells(graphs: Graphs, values: list[float], top: float, width: int,
                                             height: int) -> None:
    drawn = chart(values, top, width, height, graphs)
    assert len(drawn) == (height if width else 0) and all(width_of(each) == width for each in drawn)


def test_scales_are_round_and_never_below() -> None:
    assert [nice_top(value) for value in (0, 1, 3, 17, 112, 501, 81)] == [1, 1, 3, 20, 150, 800, 100]
    assert nice_top(float("inf")) < float("inf")


def test_lines_differ_from_the_first_to_the_last_cell_that_does() -> None:
    assert differing(line("abcdef"), line("abXdYf")) == (2, 5)
    assert differing(line("abc"), line("abc")) == (0, 0)
    assert differing(line("ab", Span("c", Tone.BAD)), line("abc")) == (2, 3), "a tone is a difference"
    assert differing(line("abc"), line("abcd")) == (0, 4) and differing(line("日本"), line("日木")) == (0, 4)


# -- widgets --------------------------------------------------------------------------------------


class GraphApp(App[None]):
    def compose(self) -> ComposeResult:
        yield Sparkline("tok/s", id="spark")
        yield RowTable((Column("name", "name", 4, 8), Column("pieces", "pieces", 10, 80, grow=True),
                        Column("done", "done", 4, 4, right=True)), id="table")
        yield CopiesLine("copies", id="copies")

    def on_mount(self) -> None:
        self.query_one("#spark").styles.height = 2
        self.query_one("#table").styles.height = 4


@asynccontextmanager
async def graphs_app() -> AsyncIterator[GraphApp]:
    app = GraphApp()
    async with app.run_test(size=(50, 10)) as pilot:
        await pilot.pause()
        yield app


def watched(monkeypatch: pytest.MonkeyPatch, widget: object) -> list[tuple[int, int, int, int]]:
    seen: list[tuple[int, int, int, int]] = []

    def refresh(*regions: Region, **_: object) -> None:
        seen.extend(tuple(region) for region in regions)
        if not regions:
            seen.append((-1, -1, -1, -1))
    monkeypatch.setattr(widget, "refresh", refresh)
    return seen


async def test_a_sparkline_has_its_name_and_scale_and_repaints_what_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    async with graphs_app() as app:
        spark = app.query_one(Sparkline)
        values = [50.0] * 36 + [100.0]
        spark.show(values, 100, ("100", "0"))
        assert spark.render_line(0).text == "tok/s     " + " " * 35 + "█" + " 100"
        assert spark.render_line(1).text == "          " + "█" * 36 + "   0"
        seen = watched(monkeypatch, spark)
        spark.show(values, 100, ("100", "0"))
        assert seen == []
        spark.show([*values[:-1], 75.0], 100, ("100", "0"))
        assert seen == [(45, 0, 1, 1)], "one cell of one line"


async def test_a_table_repaints_the_cells_of_a_bitfield_that_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    def row(text: str) -> Row:
        return Row("a", (line("atlas"), Pieces(None, have=bits(text), pieces=64), line("50%")))

    async with graphs_app() as app:
        table = app.query_one(RowTable)
        table.show((row("1" * 32 + "0" * 32),))
        x, width = table.place_of("pieces")
        assert table.render_line(1).text[x:x + width] == "█" * 17 + "·" * 17
        assert table.place_of("none") == (0, 0)
        seen = watched(monkeypatch, table)
        table.show((row("1" * 32 + "0" * 32),))
        assert seen == []
        table.show((row("1" * 32 + "0" * 31 + "1"),))
        assert seen == [(x + width - 1, 1, 1, 1)]


async def test_copies_stand_in_line_with_the_fields_above(monkeypatch: pytest.MonkeyPatch) -> None:
    async with graphs_app() as app:
        table, below = app.query_one(RowTable), app.query_one(CopiesLine)
        fields = (b"\xff" * 8, b"\xf0" * 4 + b"\0" * 4)
        table.show([Row(str(number), (line("atlas"), Pieces(None, have=have, pieces=64), line("50%")))
                    for number, have in enumerate(fields)])
        place = table.place_of("pieces")
        below.show(fields, 64, line("least 1"), place)
        text = below.render_line(0).text
        assert text.startswith("  copies"[:place[0]]) and set(text[place[0]:sum(place)]) <= set("▁▂")
        seen = watched(monkeypatch, below)
        below.show((fields[0], b"\xf0" * 4 + b"\0" * 3 + b"\xff"), 64, line("least 1"), place)
        assert seen and all(region[0] > place[0] + place[1] - 7 and region[2] <= 6 for region in seen)
        below.show((), 0, (), place)
        assert below.render_line(0).text.strip() == ""
