"""What only a person can answer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class QuestionKind(StrEnum):
    """What is asked of the person at the keyboard."""

    HOST_KEY = "host key"                 # answer "yes" or None
    PASSWORD = "password"                 # answer is the password: never stored, never in an event
    PASSPHRASE = "passphrase"
    RECOVER = "recover"                   # answer "yes" or None
    UNFINISHED = "unfinished"             # answer "go on", "go back" or None; detail: the model to go back to


@dataclass(frozen=True, slots=True)
class Question:
    """Something to ask. The answer goes straight to who asked; it is never part of any state."""

    id: int
    kind: QuestionKind
    node: str
    text: str                             # one or two sentences
    detail: str = ""                      # fingerprint, key file ...
