"""Which of thousands of pieces are there, in the width of a row; and how many copies there are of each.

`have` is a bitfield: piece i is bit 7 - i % 8 of byte i // 8. A cell stands for a run of pieces next to each other:
its glyph says whether none, some, half, most or all of them are there. Where there are more cells than pieces, a
piece takes several cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual import events
from textual.strip import Strip

from widgets.meters import Meter
from widgets.ramp import DENSITY, DOTS, FEW, Graphs, braille, level_of
from widgets.spans import Keep, Line, Span, Tone, cut, differing, fit, line, width_of
from widgets.tone_view import ToneView

MANY = len(FEW[Graphs.BLOCKS]) - 1     # copies of a piece that are as good as any number
MOST_PIECES = 4_000_000                # what is counted of a field: more than that is no model


def bits_of(have: bytes, pieces: int) -> int:
    """The field as a number whose lowest bit is the last piece. What is missing of the field is not there."""
    length = (pieces + 7) // 8
    padded = have[:length].ljust(length, b"\0")
    return int.from_bytes(padded, "big") >> (8 * length - pieces)


def runs(pieces: int, cells: int) -> tuple[tuple[int, int], ...]:
    """(first piece, one behind the last) of each of `cells` cells."""
    if pieces <= 0 or cells <= 0:
        return ()
    out = []
    for index in range(cells):
        first = index * pieces // cells
        out.append((first, max((index + 1) * pieces // cells, first + 1)))
    return tuple(out)


def counts(have: bytes, pieces: int, cells: int) -> tuple[tuple[int, int], ...]:
    """(pieces there, pieces) of each cell."""
    return tuple((_among(have, first, end), end - first) for first, end in runs(min(pieces, MOST_PIECES), cells))


def _among(have: bytes, first: int, end: int) -> int:
    """Pieces there from `first` to before `end`; the bytes of these alone are looked at."""
    start, stop = first // 8, (end + 7) // 8
    bits = int.from_bytes(have[start:stop].ljust(stop - start, b"\0"), "big") >> (8 * stop - end)
    return (bits & ((1 << (end - first)) - 1)).bit_count()


def _part(bits: int, pieces: int, first: int, end: int) -> int:
    return (bits >> (pieces - end)) & ((1 << (end - first)) - 1)


def field(have: bytes, pieces: int, width: int, graphs: Graphs = Graphs.BLOCKS, tone: Tone = Tone.BAR) -> Line:
    """The pieces in exactly `width` cells."""
    if pieces <= 0 or width <= 0:
        return (Span(" " * max(width, 0)),) if width > 0 else ()
    if graphs is Graphs.BRAILLE:
        levels = [level_of(part, whole, DOTS + 1) for part, whole in counts(have, pieces, width * 2)]
        return (Span("".join(braille(*levels[at:at + 2]) for at in range(0, len(levels), 2)), tone),)
    ramp = DENSITY[graphs]
    text = "".join(ramp[level_of(part, whole, len(ramp))] for part, whole in counts(have, pieces, width))
    return _in_two_tones(text, ramp[0], tone)


def _in_two_tones(text: str, nothing: str, tone: Tone) -> Line:
    """Cells with nothing in the tone of a track, so that what is there stands out."""
    out: list[Span] = []
    start = 0
    for index in range(1, len(text) + 1):
        if index == len(text) or (text[index] == nothing) != (text[start] == nothing):
            out.append(Span(text[start:index], Tone.TRACK if text[start] == nothing else tone))
            start = index
    return tuple(out)


def copies(fields: Sequence[bytes], pieces: int, cells: int) -> tuple[int, ...]:
    """For each cell how many copies there are of its rarest piece, up to MANY."""
    pieces = min(pieces, MOST_PIECES)
    at_least = sets_of(fields, pieces)
    out = []
    for first, end in runs(pieces, cells):
        full = (1 << (end - first)) - 1
        out.append(sum(_part(found, pieces, first, end) == full for found in at_least))
    return tuple(out)


def sets_of(fields: Sequence[bytes], pieces: int) -> tuple[int, ...]:
    """The pieces of which there are at least 1, 2 ... MANY copies, each as `bits_of` has them."""
    at_least = [0] * (MANY + 1)
    at_least[0] = (1 << pieces) - 1
    for have in fields:
        bits = bits_of(have, pieces)
        for number in range(MANY, 0, -1):
            at_least[number] |= at_least[number - 1] & bits
    return tuple(at_least[1:])


def rarity(fields: Sequence[bytes], pieces: int, width: int, graphs: Graphs = Graphs.BLOCKS) -> Line:
    """How many copies there are, in exactly `width` cells: a cross for none, then ever higher up to MANY."""
    tones = (Tone.BAD, Tone.WARN, Tone.BAR, Tone.BAR, Tone.BAR, Tone.BAR)
    out: list[Span] = []
    text, before = "", Tone.PLAIN
    for number in copies(fields, pieces, width):
        if text and tones[number] is not before:
            out.append(Span(text, before))
            text = ""
        before = tones[number]
        text += FEW[graphs][number]
    return line(*out, Span(text, before))


@dataclass(frozen=True, slots=True)
class Pieces(Meter):
    """A bitfield as the cell of a table: as wide as its column."""

    have: bytes = b""
    pieces: int = 0
    graphs: Graphs = Graphs.BLOCKS

    def drawn(self, width: int) -> Line:
        """The pieces in exactly `width` cells; figures have no place here."""
        return field(self.have, self.pieces, width, self.graphs, self.tone)


@dataclass(frozen=True, slots=True)
class PieceMap:
    """A bitfield as an entry of a pane: a block of lines in reading order."""

    have: bytes
    pieces: int
    height: int                # lines at most
    tone: Tone = Tone.BAR
    graphs: Graphs = Graphs.BLOCKS

    def lines(self, width: int) -> tuple[Line, ...]:
        """As many lines as give every piece a cell, up to `height`."""
        if width <= 0 or self.pieces <= 0:
            return ()
        rows = min(max((self.pieces + width - 1) // width, 1), self.height)
        text = field(self.have, self.pieces, width * rows, self.graphs, self.tone)
        out: list[Line] = []
        current: list[Span] = []
        used = 0
        for span in text:
            rest = span.text
            while rest:
                piece, rest = rest[:width - used], rest[width - used:]
                current.append(Span(piece, span.tone))
                used += len(piece)
                if used == width:
                    out.append(tuple(current))
                    current, used = [], 0
        return tuple(out)


class CopiesLine(ToneView):
    """How many copies there are of the pieces, below a table of bitfields and in line with its column."""

    DEFAULT_CSS = """
    CopiesLine { height: 1; overflow: hidden; }
    """

    def __init__(self, title: str, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._title = title
        self._fields: tuple[bytes, ...] = ()
        self._pieces = 0
        self._note: Line = ()
        self._place = (0, 0)
        self._graphs = Graphs.BLOCKS
        self._line: Line = ()

    def show(self, fields: Sequence[bytes], pieces: int, note: Line, place: tuple[int, int],
             graphs: Graphs = Graphs.BLOCKS) -> None:
        """Take new fields; `place` is (first cell, cells) of the column above, `note` stands behind it."""
        self._fields, self._pieces, self._note, self._place = tuple(fields), pieces, note, place
        self._graphs = graphs
        before, self._line = self._line, self.composed(self.size.width)
        if before != self._line:
            first, end = differing(before, self._line)
            self.refresh_rows(0, across=(first, end - first))

    def composed(self, width: int) -> Line:
        """The line in exactly `width` cells; nothing without pieces."""
        x, cells = self._place
        if self._pieces <= 0 or cells <= 0 or x + cells > width:
            return fit(line("  ", *self._note) if self._pieces > 0 else (), width)
        name = Span(f"  {cut(self._title, x - 3):<{x - 2}}" if x > 3 else " " * x, Tone.MUTED)
        room = width - x - cells - 2
        note = fit(self._note, min(room, width_of(self._note)), Keep.START) if room > 3 else ()
        drawn = rarity(self._fields, self._pieces, cells, self._graphs)
        return fit(line(name, *drawn, Span("  "), *note), width)

    def on_resize(self, event: events.Resize) -> None:
        """Drawn anew; its place is told anew too."""
        self._line = self.composed(self.size.width)
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """The line."""
        return self.drawn(self._line if y == 0 else (), self.size.width)
