"""A head's `/metrics`: Prometheus text, nan where nothing was measured yet."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

MOST_SAMPLES = 2048

_SAMPLE = re.compile(r"^(?:llamacpp:)?([A-Za-z_][A-Za-z0-9_:]{0,100})(?:\{([^{}]{0,400})\})?\s+(\S{1,40})")
_POSITION = re.compile(r'position="(\d{1,4})"')


@dataclass(frozen=True, slots=True)
class Metrics:
    """Counters and gauges by name, without the "llamacpp:" before it. None = not there, or not known yet."""

    values: Mapping[str, float | None] = field(default_factory=dict)
    by_position: Mapping[str, Mapping[int, float]] = field(default_factory=dict)

    def value(self, name: str) -> float | None:
        """One figure."""
        return self.values.get(name)

    @property
    def tokens_predicted_total(self) -> float | None:
        """Tokens written, counted when a slot is released."""
        return self.value("tokens_predicted_total")

    @property
    def tokens_predicted_seconds_total(self) -> float | None:
        """Seconds that these took."""
        return self.value("tokens_predicted_seconds_total")

    @property
    def prompt_tokens_total(self) -> float | None:
        """Tokens read."""
        return self.value("prompt_tokens_total")

    @property
    def prompt_seconds_total(self) -> float | None:
        """Seconds that these took."""
        return self.value("prompt_seconds_total")

    @property
    def n_decode_total(self) -> float | None:
        """Passes through the model; moves while a request runs."""
        return self.value("n_decode_total")

    @property
    def requests_processing(self) -> float | None:
        """Requests that run."""
        return self.value("requests_processing")

    @property
    def requests_deferred(self) -> float | None:
        """Requests that wait for a slot."""
        return self.value("requests_deferred")

    @property
    def chance_by_position(self) -> tuple[float, ...]:
        """How often the drafted token at a position was right if all before it were; () where it is not told."""
        drafts, accepted = self.value("spec_decode_num_drafts_total"), self.accepted_by_position
        if not drafts or drafts < 0:
            return ()
        return tuple(min(1.0, max(0.0, right / before)) if before > 0 else 0.0
                     for before, right in pairwise((drafts, *accepted)))

    @property
    def accepted_by_position(self) -> tuple[float, ...]:
        """Drafted tokens that were accepted, by their position in the draft; () where it is not told."""
        found = self.by_position.get("spec_decode_num_accepted_tokens_per_pos_total", {})
        return tuple(found[position] for position in sorted(found))


def parse_metrics(text: str) -> Metrics:
    """Read Prometheus text; lines that make no sense are left out."""
    values: dict[str, float | None] = {}
    by_position: dict[str, dict[int, float]] = {}
    for line in text.splitlines()[:2 * MOST_SAMPLES]:
        match = _SAMPLE.match(line)
        if match is None or len(values) >= MOST_SAMPLES:
            continue
        try:
            number = float(match[3])
        except ValueError:
            continue
        known = number if math.isfinite(number) else None
        if match[2] is None:
            values[match[1]] = known
        elif (position := _POSITION.search(match[2])) and known is not None:
            by_position.setdefault(match[1], {})[int(position[1])] = known
    return Metrics(values, by_position)
