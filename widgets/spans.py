"""Toned text, the one currency between what is shown and how it is drawn. Knows no Textual.

A `Span` is a run of text with a `Tone`; a `Line` is a tuple of spans. Whatever text goes into a
Span comes out printable: control, escape, bidirectional and other invisible characters are spelled
out (`\\x1b`, `\\u202e`), so no host name or log line can move the cursor, colour the screen, turn
the reading direction or smuggle markup in. There is no other way to the screen.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from rich.cells import cell_len, chop_cells, get_character_cell_size

COMBINING_KEPT = 2         # marks on one letter; more of them climb over the neighbouring rows
ELLIPSIS = "…"


class Tone(StrEnum):
    """What a run of text means; the theme gives it a colour, the text has to say it too."""

    PLAIN = "plain"
    MUTED = "muted"
    STRONG = "strong"
    GOOD = "good"
    WARN = "warn"
    BAD = "bad"
    ACCENT = "accent"
    BAR = "bar"            # the filled part of a meter
    TRACK = "track"        # its empty part, rules


class Keep(StrEnum):
    """Which end of a text tells more when there is no room for both."""

    START = "start"
    END = "end"
    BOTH = "both"


def printable(text: str) -> str:
    """The text with everything that does not show as itself spelled out.

    `[` and `]` stay: nothing here is ever read as markup.
    """
    if text.isascii() and text.isprintable():
        return text
    out: list[str] = []
    marks = 0
    for char in text:
        if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me"):
            marks += 1
            out.append(char if marks <= COMBINING_KEPT and out else _spelled(char))
            continue
        marks = 0
        if char.isprintable():
            out.append(char)
        elif unicodedata.category(char) == "Zs":
            out.append(" ")
        else:
            out.append(_spelled(char))
    return "".join(out)


def _spelled(char: str) -> str:
    known = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(char)
    if known is not None:
        return known
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


@dataclass(frozen=True, slots=True)
class Span:
    """A run of printable text in one tone."""

    text: str
    tone: Tone = Tone.PLAIN

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", printable(self.text))


Line = tuple[Span, ...]


def line(*parts: Span | str) -> Line:
    """A Line of spans and plain strings; empty parts fall away."""
    spans = (part if isinstance(part, Span) else Span(part) for part in parts)
    return tuple(span for span in spans if span.text)


def joined(lines: Iterable[Line], between: str = "  ") -> Line:
    """The lines that have something, one after the other with `between` between them."""
    out: list[Span] = []
    for part in lines:
        if not part:
            continue
        if out:
            out.append(Span(between, Tone.MUTED))
        out.extend(part)
    return tuple(out)


def plain(spans: Line) -> str:
    """The text of a line."""
    return "".join(span.text for span in spans)


def width_of(spans: Line) -> int:
    """Terminal cells that a line takes."""
    return sum(cell_len(span.text) for span in spans)


def differing(old: Line, new: Line) -> tuple[int, int]:
    """(first cell, one behind the last) in which two lines differ, by glyph or tone; (0, 0) where they do not.

    Lines of two widths, or with wide characters, differ as a whole.
    """
    width = width_of(new)
    before, after = _cells(old), _cells(new)
    if len(before) != len(after) or len(after) != width or width_of(old) != width:
        return (0, width) if before != after else (0, 0)
    found = [index for index, (was, now) in enumerate(zip(before, after, strict=True)) if was != now]
    return (found[0], found[-1] + 1) if found else (0, 0)


def _cells(spans: Line) -> list[tuple[str, Tone]]:
    return [(char, span.tone) for span in spans for char in span.text]


def cut(text: str, width: int, keep: Keep = Keep.START) -> str:
    """The text in at most `width` cells, with an ellipsis where something is missing."""
    if width <= 0:
        return ""
    if cell_len(text) <= width:
        return text
    if width == 1:
        return ELLIPSIS
    match keep:
        case Keep.START:
            return _head(text, width - 1) + ELLIPSIS
        case Keep.END:
            return ELLIPSIS + _tail(text, width - 1)
        case Keep.BOTH:
            front = (width - 1) // 2
            return _head(text, front) + ELLIPSIS + _tail(text, width - 1 - front)


def _head(text: str, width: int) -> str:
    return chop_cells(text, width)[0] if width > 0 else ""


def _tail(text: str, width: int) -> str:
    used, start = 0, len(text)
    while start > 0:
        size = get_character_cell_size(text[start - 1])
        if used + size > width:
            break
        used += size
        start -= 1
    return text[start:]


def fit(spans: Line, width: int, keep: Keep = Keep.START, *, right: bool = False) -> Line:
    """The line in exactly `width` cells: cut at the end that tells less, or padded."""
    have = width_of(spans)
    if have > width:
        return _shortened(spans, width, keep)
    if have == width:
        return spans
    pad = Span(" " * (width - have))
    return (pad, *spans) if right else (*spans, pad)


def _shortened(spans: Line, width: int, keep: Keep) -> Line:
    """Cuts span by span, from the far end; the padding makes up for half a wide character."""
    ordered: Sequence[Span] = spans if keep is not Keep.END else tuple(reversed(spans))
    if keep is Keep.BOTH and len(spans) > 1:
        keep = Keep.START
    out: list[Span] = []
    left = width
    for index, span in enumerate(ordered):
        size = cell_len(span.text)
        rest = any(later.text.strip() for later in ordered[index + 1:])
        if size < left or (size == left and not rest):
            out.append(span)
            left -= size
            continue
        forced = span.text if size > left else span.text + "  " if keep is not Keep.END else "  " + span.text
        piece = cut(forced, left, keep)
        out.append(Span(piece, span.tone))
        left -= cell_len(piece)
        break
    if keep is Keep.END:
        out.reverse()
    if left > 0:
        out.append(Span(" " * left))
    return tuple(out)


def wrap(spans: Line, width: int, indent: int = 0) -> tuple[Line, ...]:
    """The line broken at spaces into lines of at most `width` cells; later ones begin with `indent` spaces.

    A word that is longer than a line is broken where the line ends.
    """
    if width <= 0:
        return ()
    if width_of(spans) <= width:
        return (spans,)
    indent = max(min(indent, width // 2, width - 2), 0)       # a wide character always fits
    done: list[Line] = []
    current: list[Span] = []
    used = 0
    for word, tone in _words(spans):
        size = cell_len(word)
        if used + cell_len(word.rstrip()) > width and used > (indent if done else 0):
            done.append(tuple(current))
            current, used = [Span(" " * indent)] if indent else [], indent
            if not word.strip():
                continue
        while size > width - used and cell_len(word.rstrip()) > width - used:
            piece = _head(word, width - used) or word[:1]
            done.append((*current, Span(piece, tone)))
            current, used = [Span(" " * indent)] if indent else [], indent
            word = word[len(piece):]
            size = cell_len(word)
        if word:
            word = word if size <= width - used else word.rstrip()
            _append(current, word, tone)
            used += cell_len(word)
    if current:
        done.append(tuple(current))
    return tuple(done)


def _append(spans: list[Span], text: str, tone: Tone) -> None:
    if spans and spans[-1].tone is tone:
        spans[-1] = Span(spans[-1].text + text, tone)
    else:
        spans.append(Span(text, tone))


def _words(spans: Line) -> Iterable[tuple[str, Tone]]:
    """Words with the spaces behind them; a span's end is no break by itself, but close enough to one."""
    for span in spans:
        start = 0
        text = span.text
        while start < len(text):
            end = start
            while end < len(text) and text[end] == " " and start == end:
                end += 1
            while end < len(text) and text[end] != " ":
                end += 1
            while end < len(text) and text[end] == " ":
                end += 1
            yield text[start:end], span.tone
            start = end
