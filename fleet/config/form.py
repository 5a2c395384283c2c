"""Where a value of the file stands, what keys a section has, and the notes of what is wrong.

Problems are collected, never raised: one look at a file tells everything that is wrong with it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field

from fleet.config.marks import Mapping, Scalar, Sequence, Value

PROBLEMS_KEPT = 100


@dataclass(slots=True)
class Notes:
    """The problems found so far, each one line: file, line, dotted key, what, the expected form."""

    name: str
    found: list[tuple[int, str]] = field(default_factory=list)

    def add(self, line: int, key: str, what: str, expected: str) -> None:
        """Note a problem; the same one is noted once."""
        where = f"{key}: " if key else ""
        stop = "" if what.endswith("?") else "."
        entry = (line, f"{self.name}:{line}: {where}{what}{stop} Expected {expected}")
        if entry not in self.found:
            self.found.append(entry)

    def lines(self) -> tuple[str, ...]:
        """All problems in the order of the file, at most `PROBLEMS_KEPT`."""
        ordered = [text for _, text in sorted(self.found, key=lambda entry: entry[0])]
        if len(ordered) > PROBLEMS_KEPT:
            return (*ordered[:PROBLEMS_KEPT], f"{self.name}: and {len(ordered) - PROBLEMS_KEPT} more problems")
        return tuple(ordered)


@dataclass(frozen=True, slots=True)
class Form:
    """A value of the file and where it stands; `value` is None where nothing is written."""

    notes: Notes
    key: str                   # dotted: "nodes.atlas.port"
    line: int
    value: Value | None
    name: str = ""             # the last key as it is written, where the user chose it: "atlas"

    @property
    def written(self) -> bool:
        """Something stands here, even if it is nothing (`key:`)."""
        return self.value is not None and not (isinstance(self.value, Scalar) and self.value.empty)

    def wrong(self, what: str, expected: str) -> None:
        """Note a problem with this value."""
        self.notes.add(self.line, self.key, what, expected)

    def wrong_type(self, expected: str) -> None:
        """Note that the value is of another kind."""
        self.wrong(f"this is {describe(self.value)}", expected)


class Section:
    """A mapping whose keys are known; those that are not are problems at once."""

    def __init__(self, form: Form, known: Iterable[str], expected: str, *, ignore: str = "") -> None:
        self.form = form
        self.mapping = Mapping(form.line)
        names = tuple(known)
        if not form.written:
            return
        if not isinstance(form.value, Mapping):
            form.wrong_type(expected)
            return
        self.mapping = form.value
        for key in form.value.entries:
            if key not in names and not (ignore and key.startswith(ignore)):
                near = closest(key, names)
                form.notes.add(form.value.lines[key], join(form.key, key),
                               "unknown key" + (f"; did you mean {near!r}?" if near else ""),
                               f"one of {', '.join(names)}")

    def __getitem__(self, key: str) -> Form:
        return Form(self.form.notes, join(self.form.key, key), self.mapping.lines.get(key, self.form.line),
                    self.mapping.entries.get(key))

    def either(self, one: str, many: str) -> Form:
        """The singular or the plural form of a key; a problem when both are there."""
        if one in self.mapping.entries and many in self.mapping.entries:
            self[many].wrong(f"both {one!r} and {many!r} are here", "one of the two")
        return self[many] if many in self.mapping.entries else self[one]


def join(parent: str, key: str) -> str:
    """A dotted key; odd characters of a key are shown, not obeyed."""
    shown = key if key.isprintable() and len(key) <= 60 else ascii(key[:60])
    return f"{parent}.{shown}" if parent else shown


def closest(word: str, known: Iterable[str]) -> str:
    """The known word that was probably meant, or ""."""
    candidates = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word[:80].lower().replace("-", "_"), candidates, n=1, cutoff=0.6)
    return candidates[near[0]] if near else ""


def describe(value: Value | None) -> str:
    """What a value is, for a sentence."""
    match value:
        case Scalar(text=text):
            shown = ascii(text[:40])[1:-1] if not text.isprintable() else text[:40]
            return f"'{shown}'" if shown else "empty"
        case Sequence():
            return "a list"
        case Mapping():
            return "a mapping"
    return "nothing"
