"""A step of a plan as one line: what has been done, what is being done, what comes. Knows no Textual."""

from __future__ import annotations

from dataclasses import dataclass

from widgets.meters import bar
from widgets.spans import Keep, Line, Span, Tone, fit, line, width_of, wrap

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
    telling: bool = False      # the detail is worth lines of its own: why it failed

    def lines(self, width: int) -> tuple[Line, ...]:
        """One line; a telling detail follows on its own lines."""
        head = line(Span(f"{self.glyph} ", self.tone))
        tail: list[Span] = []
        if self.progress is not None:
            tail += [*bar(self.progress, BAR), Span(f" {round(self.progress * 100):3d}%")]
        elif self.detail and not self.telling:
            tail.append(Span(self.detail, Tone.MUTED))
        if self.took:
            tail.append(Span(f"{'  ' if tail else ''}{self.took}", Tone.MUTED))
        if self.word:
            tail.append(Span(f"{'  ' if tail else ''}{self.word}", self.tone))
        most = max(width - width_of(head) - 14, 0)
        ending = tuple(tail)
        if width_of(ending) > most:
            ending = fit(ending, most, Keep.END)
        room = width - width_of(head) - width_of(ending) - (2 if ending else 0)
        title_tone = Tone.STRONG if self.current else Tone.MUTED if not self.word else Tone.PLAIN
        first = (*head, *fit((Span(self.title, title_tone),), max(room, 0)), Span("  " if ending else ""), *ending)
        if not (self.detail and self.telling):
            return (first,)
        below = wrap((Span("  "), Span(self.detail, self.tone)), width, 2)
        return (first, *below)
