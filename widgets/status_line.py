"""One line with a left and a right end; the right one gives way."""

from __future__ import annotations

from textual.strip import Strip

from widgets.spans import Keep, Line, Span, fit, width_of
from widgets.tone_view import ToneView


class StatusLine(ToneView):
    """What is so now, in one line."""

    DEFAULT_CSS = """
    StatusLine { height: 1; overflow: hidden; }
    """

    def __init__(self, left: Line = (), right: Line = (), *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._left = left
        self._right = right

    def show(self, left: Line, right: Line = ()) -> None:
        """Take new ends."""
        if (left, right) != (self._left, self._right):
            self._left, self._right = left, right
            self.refresh()

    def composed(self, width: int) -> Line:
        """Both ends in exactly `width` cells."""
        room = width - width_of(self._left) - 2
        if self._right and room >= min(width_of(self._right), 12):
            right = fit(self._right, min(room, width_of(self._right)), Keep.START)
            return (*fit(self._left, width - width_of(right)), *right)
        return fit(self._left, width)

    def render_line(self, y: int) -> Strip:
        """The line."""
        width = self.size.width
        inner = (Span(" "), *self.composed(max(width - 2, 0)), Span(" "))
        return self.drawn(inner if y == 0 else (), width)
