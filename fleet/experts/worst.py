"""Which layers hit least. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fleet.experts.counters import Counters


@dataclass(frozen=True, slots=True)
class LayerHits:
    """Experts that decoding asked one layer for, a pass each counting an expert once."""

    layer: int
    requests: int
    hits: int

    @property
    def rate(self) -> float | None:
        """0 to 1; None before the first."""
        return self.hits / self.requests if self.requests else None


def layers_of(now: Counters, before: Counters | None = None) -> tuple[LayerHits, ...]:
    """Every layer that was asked, of the shim's counters; () where hits are not known, or the server is another.

    Both readings with their cells.
    """
    if not now.exact or not now.cells:
        return ()
    if before is not None and ((before.pid, before.started, before.layers, before.experts)
                               != (now.pid, now.started, now.layers, now.experts) or not before.cells):
        return ()
    found = []
    for layer in range(now.layers):
        requests, hits = _row(now, layer)
        if before is not None:
            earlier = _row(before, layer)
            requests, hits = requests - earlier[0], hits - earlier[1]
        if requests > 0:
            found.append(LayerHits(layer, requests, max(0, min(hits, requests))))
    return tuple(found)


def worst_layers(layers: Sequence[LayerHits], count: int = 3) -> tuple[LayerHits, ...]:
    """Those with the lowest rates, the lowest first."""
    asked = [layer for layer in layers if layer.requests]
    return tuple(sorted(asked, key=lambda layer: (layer.hits / layer.requests, layer.layer))[:count])


def _row(counters: Counters, layer: int) -> tuple[int, int]:
    width = counters.experts * 4
    row = memoryview(counters.cells).cast("I")[layer * width:(layer + 1) * width]
    return sum(row[0::4]), sum(row[1::4])
