"""Checks of one value each: what is written, into what the schema holds, or a problem noted.

Every check takes a `Form` (where the value stands) and goes on after a problem with the default, so
that one look at a file tells everything that is wrong with it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import StrEnum
from typing import TypeVar

from fleet.config.form import Form, closest, describe, join
from fleet.config.marks import Mapping, Scalar, Sequence

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)

TEXT_LIMIT = 4096            # characters of one text

_TRUE = frozenset(("true", "yes", "on"))
_FALSE = frozenset(("false", "no", "off"))
_UNITS = {"": 1, "b": 1,
          "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
          "kb": 10 ** 3, "mb": 10 ** 6, "gb": 10 ** 9, "tb": 10 ** 12}
_SIZE = re.compile(r"([0-9][0-9_]*(?:\.[0-9]+)?)\s*([A-Za-z]*)")
_DECIMAL = re.compile(r"[+-]?[0-9][0-9_]*")
_FLOAT = re.compile(r"[+-]?([0-9][0-9_]*\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")
_LEADING_ZERO = re.compile(r"[+-]?0[0-9oOxXbB_]+")
_ENVIRONMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def text(form: Form, default: str, expected: str) -> str:
    """Text, as written, without control characters: `user: no` is a user called "no"."""
    if not form.written:
        return default
    if not isinstance(form.value, Scalar):
        form.wrong_type(expected)
        return default
    found = form.value.text
    if len(found) > TEXT_LIMIT or not printable(found):
        form.wrong("this text is too long or holds a control character", expected)
        return default
    return found


def printable(found: str) -> bool:
    """No control character, line break or lone surrogate: safe on a screen and in an argument."""
    return all(c.isprintable() or c == " " or c == "\u00a0" for c in found)


def word(form: Form, default: str, expected: str) -> str:
    """Text that may not be empty."""
    found = text(form, default, expected)
    if form.written and isinstance(form.value, Scalar) and not form.value.text.strip():
        form.wrong("this is empty", expected)
    return found


def integer(form: Form, default: T, low: int, high: int, expected: str) -> int | T:
    """A whole number in decimal. `1e3` and `1_000` are one thousand; `0o22` and `022` are refused."""
    if not form.written:
        return default
    if not isinstance(form.value, Scalar):
        form.wrong_type(expected)
        return default
    written = form.value.text.strip()
    if _LEADING_ZERO.fullmatch(written) and written.strip("+-0_"):
        form.wrong(f"'{written[:40]}' begins with a zero and could be octal", f"{expected}, in decimal")
        return default
    if len(written) <= 40 and _DECIMAL.fullmatch(written):
        number = int(written.replace("_", ""))
    elif len(written) <= 40 and _FLOAT.fullmatch(written) and "e" in written.lower() \
            and abs(found := float(written.replace("_", ""))) < 1e18 and found == int(found):
        number = int(found)
    else:
        form.wrong_type(expected)
        return default
    if not low <= number <= high:
        form.wrong(f"{number} is out of range", expected)
        return default
    return number


def port(form: Form, default: T) -> int | T:
    """A TCP port."""
    return integer(form, default, 1, 65535, "a port number from 1 to 65535")


def number(form: Form, default: T, low: float, high: float, expected: str) -> float | T:
    """A number; never NaN or infinite."""
    if not form.written:
        return default
    written = form.value.text.strip() if isinstance(form.value, Scalar) else ""
    if not (written and len(written) <= 40 and _FLOAT.fullmatch(written)):
        form.wrong_type(expected)
        return default
    found = float(written.replace("_", ""))
    if not low <= found <= high:
        form.wrong(f"{written} is out of range", expected)
        return default
    return found


def boolean(form: Form, default: bool) -> bool:
    """true/false, yes/no, on/off, in any case."""
    if not form.written:
        return default
    if isinstance(form.value, Scalar):
        written = form.value.text.strip().lower()
        if written in _TRUE:
            return True
        if written in _FALSE:
            return False
    form.wrong_type("true or false")
    return default


def size(form: Form, default: T, low: int) -> int | T:
    """Bytes: "24GiB", "512MB", or a whole number of bytes; at least `low`."""
    expected = "a size such as 24GiB, 512MB or a number of bytes"
    if not form.written:
        return default
    written = form.value.text.strip() if isinstance(form.value, Scalar) else ""
    found = bytes_of(written)
    if found is None:
        form.wrong_type(expected)
        return default
    if not low <= found < 1 << 60:
        plain = written[-1:].isdigit()
        hint = f"; did you mean '{written}GiB'?" if plain and 0 < found < 1 << 16 else ""
        form.wrong(f"{found} bytes is out of range{hint}", f"{expected}, at least {low:,} bytes")
        return default
    return found


def bytes_of(written: str) -> int | None:
    """"24GiB", "512MB" or a whole number of bytes, in bytes; None: it is none of these."""
    match = _SIZE.fullmatch(written) if len(written) <= 40 else None
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None or (unit == 1 and "." in match[1]):
        return None
    number = match[1].replace("_", "")
    return int(float(number) * unit) if "." in number else int(number) * unit


def choice(form: Form, kind: type[E], default: T) -> E | T:
    """One word of a StrEnum."""
    words = tuple(str(member) for member in kind)
    found = one_of(form, words, "")
    return kind(found) if found else default


def one_of(form: Form, words: tuple[str, ...], default: str) -> str:
    """One of some words, in any case."""
    expected = f"one of {', '.join(words)}"
    if not form.written:
        return default
    if not isinstance(form.value, Scalar):
        form.wrong_type(expected)
        return default
    written = form.value.text.strip().lower()
    if written in words:
        return written
    near = closest(written, words)
    form.wrong(f"this is {describe(form.value)}" + (f"; did you mean {near!r}?" if near else ""), expected)
    return default


def many(form: Form, read: Callable[[Form], T | None], expected: str) -> tuple[T, ...]:
    """A list; a single value is a list of one."""
    if not form.written:
        return ()
    items = form.value.items if isinstance(form.value, Sequence) else [form.value]
    single = not isinstance(form.value, Sequence)
    found = []
    for place, item in enumerate(items):
        part = Form(form.notes, form.key if single else f"{form.key}[{place}]",
                    form.line if single else item.line, item)
        if not part.written:
            part.wrong("this is empty", expected)
            continue
        read_item = read(part)
        if read_item is not None:
            found.append(read_item)
    return tuple(found)


def words(form: Form, expected: str) -> tuple[str, ...]:
    """A list of texts; a single text is a list of one."""
    return tuple(item for item in many(form, lambda part: word(part, "", expected), expected) if item)


def mapping(form: Form, read: Callable[[Form], T | None], expected: str) -> dict[str, T]:
    """Values by names that the user chose."""
    if not form.written:
        return {}
    if not isinstance(form.value, Mapping):
        form.wrong_type(expected)
        return {}
    found: dict[str, T] = {}
    for key, value in form.value.entries.items():
        part = Form(form.notes, join(form.key, key), form.value.lines[key], value, key)
        if not key.strip() or len(key) > 64 or not printable(key) or key.startswith("-"):
            part.wrong("this name is empty, longer than 64 characters, begins with a dash, or holds a control "
                       "character", expected)
            continue
        item = read(part)
        if item is not None:
            found[key] = item
    return found


def environment(form: Form) -> dict[str, str]:
    """Environment variables: values are text as written, `0` and `on` too."""
    expected = "NAME: value pairs, for example {CUDA_VISIBLE_DEVICES: \"0\"}"
    found = mapping(form, lambda part: text(part, "", expected), expected)
    for name in found:
        if not _ENVIRONMENT.fullmatch(name):
            form.wrong(f"{name!r} is no name of an environment variable", expected)
    return {name: value for name, value in found.items() if _ENVIRONMENT.fullmatch(name)}
