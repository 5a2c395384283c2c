"""What a detail pane is made of: paragraphs, figures with a bar, headings. Knows no Textual."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from widgets.meters import Meter
from widgets.spans import Keep, Line, Span, Tone, cut, fit, plain, width_of, wrap

TITLE_LEAST = 16               # cells of a title that stay whatever its note takes


@dataclass(frozen=True, slots=True)
class Heading:
    """A title, with a rule to the end of the line."""

    text: str
    note: Line = ()

    def lines(self, width: int) -> tuple[Line, ...]:
        """One line; a long title gives way to the note, which says how it stands."""
        note = (Span(" "), *self.note) if self.note else ()
        room = max(width - width_of(note) - 1, min(width, TITLE_LEAST))
        title = (Span(cut(self.text, room), Tone.ACCENT), Span(" "))
        rule = max(width - width_of(title) - width_of(note), 0)
        return (fit((*title, Span("─" * rule, Tone.TRACK), *note), width),)


@dataclass(frozen=True, slots=True)
class Fact:
    """A name and what it is. Wraps below itself; one that tells more at its end is cut instead."""

    name: str
    value: Line
    keep: Keep | None = None   # None = wrap
    room: int = 11             # cells for the name

    def lines(self, width: int) -> tuple[Line, ...]:
        """As many lines as the value needs beside the name."""
        name = fit((Span(self.name, Tone.MUTED),), self.room)
        left = max(width - self.room - 1, 8)
        if self.keep is not None:
            return ((*name, Span(" "), *_within(self.value, left, self.keep)),)
        first, *rest = wrap(self.value, left) or ((),)
        pad = Span(" " * (self.room + 1))
        return ((*name, Span(" "), *first), *((pad, *more) for more in rest))


@dataclass(frozen=True, slots=True)
class Gauge:
    """A name and a meter."""

    name: str
    meter: Meter
    room: int = 11

    def lines(self, width: int) -> tuple[Line, ...]:
        """One line."""
        name = fit((Span(self.name, Tone.MUTED),), self.room, Keep.BOTH)
        return ((*name, Span(" "), *self.meter.drawn(max(width - self.room - 1, 4))),)


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A line that wraps; later lines begin below `indent`."""

    spans: Line = ()
    indent: int = 0

    def lines(self, width: int) -> tuple[Line, ...]:
        """At least one line, empty for an empty one."""
        return wrap(self.spans, width, self.indent) or ((),)


@dataclass(frozen=True, slots=True)
class Cut:
    """A line that is cut instead of wrapped: a path, a command."""

    spans: Line
    keep: Keep = Keep.START

    def lines(self, width: int) -> tuple[Line, ...]:
        """One line."""
        return (_within(self.spans, width, self.keep),)


class Entry(Protocol):
    """Anything that is made of lines once it knows how wide it is."""

    def lines(self, width: int) -> tuple[Line, ...]:
        """Its lines, each of at most `width` cells."""


def _within(spans: Line, width: int, keep: Keep) -> Line:
    return fit(spans, width, keep) if width_of(spans) > width else spans


def text_of_entries(entries: tuple[Entry, ...], width: int = 100) -> str:
    """All of it as plain text, to be copied."""
    return "\n".join(plain(each).rstrip() for entry in entries for each in entry.lines(width))
