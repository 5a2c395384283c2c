"""A step of a plan as one line: what has been done, what is being done, what comes. Knows no Textual."""

from __future__ import annotations

from dataclasses import dataclass

from rich.cells import cell_len

from widgets.meters import bar
from widgets.spans import Keep, Line, Span, Tone, fit, joined, line, width_of, wrap

BAR = 10                       # cells of a progress bar


@dataclass(frozen=True, slots=True)
class StepEntry:
    """One step: a glyph and a word for its state, a title, what it says of itself."""

    glyph: str
    word: str                  # shown unless it goes without saying (a step that waits)
    title: str
    tone: Tone = Tone.PLAIN
    detail: str = ""
    progress: float | None = None
    took: str = ""             # "3 s"
    current: bool = False
    dim: bool = False          # its turn has not come
    telling: bool = False      # the detail is worth lines of its own: why it failed

    def lines(self, width: int) -> tuple[Line, ...]:
        """One line; a telling detail follows on its own lines."""
        head = line(Span(f"{self.glyph} ", self.tone))
        room = width - width_of(head)
        tail = self._tail(room, bar_cells=BAR, detail=True)
        for bar_cells, detail in ((BAR, False), (0, False)):
            # The title comes first: what a step says of itself, then its bar, give way to it.
            if width_of(tail) + cell_len(self.title) + 2 <= room:
                break
            tail = self._tail(room, bar_cells=bar_cells, detail=detail)
        room -= width_of(tail) + (2 if tail else 0)
        title_tone = Tone.STRONG if self.current else Tone.MUTED if self.dim else Tone.PLAIN
        first = (*head, *fit((Span(self.title, title_tone),), max(room, 0)), Span("  " if tail else ""), *tail)
        if not (self.detail and self.telling):
            return (first,)
        below = wrap((Span("  "), Span(self.detail, self.tone)), width, 2)
        return (first, *below)

    def _tail(self, room: int, *, bar_cells: int, detail: bool) -> Line:
        """What stands at the right end."""
        parts: list[Line] = []
        if detail and self.detail and not self.telling:
            parts.append((Span(self.detail, Tone.MUTED),))
        if self.progress is not None:
            percent = Span(f"{round(self.progress * 100):3d}%")
            parts.append((*bar(self.progress, bar_cells), Span(" "), percent) if bar_cells else (percent,))
        if self.took:
            parts.append((Span(self.took, Tone.MUTED),))
        if self.word:
            parts.append((Span(self.word, self.tone),))
        tail = joined(parts)
        return tail if width_of(tail) <= room - 8 else fit(tail, max(room - 8, 0), Keep.END)
