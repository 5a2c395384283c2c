"""A bar of several parts: what of a device's memory is taken by what. As spans; knows no Textual.

Every kind of part has a glyph of its own, so that it is read without colours too.
"""

from __future__ import annotations

from dataclasses import dataclass

from widgets.meters import Meter
from widgets.spans import Line, Span, Tone, fit, line, width_of

SHORTEST = 6                   # cells; in less no two parts could be told apart


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a bar, in any unit that all parts share."""

    amount: float
    glyph: str
    tone: Tone


@dataclass(frozen=True, slots=True)
class SplitBar(Meter):
    """Parts beside each other on the scale of `whole`: the rest of the bar is what others could have.

    Bars with the same `whole` can be compared: a device half the size has a bar half as long.
    """

    parts: tuple[Part, ...] = ()
    whole: float = 0.0

    def drawn(self, width: int) -> Line:
        """The bar, a space and the figures, in exactly `width` cells."""
        room = min(width - width_of(self.figures) - (1 if self.figures else 0), self.longest)
        if room < SHORTEST or self.whole <= 0:
            return fit(self.figures, width)
        return fit(line(*split_bar(self.parts, self.whole, room), " " if self.figures else "", *self.figures), width)


def split_bar(parts: tuple[Part, ...], whole: float, width: int) -> Line:
    """`width` cells for `whole`. A part that is there has a cell at least; later parts give way to earlier ones."""
    cells: list[int] = []
    reached, drawn = 0.0, 0
    for part in parts:
        reached += max(part.amount, 0.0)
        end = min(round(reached / whole * width), width)
        if part.amount > 0 and end <= drawn:
            end = min(drawn + 1, width)
        cells.append(max(end - drawn, 0))
        drawn = max(end, drawn)
    return line(*(Span(part.glyph * count, part.tone) for part, count in zip(parts, cells, strict=True)),
                Span(" " * (width - drawn)))
