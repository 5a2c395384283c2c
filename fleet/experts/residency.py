"""What a node tells of a model's experts in memory: the lines of `residency` of fleet/node, as records.

Residency is a state (in memory, evicted not long ago, evicted, never loaded). It is no hit rate: half of the experts in
memory gave nine hits of ten.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

MOST_CELLS = 512 * 4096
_SOME, _ALL = 3, 15


class Presence(StrEnum):
    """Where one expert of one layer is."""

    RESIDENT = "resident"
    RECENT = "recently evicted"
    EVICTED = "evicted"
    NEVER = "never loaded"


@dataclass(frozen=True, slots=True)
class Residency:
    """One sample. With `unknown` all else is empty, and the sentence says why."""

    at: float                                  # seconds since 1970, by the node
    method: str                                # "cachestat", "mincore"; "" = unknown
    unknown: str = ""
    layers: int = 0
    cells: bytes = field(default=b"", repr=False)    # a byte each, layer by layer; see `presence` and `part`
    experts: float | None = None               # part of all experts' bytes in memory, 0 to 1
    shared: float | None = None                # of what every token needs
    process: Mapping[str, float] = field(default_factory=dict)
    group: Mapping[str, float] = field(default_factory=dict)
    every: float = 0.0                         # seconds until the next
    cost: float = 0.0                          # seconds of a core that it took

    @property
    def count(self) -> int:
        """Experts a layer."""
        return len(self.cells) // self.layers if self.layers else 0

    def presence(self, row: int, expert: int) -> Presence:
        """Where an expert of the row-th layer with experts is."""
        value = self.cells[row * self.count + expert]
        return Presence.RESIDENT if value >= _SOME else (Presence.NEVER, Presence.EVICTED, Presence.RECENT)[value]

    def part(self, row: int, expert: int) -> float:
        """How much of it is in memory, 0 to 1."""
        return max(0, self.cells[row * self.count + expert] - _SOME + 1) / (_ALL - _SOME + 1)


class ResidencyReader:
    """Reads the lines of one process, of which most tell changes alone."""

    def __init__(self) -> None:
        self._cells = b""

    def feed(self, line: str) -> Residency | None:
        """The sample of a line; None for one that is none, or whose beginning was missed."""
        try:
            told = json.loads(line)
        except ValueError:
            return None
        if not isinstance(told, dict) or told.get("event") != "residency":
            return None
        at, every = _number(told.get("at")) or 0.0, _number(told.get("every")) or 0.0
        process, group = _figures(told.get("process")), _figures(told.get("group"))
        cost = (_number(told.get("cpu_ms")) or 0.0) / 1000
        method = told.get("method")
        if method not in ("cachestat", "mincore"):
            why = told.get("why")
            return Residency(at, "", why[:500] if isinstance(why, str) and why else "The node does not say why.",
                             process=process, group=group, every=every, cost=cost)
        cells, layers = _unpacked(told.get("cells")), told.get("layers")
        if told.get("delta"):
            if not cells or len(cells) != len(self._cells):
                return None
            cells = bytes(a ^ b for a, b in zip(cells, self._cells, strict=True))
        if not cells or max(cells) > _ALL or type(layers) is not int or layers < 1 or len(cells) % layers:
            return None
        self._cells = cells
        return Residency(at, method, "", layers, cells, _part(told.get("experts")), _part(told.get("shared")), process,
                         group, every, cost)


def _unpacked(text: object) -> bytes:
    if not isinstance(text, str) or len(text) > MOST_CELLS:
        return b""
    try:
        unpacking = zlib.decompressobj()
        cells = unpacking.decompress(base64.b64decode(text, validate=True), MOST_CELLS)
    except (binascii.Error, zlib.error, ValueError):
        return b""
    return cells if unpacking.eof else b""


def _number(value: object) -> float | None:
    known = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1 << 62
    return float(value) if known else None


def _part(value: object) -> float | None:
    found = _number(value)
    return None if found is None else min(1.0, found)


def _figures(value: object) -> dict[str, float]:
    if not isinstance(value, dict):
        return {}
    return {key: found for key, item in list(value.items())[:32]
            if isinstance(key, str) and (found := _number(item)) is not None}
