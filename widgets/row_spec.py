"""Columns and rows of a table, and how wide the columns are. Knows no Textual."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from widgets.meters import Meter
from widgets.spans import Keep, Line, plain, width_of

Cell = Line | Meter
GAP = 2                        # cells between columns


@dataclass(frozen=True, slots=True)
class Column:
    """One column: as wide as its widest cell, between `least` and `most`."""

    key: str
    title: str
    least: int
    most: int
    need: int = 0              # 0 = always shown; the highest goes first when there is no room
    right: bool = False        # figures
    keep: Keep = Keep.START    # which end stays when a cell is cut
    grow: bool = False         # takes room that is left, gives room that is missing
    keeps: int = 0             # of a growing one with that much to say: before it gives more, others fall away

    @property
    def floor(self) -> int:
        """Cells that a growing column does not give."""
        return max(self.least, self.keeps)


@dataclass(frozen=True, slots=True)
class Row:
    """One row: cells in the order of the columns."""

    key: str
    cells: tuple[Cell, ...]
    order: tuple[str | float, ...] = ()        # what to sort by, a column each
    search: str = ""                           # more words that the filter finds


def text_of(cell: Cell) -> str:
    """The words of a cell, without its bar."""
    return plain(cell.figures if isinstance(cell, Meter) else cell)


def passes(row: Row, words: str) -> bool:
    """Whether every word of a filter is somewhere in the row; `!word` must not be."""
    haystack = " ".join((*(text_of(cell) for cell in row.cells), row.search)).casefold()
    for word in words.casefold().split():
        if word.startswith("!") and len(word) > 1:
            if word[1:] in haystack:
                return False
        elif word not in haystack:
            return False
    return True


def layout(columns: Sequence[Column], rows: Sequence[Row], room: int) -> dict[str, int]:
    """Widths of the columns that fit into `room` cells, by key, in order.

    Where not all fit, those that are needed least fall away; then the growing ones give, down to
    what they keep. Where there is more room, they take it, up to their most, the first one first.
    """
    wanted = {}
    for index, column in enumerate(columns):
        widest = max((_natural(row.cells[index], column) for row in rows), default=0)
        wanted[column.key] = min(max(widest, column.least, len(column.title)), column.most)
    kept = list(columns)

    def used(at_least: bool) -> int:
        sizes = (min(c.floor, wanted[c.key]) if at_least and c.grow else wanted[c.key] for c in kept)
        return sum(sizes) + GAP * max(len(kept) - 1, 0)

    while used(True) > room and any(column.need for column in kept):
        kept.remove(max(kept, key=lambda column: column.need))
    spare = room - used(False)
    widths = {column.key: wanted[column.key] for column in kept}
    for column in (column for column in kept if column.grow):
        width = widths[column.key]
        widths[column.key] = min(max(width + spare, min(column.floor, width)), max(column.most, width))
        spare -= widths[column.key] - width
    return widths


def _natural(cell: Cell, column: Column) -> int:
    return column.least if isinstance(cell, Meter) else width_of(cell)


def sort_value(row: Row, column: int) -> tuple[int, str | float]:
    """A column may hold numbers in one row and words in another."""
    value = row.order[column] if column < len(row.order) else text_of(row.cells[column])
    return (0, value) if isinstance(value, int | float) else (1, value.casefold())
