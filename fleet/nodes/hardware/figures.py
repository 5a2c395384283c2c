"""Numbers, sizes and JSON out of text that somebody else's tool printed.

Total: what is no number is None, and nothing here grows with a hostile input.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
LABEL_LIMIT = 120               # characters of a device's or processor's name that are kept
LARGEST = 1 << 60               # bytes: an exbibyte; anything above is nonsense

# GPU tools write MB and GB and mean binary ones (nvidia-smi, amd-smi, system_profiler alike).
_UNITS = {"": None, "b": 1, "byte": 1, "bytes": 1, "k": KIB, "kb": KIB, "kib": KIB, "m": MIB, "mb": MIB, "mib": MIB,
          "g": GIB, "gb": GIB, "gib": GIB, "t": GIB * KIB, "tb": GIB * KIB, "tib": GIB * KIB}
_NUMBER = re.compile(r"[-+]?[0-9]{1,18}(?:\.[0-9]{1,18})?")
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([A-Za-z]{0,5})")
_JSON_STARTS = re.compile(r"[\[{]")
_JSON_TRIES = 32


def whole(text: object) -> int | None:
    """A count that is not negative, as text or as a JSON number."""
    if isinstance(text, bool):
        return None
    if isinstance(text, int):
        return text if 0 <= text <= LARGEST else None
    if isinstance(text, str) and (stripped := text.strip()).isascii() and stripped.isdigit() and len(stripped) <= 19:
        number = int(stripped)
        return number if number <= LARGEST else None
    return None


def number(text: object) -> float | None:
    """A finite number at the start of a text ("27.91 W", "7 %"), or a JSON number."""
    if isinstance(text, bool):
        return None
    if isinstance(text, int):
        return float(text) if abs(text) <= LARGEST else None
    if isinstance(text, float):
        return text if math.isfinite(text) and abs(text) <= LARGEST else None
    if isinstance(text, str) and (match := _NUMBER.match(text.strip())):
        return float(match[0])
    return None


def size(text: object, unit: int = 1) -> int | None:
    """Bytes from "1536 MB", "4 GB", "24564 MiB"; a bare number counts in `unit`."""
    if isinstance(text, int | float) and not isinstance(text, bool):
        value, factor = number(text), unit
    elif isinstance(text, str) and (match := _SIZE.fullmatch(text.strip())) and match[2].lower() in _UNITS:
        value, factor = float(match[1]), _UNITS[match[2].lower()] or unit
    else:
        return None
    if value is None or value < 0 or value * factor > LARGEST:
        return None
    return int(value * factor)


def fraction(percent: object) -> float | None:
    """A share of one from a percentage."""
    value = number(percent)
    return None if value is None or not 0 <= value <= 100 else value / 100


def label(text: object) -> str:
    """A name in one bounded line; "" for anything that is no text."""
    return " ".join(text[:4 * LABEL_LIMIT].split())[:LABEL_LIMIT] if isinstance(text, str) else ""


def json_after_noise(text: str) -> tuple[object, str]:
    """The first JSON object (or array of objects) in a text, and what was printed before it.

    Vendor tools print warnings and banners on stdout before their JSON. (None, text) without any.
    """
    decoder = json.JSONDecoder()
    for start in _starts(text):
        try:
            value, _ = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, Mapping) or (isinstance(value, list) and any(isinstance(item, Mapping) for item in value)):
            return value, text[:start].strip()
    return None, text.strip()


def _starts(text: str) -> Iterator[int]:
    for tried, match in enumerate(_JSON_STARTS.finditer(text)):
        if tried >= _JSON_TRIES:
            return
        yield match.start()


def inner(value: object, *path: str) -> object:
    """What lies at `path` in nested JSON objects; None where there is no such thing."""
    for key in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value


def lines_of(text: str) -> list[str]:
    """The lines that say something, without `# ` comments, stripped of line ends."""
    lines = (line.rstrip("\r") for line in text.split("\n"))
    return [line for line in lines if line.strip() and not line.startswith("#")]


def key_values(text: str, separator: str = ":") -> dict[str, str]:
    """"key: value" lines as a mapping; the first of equal keys counts."""
    found: dict[str, str] = {}
    for line in text.split("\n"):
        key, middle, value = line.partition(separator)
        if middle:
            found.setdefault(key.strip(), value.strip())
    return found
