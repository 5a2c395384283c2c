"""A table of many rows where few change: own Line API, one strip a row, cursor, filter and sort.

Textual's DataTable repaints as a whole for one changed cell (12 to 20 kB); this one repaints the
row (about 0.2 kB). Rows are known by key, so the cursor stays on its row when others come and go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.css.scalar import Unit
from textual.geometry import Size
from textual.message import Message
from textual.strip import Strip

from widgets.meters import Meter
from widgets.row_spec import GAP, Cell, Column, Row, layout, passes, sort_value
from widgets.spans import Line, Span, Tone, differing, fit
from widgets.tone_view import ToneView

MARK = "▌"
MARGIN = 2                     # cells before the first column: the mark and a space


class RowTable(ToneView, can_focus=True):
    """The table. `show` gives it rows; the rest is keys."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "cursor(-1)", "Up", show=False, id="table.up"),
        Binding("down,j", "cursor(1)", "Down", show=False, id="table.down"),
        Binding("pageup", "page(-1)", "Page up", show=False, id="table.page-up"),
        Binding("pagedown", "page(1)", "Page down", show=False, id="table.page-down"),
        Binding("home,g", "end(-1)", "First", show=False, id="table.first"),
        Binding("end,G", "end(1)", "Last", show=False, id="table.last"),
        Binding("enter", "choose", "Detail", id="table.choose", tooltip="Everything about it, over the whole screen"),
        Binding("o", "sort", "Sort", show=False, id="table.sort", tooltip="Sort by the next column"),
        Binding("O", "reverse", "Reverse", show=False, id="table.reverse", tooltip="Turn the order round"),
    ]

    @dataclass
    class Highlighted(Message):
        """The cursor came to a row, or has none to be on ("")."""

        table: RowTable
        key: str

        @property
        def control(self) -> RowTable:
            """The table it happened in."""
            return self.table

        def can_replace(self, message: Message) -> bool:
            """Of several moves the last counts."""
            return isinstance(message, RowTable.Highlighted) and message.table is self.table

    @dataclass
    class Chosen(Message):
        """Enter on a row."""

        table: RowTable
        key: str

        @property
        def control(self) -> RowTable:
            """The table it happened in."""
            return self.table

    @dataclass
    class LaidOut(Message):
        """Columns came to stand elsewhere: `place_of` says where."""

        table: RowTable

        @property
        def control(self) -> RowTable:
            """The table it happened in."""
            return self.table

        def can_replace(self, message: Message) -> bool:
            """Of several changes the last counts."""
            return isinstance(message, RowTable.LaidOut) and message.table is self.table

    def __init__(self, columns: Sequence[Column], *, empty: Sequence[Line] = (), id: str | None = None) -> None:
        super().__init__(id=id)
        self._columns = tuple(columns)
        self._given: tuple[Row, ...] = ()
        self._rows: tuple[Row, ...] = ()       # filtered and sorted
        self._widths: dict[str, int] = {}
        self._strips: dict[tuple[str, str], Strip] = {}
        self._empty = tuple(empty)
        self._key = ""
        self._filter = ""
        self._sort: int | None = None
        self._reverse = False

    # -- data ---------------------------------------------------------------------------------

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows as shown."""
        return self._rows

    @property
    def total(self) -> int:
        """Rows before the filter."""
        return len(self._given)

    @property
    def cursor_key(self) -> str:
        """Key of the row under the cursor; "" when there is no row."""
        return self._key

    def place_of(self, column: str) -> tuple[int, int]:
        """(first cell, cells) of a column as it is drawn now; (0, 0) while it is not."""
        x = MARGIN
        for key, width in self._widths.items():
            if key == column:
                return x, width
            x += width + GAP
        return 0, 0

    def show(self, rows: Sequence[Row], *, empty: Sequence[Line] | None = None) -> None:
        """Take new rows; what differs is repainted, nothing else."""
        if empty is not None and tuple(empty) != self._empty:
            self._empty = tuple(empty)
            if not self._rows:
                self._resize()
                self.refresh()
        if tuple(rows) != self._given:
            self._given = tuple(rows)
            self._update()

    def filter(self, words: str) -> None:
        """Show the rows that `passes` alone; "" shows all."""
        if words != self._filter:
            self._filter = words
            self._update()

    def select(self, key: str) -> None:
        """Put the cursor on a row, if it is there."""
        for index, row in enumerate(self._rows):
            if row.key == key:
                self._move(index)

    def _update(self) -> None:
        before, index = self._rows, self._index
        rows = [row for row in self._given if passes(row, self._filter)] if self._filter else list(self._given)
        if self._sort is not None:
            column = self._sort
            rows.sort(key=lambda row: sort_value(row, column), reverse=self._reverse)
        self._rows = tuple(rows)
        widths = layout(self._columns, self._rows, self._room)
        if len(before) != len(self._rows):
            self._resize()
        if widths != self._widths or not before or not rows:
            self._lay_out(widths)
            self._strips = {}
            self.refresh()
        else:
            self._repaint_changes(before)
        keys = {row.key for row in rows}
        if self._key not in keys:
            self._key = rows[min(index, len(rows) - 1)].key if rows else ""
            self._announce()

    def _lay_out(self, widths: dict[str, int]) -> None:
        if widths != self._widths:
            self._widths = widths
            self.post_message(self.LaidOut(self))

    @property
    def _height(self) -> int:
        """Lines: titles and rows, or what stands there when there is none."""
        return 1 + (len(self._rows) or len(self._empty))

    def _resize(self) -> None:
        self.extent(self._height)
        if self.styles.is_auto_height:
            self.refresh(layout=True)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """For `height: auto`; a box around it takes no note of a greatest height of ours, so that is kept here."""
        most = self.styles.max_height
        if most is None or most.unit not in (Unit.CELLS, Unit.VIEW_HEIGHT):
            return self._height
        return min(self._height, int(most.resolve(container, viewport)))

    def _repaint_changes(self, before: tuple[Row, ...]) -> None:
        top = self.scroll_offset.y
        for index in range(max(len(before), len(self._rows))):
            old = before[index] if index < len(before) else None
            new = self._rows[index] if index < len(self._rows) else None
            if old == new:
                continue
            for key in {row.key for row in (old, new) if row is not None}:
                for kind in ("", "cursor", "mark"):
                    self._strips.pop((key, kind), None)
            if old is None or new is None or old.key != new.key:
                self.refresh_rows(index + 1 - top)
            elif (across := self._changed(old, new)) is not None:
                self.refresh_rows(index + 1 - top, across=across)

    def _changed(self, old: Row, new: Row) -> tuple[int, int] | None:
        """(first cell, cells) that a row has to be drawn again in: a figure that moves is a tenth of its row."""
        x, first, end = MARGIN, None, 0
        for column, before, after in zip(self._columns, old.cells, new.cells, strict=True):
            width = self._widths.get(column.key)
            if width is None:
                continue
            if before != after:
                start, stop = differing(_drawn(before, column, width), _drawn(after, column, width))
                if stop > start:
                    first = x + start if first is None else first
                    end = x + stop
            x += width + GAP
        return None if first is None else (first, end - first)

    # -- cursor -------------------------------------------------------------------------------

    @property
    def _index(self) -> int:
        return next((index for index, row in enumerate(self._rows) if row.key == self._key), 0)

    def _move(self, index: int) -> None:
        if not self._rows:
            return
        index = min(max(index, 0), len(self._rows) - 1)
        old, top = self._index, self.scroll_offset.y
        moved = self._rows[index].key != self._key
        self._key = self._rows[index].key
        page = max(self.size.height - 1, 1)
        if index < top:
            self.go_to(index)
        elif index >= top + page:
            self.go_to(index - page + 1)
        if moved:
            self.refresh_rows(old + 1 - top)
            self.refresh_rows(index + 1 - self.scroll_offset.y)
            self._announce()

    def _announce(self) -> None:
        self.post_message(self.Highlighted(self, self._key))

    def action_cursor(self, by: int) -> None:
        """Move by rows."""
        self._move(self._index + by)

    def action_page(self, by: int) -> None:
        """Move by what fits on the screen."""
        self._move(self._index + by * max(self.size.height - 2, 1))

    def action_end(self, to: int) -> None:
        """To the first or the last row."""
        self._move(0 if to < 0 else len(self._rows) - 1)

    def action_choose(self) -> None:
        """Say that the row was chosen."""
        if self._key:
            self.post_message(self.Chosen(self, self._key))

    def action_sort(self) -> None:
        """Sort by the next column; after the last one, as the rows came."""
        following = 0 if self._sort is None else self._sort + 1
        self._sort = following if following < len(self._columns) else None
        self._resorted()

    def action_reverse(self) -> None:
        """Turn the order round."""
        self._reverse = not self._reverse
        self._resorted()

    def _resorted(self) -> None:
        self._update()
        self.refresh_rows(0)
        self._move(self._index)

    # -- drawing ------------------------------------------------------------------------------

    @property
    def _room(self) -> int:
        return max(self.scrollable_content_region.width - 3, 10)

    def on_resize(self, event: events.Resize) -> None:
        """Columns come and go with the width."""
        self.extent(self._height)
        self._lay_out(layout(self._columns, self._rows, self._room))
        self._strips = {}
        self.refresh()

    def notify_style_update(self) -> None:
        """New colours: draw every row again."""
        self._strips = {}
        super().notify_style_update()

    def on_focus(self) -> None:
        """The cursor is seen better where the keys go."""
        self.refresh_rows(self._index + 1 - self.scroll_offset.y)

    def on_blur(self) -> None:
        """And worse where they do not."""
        self.refresh_rows(self._index + 1 - self.scroll_offset.y)

    def render_line(self, y: int) -> Strip:
        """Titles first, then rows; what says that there is none stands in their place."""
        width = self.size.width
        if y == 0:
            return self.drawn(self._titles() if self._rows else (), width, tone="title")
        index = y - 1 + self.scroll_offset.y
        if not self._rows:
            spans = self._empty_line(index)
            return self.drawn((Span("  "), *spans), width)
        if index >= len(self._rows):
            return self.drawn((), width)
        row = self._rows[index]
        kind = ("cursor" if self.has_focus or not self.can_focus else "mark") if row.key == self._key else ""
        strip = self._strips.get((row.key, kind))
        if strip is None or strip.cell_length != width:
            strip = self.drawn(self._line(row, kind), width, on=kind)
            self._strips[row.key, kind] = strip
        return strip

    def _empty_line(self, index: int) -> Line:
        if self._filter and self._given:
            note = f"None of {len(self._given)} matches “{self._filter}”. esc shows all."
            return (Span(note, Tone.MUTED),) if index == 0 else ()
        return self._empty[index] if index < len(self._empty) else ()

    def _titles(self) -> Line:
        out: list[Span] = [Span("  ")]
        for index, column in enumerate(self._columns):
            if column.key in self._widths:
                arrow = ("↓" if self._reverse else "↑") if index == self._sort else ""
                out += [*fit((Span(column.title + arrow),), self._widths[column.key], right=column.right),
                        Span(" " * GAP)]
        return tuple(out)

    def _line(self, row: Row, kind: str) -> Line:
        out: list[Span] = [Span(MARK if kind == "cursor" else " ", Tone.ACCENT), Span(" ")]
        for cell, column in zip(row.cells, self._columns, strict=True):
            width = self._widths.get(column.key)
            if width is None:
                continue
            out += [*_drawn(cell, column, width), Span(" " * GAP)]
        return tuple(out)


def _drawn(cell: Cell, column: Column, width: int) -> Line:
    return cell.drawn(width) if isinstance(cell, Meter) else fit(cell, width, column.keep, right=column.right)
