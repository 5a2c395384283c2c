"""Records to JSON: one function, so that every `--json` speaks the same language.

Names are the fields' own, sizes are bytes, shares are fractions, states are their words, bits are hexadecimal
digits, unknown is null. `since`, `read_at` and the like are seconds on the engine's clock, whose present reading stands
beside them as `clock`. Command lines carry no secrets.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from enum import Enum
from pathlib import PurePath
from typing import TypeAlias

from fleet.text import hidden_values, without_secrets

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

SCHEMA = 1  # grows when a name changes its meaning or goes; new names do not count


def plain(value: object) -> Json:
    """`value` in JSON's own types.

    Raises:
        TypeError: something that no record holds.
    """
    if isinstance(value, Enum):
        return plain(value.value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _field(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _field(str(key), item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return [plain(item) for item in sorted(value, key=str)]
    if isinstance(value, PurePath):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _field(name: str, value: object) -> Json:
    if name == "argv" and isinstance(value, (list, tuple)):
        return list(without_secrets([str(item) for item in value]))
    if name == "env" and isinstance(value, Mapping):
        return plain(hidden_values({str(key): str(item) for key, item in value.items()}))
    return plain(value)


def to_line(value: object) -> str:
    """One line of JSON, in ASCII: nothing in it can move a terminal."""
    return json.dumps(plain(value), separators=(", ", ": "), allow_nan=False)


def to_text(value: object) -> str:
    """Indented JSON, in ASCII."""
    return json.dumps(plain(value), indent=2, allow_nan=False)
