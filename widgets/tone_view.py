"""The base of every widget here: lines of toned text drawn with the Line API, repainted line by line.

Textual writes every dirty region again in full (no cell diff), so what a widget repaints is what it
costs. A ToneView keeps the lines it drew and repaints those that differ.
"""

from __future__ import annotations

from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from widgets.spans import Line, Tone


class ToneView(ScrollView):
    """Draws Lines; a subclass says which line stands at which y.

    | Class | What |
    | :- | :- |
    | `tone--plain` ... `tone--track` | one for every `Tone` |
    | `tone--cursor` | background of the row under the cursor while the widget has the focus |
    | `tone--mark` | the same without the focus |
    | `tone--title` | column titles |
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        *(f"tone--{tone}" for tone in Tone), "tone--cursor", "tone--mark", "tone--title",
    }

    DEFAULT_CSS = """
    ToneView {
        scrollbar-size-vertical: 1;
        scrollbar-size-horizontal: 0;
        overflow-x: hidden;
        & .tone--plain { color: $foreground; }
        & .tone--muted { color: $text-muted; }
        & .tone--strong { color: $foreground; text-style: bold; }
        & .tone--good { color: $text-success; }
        & .tone--warn { color: $text-warning; }
        & .tone--bad { color: $text-error; text-style: bold; }
        & .tone--accent { color: $text-accent; }
        & .tone--bar { color: $primary; }
        & .tone--track { color: $border-blurred; }
        & .tone--title { color: $text-muted; }
        & .tone--cursor { background: $block-cursor-background; }
        & .tone--mark { background: $block-cursor-blurred-background; }
    }
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._styles: dict[str, Style] = {}

    def notify_style_update(self) -> None:
        """The theme or a class changed: look every style up again."""
        self._styles = {}
        super().notify_style_update()

    def style_named(self, name: str) -> Style:
        """The foreground style of a component class, without its background."""
        style = self._styles.get(name)
        if style is None:
            style = self.get_component_rich_style(f"tone--{name}", partial=True)
            self._styles[name] = style
        return style

    def backdrop(self, name: str = "") -> Style:
        """The widget's background, or that of the component class `name`."""
        key = f"on {name}"
        style = self._styles.get(key)
        if style is None:
            base = self.rich_style
            background = self.get_component_rich_style(f"tone--{name}").bgcolor if name else base.bgcolor
            style = Style(bgcolor=background)
            self._styles[key] = style
        return style

    def drawn(self, spans: Line, width: int, *, on: str = "", tone: str = "") -> Strip:
        """The line as a Strip of exactly `width` cells, runs of one style merged.

        `on` names the component class whose background it stands on, `tone` overrides the spans' own.
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

    def refresh_rows(self, first: int, count: int = 1) -> None:
        """Repaint `count` lines of the widget from `first` (as seen, not as scrolled)."""
        first, end = max(first, 0), min(first + count, self.size.height)
        if end > first:
            self.refresh(Region(0, first, self.size.width, end - first))

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
