"""Text that came from somewhere else, made safe to show: the one place where that is done."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

# C0 and C1 controls (a terminal obeys both), line and paragraph separators, the bidirectional marks that
# reorder what is read, and lone surrogates, which no output encoding takes.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_SHORT = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}
_SECRET_FLAG = re.compile(r"--?[a-z_-]*(api[_-]?keys?|token|password|passwd|secret)$", re.IGNORECASE)
_SECRET_VALUE = re.compile(r"(--?[a-z_-]*(?:api[_-]?keys?|token|password|passwd|secret))=.*", re.IGNORECASE | re.DOTALL)
SECRET_NAME = re.compile("KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
_SHORT_SECRET_FLAGS = frozenset({"-hft"})  # llama-server's short form of --hf-token
HIDDEN = "***"


def visible(text: str, *, keep: str = "", limit: int | None = None) -> str:
    r"""`text` with everything that a terminal would obey written out: ESC becomes `\x1b`.

    Args:
        text: anything that a node, a file or a network peer said.
        keep: characters that stay as they are ("\n\t" for running text).
        limit: most characters of the result; longer text ends in an ellipsis.
    """
    shown = _UNSAFE.sub(lambda match: match[0] if match[0] in keep else _escape(match[0]), text)
    if limit is not None and len(shown) > limit:
        return shown[:max(0, limit - 1)] + "…"
    return shown


def _escape(character: str) -> str:
    if character in _SHORT:
        return _SHORT[character]
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def without_secrets(argv: Sequence[str]) -> tuple[str, ...]:
    """A command line with the values of keys, tokens and passwords replaced by `***`.

    Paths of key files (`--api-key-file`) are no secrets and stay. vLLM takes several keys after one `--api-key`: all
    words up to the next option are hidden.
    """
    shown: list[str] = []
    hide_next = hidden = False
    for argument in argv:
        if hide_next or (hidden and not argument.startswith("-")):
            shown.append(HIDDEN)
            hide_next, hidden = False, True
            continue
        hidden = False
        shown.append(_SECRET_VALUE.sub(rf"\1={HIDDEN}", argument))
        hide_next = argument in _SHORT_SECRET_FLAGS or bool(_SECRET_FLAG.match(argument))
    return tuple(shown)


def hidden_values(env: Mapping[str, str]) -> dict[str, str]:
    """Environment variables with the values of those that are named like secrets replaced by `***`."""
    return {name: HIDDEN if SECRET_NAME.search(name) else value for name, value in env.items()}
