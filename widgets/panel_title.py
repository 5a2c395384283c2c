"""The title of a panel: a name, a note, and a rule between them; lit when its panel has the keys."""

from __future__ import annotations

from textual.strip import Strip

from widgets.spans import Keep, Line, Span, Tone, cut, fit, width_of
from widgets.tone_view import ToneView


class PanelTitle(ToneView):
    """One line above a panel."""

    DEFAULT_CSS = """
    PanelTitle { height: 1; overflow: hidden; }
    """

    def __init__(self, text: str, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._text = text
        self._note: Line = ()
        self._lit = False

    def show(self, text: str, note: Line = ()) -> None:
        """Take another name and note."""
        if (text, note) != (self._text, self._note):
            self._text, self._note = text, note
            self.refresh()

    def light(self, on: bool) -> None:
        """Whether the keys go to the panel below."""
        if on != self._lit:
            self._lit = on
            self.refresh()

    def composed(self, width: int) -> Line:
        """The line in exactly `width` cells."""
        mark = Span("━━ " if self._lit else "── ", Tone.ACCENT if self._lit else Tone.TRACK)
        name = Span(cut(self._text, max(width - 4, 0)), Tone.ACCENT if self._lit else Tone.MUTED)
        room = width - width_of((mark, name)) - 4
        note = fit(self._note, min(width_of(self._note), room), Keep.START) if self._note and room > 8 else ()
        used = width_of((mark, name)) + 1 + (width_of(note) + 1 if note else 0)
        rule = Span(("━" if self._lit else "─") * max(width - used, 0), mark.tone)
        return (mark, name, Span(" "), rule, *((Span(" "), *note) if note else ()))

    def render_line(self, y: int) -> Strip:
        """The line."""
        return self.drawn(self.composed(self.size.width) if y == 0 else (), self.size.width)
