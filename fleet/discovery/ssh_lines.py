"""The text of ssh_config files into blocks: words, quotes, Include. What they mean for a host: `ssh_config`.

Written for OpenSSH's grammar and without asyncssh, whose reader costs 0.26 s to import, gives up the
whole file at one line it cannot read, runs `Match exec`, and takes an Include inside of a Host block
as the end of that block.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

FILE_LIMIT = 1024 * 1024     # bytes of one file
LINES_LIMIT = 20_000         # of all files
FILES_LIMIT = 256
DEPTH_LIMIT = 16             # of Include, as OpenSSH has it


@dataclass(frozen=True, slots=True)
class Line:
    """One line that says something."""

    keyword: str                       # in lower case
    words: tuple[str, ...]
    rest: str                          # what follows the keyword, as written
    place: str                         # "config:12"
    included: tuple[File, ...] = ()    # of Include


@dataclass(frozen=True, slots=True)
class File:
    """One file's lines, those of included files inside of theirs."""

    lines: tuple[Line, ...]


@dataclass(slots=True)
class Files:
    """Reads files and remembers what was wrong with them: a warning each, never an error."""

    home: Path
    warnings: list[str] = field(default_factory=list)
    lines: int = 0
    files: int = 0

    def read(self, path: Path, depth: int = 0) -> File:
        """A file and all that it includes; an empty one where it cannot be read."""
        self.files += 1
        try:
            with path.open("rb") as file:
                data = file.read(FILE_LIMIT + 1)
        except (OSError, ValueError) as error:
            self.warn(f"{path} cannot be read: {getattr(error, 'strerror', None) or 'no usable path'}")
            return File(())
        if len(data) > FILE_LIMIT:
            self.warn(f"{path} is longer than 1 MiB and is not read")
            return File(())
        return File(tuple(self._lines(path, data.decode("utf-8", "replace"), depth)))

    def warn(self, sentence: str) -> None:
        """Note a warning once, as one printable line."""
        shown = "".join(c if c.isprintable() else "?" for c in sentence)[:400]
        if shown not in self.warnings and len(self.warnings) < 100:
            self.warnings.append(shown)

    def _lines(self, path: Path, text: str, depth: int) -> Iterator[Line]:
        for number, raw in enumerate(text.split("\n"), 1):
            place = f"{path}:{number}"
            self.lines += 1
            if self.lines > LINES_LIMIT:
                self.warn(f"{path}: more than {LINES_LIMIT:,} lines of SSH configuration; the rest is not read")
                return
            keyword, rest = split_keyword(raw)
            if not keyword:
                continue
            words = split_words(rest)
            if words is None:
                self.warn(f"{place}: a quote is not closed; the line is skipped")
                continue
            included = tuple(self._include(words, place, depth)) if keyword == "include" else ()
            yield Line(keyword, words, rest, place, included)

    def _include(self, patterns: tuple[str, ...], place: str, depth: int) -> Iterator[File]:
        if depth + 1 >= DEPTH_LIMIT:
            self.warn(f"{place}: Include is nested more than {DEPTH_LIMIT} deep; it is skipped")
            return
        for pattern in patterns:
            if pattern.startswith("~/"):
                pattern = str(self.home / pattern[2:])
            if not os.path.isabs(pattern):
                pattern = str(self.home / ".ssh" / pattern)
            try:
                paths = sorted(glob.glob(pattern))
            except (OSError, ValueError) as error:
                self.warn(f"{place}: Include {pattern} cannot be searched: {error}")
                continue
            for path in paths:
                if self.files >= FILES_LIMIT:
                    self.warn(f"{place}: more than {FILES_LIMIT} files; the rest is not read")
                    return
                if os.path.isfile(path):
                    yield self.read(Path(path), depth + 1)


def split_keyword(raw: str) -> tuple[str, str]:
    """The keyword in lower case and the rest: "Key value", "Key=value", "Key = value"; ("", "") for none."""
    line = raw.strip(" \t\r\f")
    if not line or line.startswith("#"):
        return "", ""
    end = next((place for place, c in enumerate(line) if c in " \t="), len(line))
    keyword = line[:end].strip('"').lower()
    rest = line[end:].lstrip(" \t")
    if rest.startswith("="):
        rest = rest[1:].lstrip(" \t")
    return keyword, rest


def split_words(text: str) -> tuple[str, ...] | None:
    """The words of a line, quotes taken off; a `#` at the start of a word ends them. None: an open quote."""
    words: list[str] = []
    place = 0
    while place < len(text):
        if text[place] in " \t":
            place += 1
            continue
        if text[place] == "#":
            break
        word: list[str] = []
        quote = ""
        while place < len(text) and (quote or text[place] not in " \t"):
            c = text[place]
            following = text[place + 1:place + 2]
            if c == "\\" and (following in ('"', "'", "\\") or (not quote and following == " ")) and following:
                word.append(following)
                place += 1
            elif not quote and c in "\"'":
                quote = c
            elif c == quote:
                quote = ""
            else:
                word.append(c)
            place += 1
        if quote:
            return None
        words.append("".join(word))
    return tuple(words)


def all_lines(file: File) -> Iterator[Line]:
    """Every line, those of included files where they are included."""
    for line in file.lines:
        yield line
        for included in line.included:
            yield from all_lines(included)


def matches(subject: str, patterns: Sequence[str]) -> bool:
    """OpenSSH's pattern list: `*` and `?`, and a negated pattern that matches rules the host out."""
    found = False
    for pattern in patterns:
        negated = pattern.startswith("!")
        glob = "".join({"*": ".*", "?": "."}.get(c, re.escape(c)) for c in re.sub(r"\*+", "*", pattern.lstrip("!")))
        if pattern.strip("!") and re.fullmatch(glob, subject, re.DOTALL):
            if negated:
                return False
            found = True
    return found
