"""What the verbs print: data on stdout, remarks on stderr, plain aligned text.

No colour unless it is a terminal that has some and NO_COLOR is not set; and never colour alone.
"""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from typing import TextIO

from fleet.errors import FleetError
from fleet.text import visible

COLOURS = {"green": "32", "yellow": "33", "red": "31", "dim": "2", "bold": "1"}


def put(text: str = "", end: str = "\n") -> None:
    """A line of data. Flushed: whoever reads a pipe sees it at once.

    Raises:
        BrokenPipeError: the reader went away.
        FleetError: it cannot be written for another reason: a full disk, mostly.
    """
    try:
        print(text, end=end, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        throw_away_output()
        raise FleetError(f"Standard output cannot be written: {error.strerror}.",
                         "Make room where it goes, or send it elsewhere.", code="output") from None


def throw_away_output() -> None:
    """What is still to be written goes nowhere: the flush at exit must not fail once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def note(text: str) -> None:
    """A remark about the run, for a person. Made safe to show here: it may name what a node or a file says."""
    shown = visible(text, keep="\n")
    print(f"quarterdeck: {shown}", file=sys.stderr, flush=True)


def has_colour(stream: TextIO) -> bool:
    """Whether colour may go to `stream`."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"


def paint(text: str, colour: str, stream: TextIO | None = None) -> str:
    """`text` in one of COLOURS, where the stream takes that; the same text elsewhere."""
    if colour in COLOURS and has_colour(stream or sys.stdout):
        return f"\x1b[{COLOURS[colour]}m{text}\x1b[0m"
    return text


def width(text: str) -> int:
    """Columns that `text` takes: wide East Asian letters two, combining marks none."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], *, right: frozenset[int] = frozenset(),
          indent: str = "") -> list[str]:
    """Aligned lines, headers first. Cells are made safe to show here; columns in `right` lean to the right."""
    cells = [list(headers), *([visible(cell) for cell in row] for row in rows)]
    widths = [max(width(row[column]) for row in cells) for column in range(len(headers))]

    def pad(cell: str, column: int) -> str:
        space = " " * (widths[column] - width(cell))
        return space + cell if column in right else cell + space

    return [(indent + "  ".join(pad(cell, column) for column, cell in enumerate(row))).rstrip() for row in cells]


class TransientLine:
    """One line at the foot of a terminal that is written over; nothing at all where there is no terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._shown = ""
        self.possible = stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"

    def show(self, text: str) -> None:
        """Write `text` over what was there, cut to the terminal's width."""
        if not self.possible or text == self._shown:
            return
        try:
            columns = os.get_terminal_size(self._stream.fileno()).columns
        except OSError:
            columns = 80
        self._shown = text
        self._stream.write(f"\r\x1b[K{visible(text, limit=max(1, columns - 1))}")
        self._stream.flush()

    def clear(self) -> None:
        """Take it away, before an ordinary line is printed."""
        if self._shown:
            self._shown = ""
            self._stream.write("\r\x1b[K")
            self._stream.flush()
