"""Graph symbols: what graphs are drawn with, and ramps of at most six levels of them. Knows no Textual.

Blocks are in every monospaced font; braille shows twice as much in a cell where the font has it; ASCII is what is left
for terminals that show nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum


class Graphs(StrEnum):
    """What graphs are drawn with."""

    BLOCKS = "blocks"
    BRAILLE = "braille"
    ASCII = "ascii"


DENSITY = {Graphs.BLOCKS: "·░▒▓█", Graphs.ASCII: ".:=%#"}         # nothing, then ever more, then all
HEIGHT = {Graphs.BLOCKS: " ▁▂▃▄▅▆▇█", Graphs.ASCII: " .:|#"}      # of a column within a cell
FEW = {Graphs.BLOCKS: "✕▁▂▄▆█", Graphs.BRAILLE: "✕⣀⣤⣶⣾⣿", Graphs.ASCII: "!12345"}    # none, 1, 2 ... 5 and more
DOTS = 4                       # of a column of a braille cell
_LEFT, _RIGHT = (0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08)      # from the bottom up


def level_of(part: float, whole: float, levels: int) -> int:
    """Which of `levels` stands for `part` of `whole`: the first for nothing alone, the last for all alone."""
    if part <= 0 or whole <= 0:
        return 0
    if part >= whole:
        return levels - 1
    return min(1 + int(part / whole * (levels - 2)), levels - 2) if levels > 2 else 0


def braille(left: int, right: int) -> str:
    """A cell with two columns, each 0 to 4 dots high."""
    return chr(0x2800 + sum(_LEFT[:max(left, 0)]) + sum(_RIGHT[:max(right, 0)]))


def columns(heights: Sequence[int], row: int, graphs: Graphs) -> str:
    """One row of a bar chart, `row` 0 being the lowest. `heights` are in `steps` of a cell; two a cell in braille."""
    steps = steps_of(graphs)
    rest = [min(max(height - row * steps, 0), steps) for height in heights]
    if graphs is Graphs.BRAILLE:
        return "".join(braille(left, right) for left, right in zip(rest[::2], rest[1::2], strict=True))
    return "".join(HEIGHT[graphs][height] for height in rest)


def steps_of(graphs: Graphs) -> int:
    """Heights that a cell can tell apart, besides nothing."""
    return DOTS if graphs is Graphs.BRAILLE else len(HEIGHT[graphs]) - 1


def samples_of(graphs: Graphs) -> int:
    """Columns of a chart in one cell."""
    return 2 if graphs is Graphs.BRAILLE else 1
