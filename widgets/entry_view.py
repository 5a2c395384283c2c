"""A pane of entries that scrolls and repaints the lines that changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.strip import Strip

from widgets.entries import Entry
from widgets.spans import Line
from widgets.tone_view import ToneView


class EntryView(ToneView):
    """Shows entries, wrapped to its width."""

    DEFAULT_CSS = """
    EntryView { scrollbar-gutter: stable; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "scroll_lines(-1)", "Up", show=False, id="pane.up"),
        Binding("down,j", "scroll_lines(1)", "Down", show=False, id="pane.down"),
        Binding("pageup", "scroll_pages(-1)", "Page up", show=False, id="pane.page-up"),
        Binding("pagedown,space", "scroll_pages(1)", "Page down", show=False, id="pane.page-down"),
        Binding("home,g", "scroll_ends(-1)", "Top", show=False, id="pane.top"),
        Binding("end,G", "scroll_ends(1)", "End", show=False, id="pane.end"),
    ]

    def __init__(self, entries: Sequence[Entry] = (), *, focusable: bool = False, id: str | None = None) -> None:
        super().__init__(id=id)
        self.can_focus = focusable
        self._entries: tuple[Entry, ...] = tuple(entries)
        self._lines: tuple[Line, ...] = ()
        self._wrapped_to = 0

    @property
    def entries(self) -> tuple[Entry, ...]:
        """What is shown."""
        return self._entries

    def show(self, entries: Sequence[Entry], *, from_top: bool = False) -> None:
        """Take new entries; `from_top` when they are about something else than before."""
        if from_top:
            self.go_to(0)
        if tuple(entries) == self._entries:
            return
        self._entries = tuple(entries)
        before = self._lines
        self._wrap()
        if len(before) != len(self._lines):
            self.extent(len(self._lines))
            if self.styles.is_auto_height:
                self.refresh(layout=True)
        top = self.scroll_offset.y
        for index in range(max(len(before), len(self._lines))):
            old = before[index] if index < len(before) else None
            new = self._lines[index] if index < len(self._lines) else None
            if old != new:
                self.refresh_rows(index - top)

    def _wrap(self) -> None:
        width = self.scrollable_content_region.width
        self._wrapped_to = width
        self._lines = tuple(each for entry in self._entries for each in entry.lines(width)) if width > 0 else ()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Lines that the entries take at this width, for `height: auto`."""
        return sum(len(entry.lines(width)) for entry in self._entries)

    def on_resize(self, event: events.Resize) -> None:
        """Wrap again."""
        if self.scrollable_content_region.width != self._wrapped_to:
            self._wrap()
        self.extent(len(self._lines))
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """Line y as it is scrolled."""
        index = y + self.scroll_offset.y
        spans = self._lines[index] if index < len(self._lines) else ()
        return self.drawn(spans, self.size.width)

    def action_scroll_lines(self, by: int) -> None:
        """Scroll by lines."""
        self.go_to(self.scroll_offset.y + by)

    def action_scroll_pages(self, by: int) -> None:
        """Scroll by what fits on the screen, less one line."""
        self.go_to(self.scroll_offset.y + by * max(self.size.height - 1, 1))

    def action_scroll_ends(self, to: int) -> None:
        """To the top or the end."""
        self.go_to(0 if to < 0 else len(self._lines))
