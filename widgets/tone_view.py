"""The base of every widget here: lines of toned text drawn with the Line API, repainted line by line.

Textual writes every dirty region again in full (no cell diff), so what a widget repaints is what it
costs. A ToneView keeps the lines it drew and repaints those that differ.
"""

from __future__ import annotations

from rich.segment import Segment
from rich.style import Style
from textual.color import Color, ColorParseError
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from widgets.spans import Line, Tone

# The theme's variable for each tone. Not component classes: Textual makes a node for each of them in each widget
# and puts the style sheet to it, which was a third of the time to the first frame.
COLOURS = {
    Tone.PLAIN: "foreground", Tone.MUTED: "text-muted", Tone.STRONG: "foreground", Tone.GOOD: "text-success",
    Tone.WARN: "text-warning", Tone.BAD: "text-error", Tone.ACCENT: "text-accent", Tone.BAR: "primary",
    Tone.TRACK: "border-blurred", "title": "text-muted",
    "cursor": "block-cursor-background",           # the row under the cursor while the widget has the focus
    "mark": "block-cursor-blurred-background",     # the same without the focus
}
BOLD = frozenset({Tone.STRONG, Tone.BAD})


class ToneView(ScrollView):
    """Draws Lines; a subclass says which line stands at which y. Colours are the theme's (`COLOURS`)."""

    DEFAULT_CSS = """
    ToneView {
        scrollbar-size-vertical: 1;
        scrollbar-size-horizontal: 0;
        overflow-x: hidden;
    }
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._styles: dict[str, Style] = {}

    def notify_style_update(self) -> None:
        """The theme or a class changed: look every style up again."""
        self._styles = {}
        super().notify_style_update()

    def _colour(self, name: str) -> Color:
        """The theme's colour of that name on this widget's background."""
        behind = self.background_colors[1]
        said = self.app.theme_variables.get(COLOURS[name], "auto")
        try:
            colour = Color.parse(said)
        except ColorParseError:                    # "auto 60%" of Textual's own themes
            share = said.removeprefix("auto").strip().removesuffix("%")
            return behind + behind.get_contrast_text(float(share) / 100 if share else 1.0)
        return behind + colour

    def style_named(self, name: str) -> Style:
        """The foreground style of a tone, without a background."""
        style = self._styles.get(name)
        if style is None:
            style = Style(color=self._colour(name).rich_color, bold=True if name in BOLD else None)
            self._styles[name] = style
        return style

    def backdrop(self, name: str = "") -> Style:
        """The widget's background, or what "cursor" and "mark" make of it."""
        key = f"on {name}"
        style = self._styles.get(key)
        if style is None:
            style = Style(bgcolor=self._colour(name).rich_color if name else self.rich_style.bgcolor)
            self._styles[key] = style
        return style

    def drawn(self, spans: Line, width: int, *, on: str = "", tone: str = "") -> Strip:
        """The line as a Strip of exactly `width` cells, runs of one style merged.

        `on` says what it stands on ("cursor" or "mark"), `tone` overrides the spans' own.
        """
        behind = self.backdrop(on)
        runs: list[tuple[str, str]] = []
        for span in spans:
            name = tone or span.tone
            # Spaces look the same in every tone: they go with what stands before them. A style costs
            # about 40 bytes on the wire, and a table row has a gap for every column.
            if runs and (runs[-1][1] == name or span.text.isspace()):
                runs[-1] = (runs[-1][0] + span.text, runs[-1][1])
            else:
                runs.append((span.text, name))
        strip = Strip([Segment(text, behind + self.style_named(name)) for text, name in runs])
        return strip.adjust_cell_length(width, behind)

    def refresh_rows(self, first: int, count: int = 1, *, across: tuple[int, int] | None = None) -> None:
        """Repaint `count` lines of the widget from `first` (as seen, not as scrolled).

        `across` is (first cell, cells) where not the whole width has changed.
        """
        x, width = across or (0, self.size.width)
        first, end = max(first, 0), min(first + count, self.size.height)
        if end > first:
            self.refresh(Region(x, first, width, end - first))

    def extent(self, lines: int) -> None:
        """How many lines there are to scroll over."""
        size = Size(0, lines)
        if size != self.virtual_size:
            self.virtual_size = size

    def go_to(self, y: int) -> None:
        """Scroll so that line `y` is the first one, at once.

        Forced, since Textual does not scroll what has no scroll bar yet, and that one comes a layout later.
        """
        self.scroll_to(y=y, animate=False, force=True)
