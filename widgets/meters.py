"""Bars of block glyphs, to an eighth of a cell, as spans."""

from __future__ import annotations

from dataclasses import dataclass

from widgets.spans import Line, Span, Tone, fit, line, width_of

FULL, HALF, GROOVE = "▄", "▖", "▁"      # half a cell high: rows of bars do not run together


@dataclass(frozen=True, slots=True)
class Meter:
    """A fraction of a whole and its figures: drawn as a bar in what room the figures leave.

    `fraction` None = not known: the track is left out and only the figures stand there.
    """

    fraction: float | None
    figures: Line = ()
    tone: Tone = Tone.BAR
    longest: int = 24          # cells; a longer bar tells no more

    def drawn(self, width: int) -> Line:
        """The bar, a space and the figures, in exactly `width` cells; a bar below four cells is left out."""
        room = width - width_of(self.figures) - (1 if self.figures else 0)
        room = min(room, self.longest)
        if self.fraction is None or room < 4:
            return fit(self.figures, width, right=False)
        return fit(line(*bar(self.fraction, room, self.tone), " " if self.figures else "", *self.figures), width)


def bar(fraction: float, width: int, tone: Tone = Tone.BAR) -> Line:
    """`fraction` (0..1, clamped) of `width` cells. Something above nothing always shows."""
    share = min(max(fraction, 0.0), 1.0)
    halves = round(share * width * 2)
    if share > 0:
        halves = max(halves, 1)
    whole, part = divmod(halves, 2)
    filled = FULL * whole + (HALF if part else "")
    return line(Span(filled, tone), Span(GROOVE * (width - len(filled)), Tone.TRACK))
