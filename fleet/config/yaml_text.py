"""Plain values as YAML text that reads back as the same, whatever they hold."""

from __future__ import annotations

import re
from collections.abc import Iterable

_PLAIN = re.compile(r"[A-Za-z_/~][A-Za-z0-9_./~+-]*|[0-9]{1,3}(\.[0-9]{1,3}){3}")
_RESERVED = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null", "~", "nan", "inf"))
COMMENT_LIMIT = 160


def scalar(text: str) -> str:
    """One value: as it is where nobody can misread it, else in double quotes."""
    if _PLAIN.fullmatch(text) and text.lower() not in _RESERVED:
        return text
    return '"' + "".join(map(_escaped, text)) + '"'


def _escaped(c: str) -> str:
    if c in '"\\':
        return "\\" + c
    code = ord(c)
    if c.isprintable() and not 0xD800 <= code <= 0xDFFF:
        return c
    if 0xD800 <= code <= 0xDFFF:      # half a character, from a file name that is no UTF-8
        return "\ufffd"
    return f"\\x{code:02X}" if code < 0x100 else f"\\u{code:04X}" if code < 0x10000 else f"\\U{code:08X}"


def flow(items: Iterable[str]) -> str:
    """A list on one line."""
    return f"[{', '.join(map(scalar, items))}]"


def comment(text: str) -> str:
    """Text that can stand behind a `#`: one line, bounded."""
    line = "".join(c if c.isprintable() else "?" for c in text)
    return line if len(line) <= COMMENT_LIMIT else line[:COMMENT_LIMIT - 1] + "…"
