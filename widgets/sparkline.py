"""How a figure went over time: a column a sample, the newest at the right end. Line API."""

from __future__ import annotations

from collections.abc import Sequence

from textual import events
from textual.strip import Strip

from widgets.ramp import Graphs, columns, samples_of, steps_of
from widgets.spans import Line, Span, Tone, cut, differing, line
from widgets.tone_view import ToneView

STEPS = (1.0, 1.5, 2.0, 3.0, 5.0, 8.0)
TITLE = 10                     # cells for a name and a gap
GROOVE = {Graphs.BLOCKS: "▁", Graphs.BRAILLE: "\u2800", Graphs.ASCII: "_"}     # where there was nothing
LEAST = {Graphs.BLOCKS: 2, Graphs.BRAILLE: 1, Graphs.ASCII: 1}     # steps of what is there: no colour tells it apart


def nice_top(value: float) -> float:
    """The least of 1, 1.5, 2, 3, 5, 8, 10, 15 ... not below `value`: a scale that stays the same most of the time."""
    power = 1.0
    while power * 8 < value and power < 1e15:
        power *= 10
    return next((power * step for step in STEPS if power * step >= value), power * 8)


def chart(values: Sequence[float], top: float, width: int, height: int = 1, graphs: Graphs = Graphs.BLOCKS,
          tone: Tone = Tone.BAR) -> tuple[Line, ...]:
    """`height` lines of exactly `width` cells, the highest first. Something above nothing always shows.

    Args:
        values: samples, newest last; what does not fit is left out from the old end, and what is missing stays empty.
        top: what a column of the full height stands for.
    """
    if width <= 0 or height <= 0:
        return ()
    room = width * samples_of(graphs)
    kept = [value if value == value else 0.0 for value in values[-room:]]
    most = steps_of(graphs) * height
    top = max(top, 1e-9)
    heights = [0] * (room - len(kept)) + [
        max(round(min(value / top, 1.0) * most), LEAST[graphs]) if value > 0 else 0 for value in kept]
    # Cells of the lowest row that have a sample, however small: they show that there was a time with nothing.
    first = (room - len(kept)) // samples_of(graphs)
    out = []
    for row in reversed(range(height)):
        cells = columns(heights, row, graphs)
        out.append(line(Span(cells, tone)) if row else _lowest(cells, first, graphs, tone))
    return tuple(out)


def _lowest(cells: str, first: int, graphs: Graphs, tone: Tone) -> Line:
    """The row on the ground: a groove where a sample was nothing."""
    spans: list[Span] = [Span(cells[:first])] if first else []
    nothing = {" ", "\u2800"}
    start = first
    for index in range(first, len(cells) + 1):
        if index == len(cells) or (cells[index] in nothing) != (cells[start] in nothing):
            if index > start:
                empty = cells[start] in nothing
                spans.append(Span(GROOVE[graphs] * (index - start), Tone.TRACK) if empty
                             else Span(cells[start:index], tone))
            start = index
    return tuple(spans)


class Sparkline(ToneView):
    """A chart as high as the widget, with words left of it and its scale at its right."""

    DEFAULT_CSS = """
    Sparkline { height: 1; overflow: hidden; }
    """

    def __init__(self, title: str = "", *, graphs: Graphs = Graphs.BLOCKS, id: str | None = None) -> None:
        """`title` stands left of the first line, in TITLE cells; "" = it takes no room."""
        super().__init__(id=id)
        self._title = title
        self._graphs = graphs
        self._values: tuple[float, ...] = ()
        self._top = 1.0
        self._marks: tuple[str, str] = ("", "")
        self._tone = Tone.BAR
        self._lines: tuple[Line, ...] = ()

    def show(self, values: Sequence[float], top: float, marks: tuple[str, str] = ("", ""), *,
             tone: Tone = Tone.BAR) -> None:
        """Take new samples; `marks` are what stands at the upper and the lower end of the scale."""
        self._values, self._top, self._marks, self._tone = tuple(values), top, marks, tone
        before, self._lines = self._lines, self.composed(self.size.width, self.size.height)
        for y, new in enumerate(self._lines):
            old = before[y] if y < len(before) else ()
            if new != old:
                first, end = differing(old, new)
                self.refresh_rows(y, across=(first, end - first))

    def draw_with(self, graphs: Graphs) -> None:
        """Other graph symbols."""
        if graphs is not self._graphs:
            self._graphs = graphs
            self.show(self._values, self._top, self._marks, tone=self._tone)

    def composed(self, width: int, height: int) -> tuple[Line, ...]:
        """All lines, each of exactly `width` cells."""
        left = TITLE if self._title else 0
        right = max(len(mark) for mark in self._marks)
        room = width - left - (right + 1 if right else 0)
        if room < 4:
            left = right = 0
            room = width
        drawn = chart(self._values, self._top, room, height, self._graphs, self._tone)
        out = []
        for y, spans in enumerate(drawn):
            title = Span(f"{cut(self._title, left - 2) if y == 0 else '':<{left}}", Tone.MUTED)
            # A chart of one line has room for the upper end alone.
            mark = self._marks[0] if y == 0 else self._marks[1] if y == height - 1 else ""
            out.append(line(title, *spans, Span(f" {mark:>{right}}" if right else "", Tone.MUTED)))
        return tuple(out)

    def on_resize(self, event: events.Resize) -> None:
        """Another number of samples fits."""
        self._lines = self.composed(self.size.width, self.size.height)
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """The line."""
        if len(self._lines) != self.size.height:
            self._lines = self.composed(self.size.width, self.size.height)
        return self.drawn(self._lines[y] if y < len(self._lines) else (), self.size.width)

