"""A log as it grows: the last 2,000 lines, followed, filtered, wrapped or cut.

Lines come in batches (twice a second is plenty); a line is capped, since one of 90,000 characters
would otherwise stop the screen.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.strip import Strip

from widgets.spans import Line, Span, Tone, cut, printable, wrap
from widgets.tone_view import ToneView

LINES_KEPT = 2_000
LINE_CAP = 1_000               # characters

# "0.03.646.170 I srv  load..." of llama.cpp since its log has levels; otherwise words tell.
_LEVEL = re.compile(r"^(?:\d+\.\d+\.\d+\.\d+\s+)?([EWID])\s")
_BAD = re.compile(r"\b(?:error|failed|fatal|abort(?:ed)?|assert(?:ion)?|exception|segmentation)\b", re.IGNORECASE)
_WARN = re.compile(r"\bwarn(?:ing)?\b", re.IGNORECASE)
_TONES = {"E": Tone.BAD, "W": Tone.WARN, "I": Tone.PLAIN, "D": Tone.MUTED}


def level_of(text: str) -> str:
    """E, W, I or D: the line's own letter, else what its words say, else I."""
    found = _LEVEL.match(text)
    if found:
        return found.group(1)
    if _BAD.search(text):
        return "E"
    return "W" if _WARN.search(text) else "I"


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line, made safe and bounded when it came."""

    text: str
    level: str

    @classmethod
    def of(cls, text: str) -> LogLine:
        """From what a service wrote."""
        # Progress that overwrites itself with carriage returns: what would be left standing.
        text = text.rstrip("\r\n").rpartition("\r")[2].replace("\t", "    ")
        if len(text) > LINE_CAP:
            text = f"{text[:LINE_CAP]}… ({len(text) - LINE_CAP} more)"
        text = printable(text)
        return cls(text, level_of(text))


class LogView(ToneView, can_focus=True):
    """The view: add lines, follow the end, filter, wrap."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "scroll_lines(-1)", "Up", show=False, id="log.up"),
        Binding("down,j", "scroll_lines(1)", "Down", show=False, id="log.down"),
        Binding("pageup", "scroll_pages(-1)", "Page up", show=False, id="log.page-up"),
        Binding("pagedown,space", "scroll_pages(1)", "Page down", show=False, id="log.page-down"),
        Binding("home,g", "top", "Top", show=False, id="log.top"),
        Binding("end,G", "follow(True)", "End", show=False, id="log.end"),
        Binding("f", "follow", "Follow", id="log.follow", tooltip="Stay at the end as lines come"),
        Binding("w", "wrap", "Wrap", id="log.wrap", tooltip="Break long lines instead of cutting them"),
        Binding("e", "errors", "Errors", id="log.errors", tooltip="Warnings and errors alone"),
    ]

    @dataclass
    class Changed(Message):
        """Following, wrapping, the filter or the number of lines changed."""

        view: LogView

        def can_replace(self, message: Message) -> bool:
            """The last counts."""
            return isinstance(message, LogView.Changed)

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._all: deque[LogLine] = deque(maxlen=LINES_KEPT)
        self._rows: list[tuple[LogLine, Line]] = []
        self._filter = ""
        self.came = 0                  # lines ever
        self.following = True
        self.wrapping = False
        self.errors_only = False

    # -- data ---------------------------------------------------------------------------------

    def add(self, lines: Iterable[str]) -> None:
        """Take a batch of lines: one repaint."""
        new = [LogLine.of(text) for text in lines]
        if not new:
            return
        self.came += len(new)
        overflow = len(self._all) + len(new) > LINES_KEPT
        self._all.extend(new)
        if overflow:
            self._arrange()
            return
        shown = len(self._rows)
        for entry in new:
            if self._passes(entry):
                self._rows.extend((entry, spans) for spans in self._spans(entry))
        if len(self._rows) != shown:
            self._grown(shown)
        self.post_message(self.Changed(self))

    def filter(self, words: str) -> None:
        """Show lines that hold every word; `!word` must not be there."""
        self._filter = words.casefold()
        self._arrange()

    @property
    def shown(self) -> int:
        """Lines on view, as they came (a wrapped one counts once)."""
        return len({id(entry) for entry, _ in self._rows})

    @property
    def kept(self) -> int:
        """Lines in memory."""
        return len(self._all)

    def text(self) -> str:
        """What passes the filter, as plain text."""
        return "\n".join(entry.text for entry in self._all if self._passes(entry))

    def _passes(self, entry: LogLine) -> bool:
        if self.errors_only and entry.level not in ("E", "W"):
            return False
        folded = entry.text.casefold()
        return all((word[1:] not in folded) if word.startswith("!") and len(word) > 1 else word in folded
                   for word in self._filter.split())

    def _spans(self, entry: LogLine) -> tuple[Line, ...]:
        width = self._width
        tone = _TONES[entry.level]
        letter = Span(f"{entry.level} " if entry.level in "EW" else "  ", tone)
        if width <= 2:
            return ((letter,),)
        if not self.wrapping:
            return ((letter, Span(cut(entry.text, width - 2), tone)),)
        first, *rest = wrap((Span(entry.text, tone),), width - 2) or ((),)
        return ((letter, *first), *((Span("  "), *more) for more in rest))

    @property
    def _width(self) -> int:
        return self.scrollable_content_region.width

    def _arrange(self) -> None:
        """Everything again: another filter, another width, or old lines fell off."""
        self._rows = [(entry, spans) for entry in self._all if self._passes(entry) for spans in self._spans(entry)]
        self.extent(len(self._rows))
        if self.following:
            self._to_end()
        self.refresh()
        self.post_message(self.Changed(self))

    def _grown(self, shown: int) -> None:
        self.extent(len(self._rows))
        if self.following and len(self._rows) > self.size.height:
            self._to_end()
        else:
            self.refresh_rows(shown - self.scroll_offset.y, len(self._rows) - shown)

    def _to_end(self) -> None:
        self.go_to(max(len(self._rows) - self.size.height, 0))

    # -- keys ---------------------------------------------------------------------------------

    def action_scroll_lines(self, by: int) -> None:
        """Scroll; going up stops following, the end begins it again."""
        self._scroll(self.scroll_offset.y + by)

    def action_scroll_pages(self, by: int) -> None:
        """Scroll by what fits on the screen."""
        self._scroll(self.scroll_offset.y + by * max(self.size.height - 1, 1))

    def action_top(self) -> None:
        """To the oldest line."""
        self._scroll(0)

    def _scroll(self, y: int) -> None:
        end = max(len(self._rows) - self.size.height, 0)
        self.go_to(min(max(y, 0), end))
        self._follow(y >= end)

    def action_follow(self, on: bool | None = None) -> None:
        """Stay at the end, or stop where it is."""
        self._follow(not self.following if on is None else on)
        if self.following:
            self._to_end()

    def _follow(self, on: bool) -> None:
        if on != self.following:
            self.following = on
            self.post_message(self.Changed(self))

    def action_wrap(self) -> None:
        """Break long lines, or cut them."""
        self.wrapping = not self.wrapping
        self._arrange()

    def action_errors(self) -> None:
        """Warnings and errors alone, or everything."""
        self.errors_only = not self.errors_only
        self._arrange()

    # -- drawing ------------------------------------------------------------------------------

    def on_resize(self, event: events.Resize) -> None:
        """Cut or wrap to the new width."""
        self._arrange()

    def render_line(self, y: int) -> Strip:
        """Line y as it is scrolled."""
        index = y + self.scroll_offset.y
        return self.drawn(self._rows[index][1] if index < len(self._rows) else (), self.size.width)
