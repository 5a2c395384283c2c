"""The keys that do something here and now, in one line."""

from __future__ import annotations

from collections.abc import Sequence

from textual.strip import Strip

from widgets.spans import Line, Span, Tone, line, width_of
from widgets.tone_view import ToneView


class KeyLine(ToneView):
    """Keys and what they do; those that do not fit are left to the help page, which comes last and always fits."""

    DEFAULT_CSS = """
    KeyLine { height: 1; overflow: hidden; }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._keys: tuple[tuple[str, str], ...] = ()

    def show(self, keys: Sequence[tuple[str, str]]) -> None:
        """Take (key, what it does); the last one stays when there is no room for all."""
        if tuple(keys) != self._keys:
            self._keys = tuple(keys)
            self.refresh()

    def composed(self, width: int) -> Line:
        """As many keys as fit."""
        if not self._keys:
            return ()
        *most, last = (line(Span(key, Tone.ACCENT), Span(f" {what}", Tone.MUTED)) for key, what in self._keys)
        gap = Span("  ")
        left = width - width_of(last)
        out: list[Span] = []
        for each in most:
            if width_of(each) + 2 > left:
                break
            out += [*each, gap]
            left -= width_of(each) + 2
        return (*out, *last)

    def render_line(self, y: int) -> Strip:
        """The line."""
        width = self.size.width
        return self.drawn((Span(" "), *self.composed(max(width - 2, 0))) if y == 0 else (), width)
