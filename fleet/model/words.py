"""How bad something is, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How bad something is."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, for a person: what, and what to do.

    `code` is a stable word ("no-llama", "host-key-changed") for scripts and tests.
    """

    code: str
    what: str
    remedy: str = ""
    severity: Severity = Severity.ERROR
