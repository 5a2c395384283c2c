"""Which layers go to which device: contiguous ranges on ordered devices, in the least predicted time. Pure.

The rules of the game are llama.cpp's (fleet/planning/split.py): devices take ranges of layers in their order, the last
layer is the output layer, the KV of a layer lies where the layer lies. Within them the search is exact: dynamic
programming over (device, layer), which for 15 devices and 126 layers is 120 000 small steps.

Seconds a token, as measured (RTT 0 to 50 ms, one and two workers): bytes read over the device's bandwidth, plus one
round trip and a little work for each remote device that takes part, plus what it sends over the link's bandwidth.
Deals that are equally fast are told apart by how even they fill the devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from fleet.planning.split import layers_by_weight

UNIT = 10 ** 18               # attoseconds a second: whole numbers, so that equal devices are equal to the last digit
SLOWEST = 1.0                 # seconds a byte: slower than anything there is

Compute = Callable[[int, int], int]   # bytes that a device computes with which holds layers first .. last - 1


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of a model; the last of them is the output layer."""

    weights: int               # bytes that whoever holds it keeps
    kv: int                    # bytes of its KV (or recurrent state), all slots together
    read: int                  # bytes that are read for one token: of experts those in use, of KV what is filled


@dataclass(frozen=True, slots=True)
class Place:
    """A device as the solver sees it, in the order of `--device`."""

    name: str
    limit: int                         # bytes that may be filled, the reserve included
    reserve: int = 0                   # bytes that stay free
    seconds_per_byte: float = 0.0      # 1 / memory bandwidth
    hop: float = 0.0                   # seconds a token that its taking part costs: round trip and hidden states
    output_hop: float = 0.0            # seconds more where it holds the output layer: logits over the wire
    least: int = 0                     # layers that it has to take


@dataclass(frozen=True, slots=True)
class Deal:
    """How many layers each place gets, and what comes of it."""

    counts: tuple[int, ...]            # one a place
    needs: tuple[int, ...]             # bytes a place, without the reserve; 0 for none
    seconds: float                     # predicted, a token
    fits: bool

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """First layer and the one after the last, of each place."""
        ends = tuple(accumulate(self.counts))
        return tuple((end - count, end) for count, end in zip(self.counts, ends, strict=True))


class _Sums:
    """Weights, KV and reads of any range of layers, and what it needs and costs on a place."""

    def __init__(self, layers: Sequence[Layer], compute: Compute) -> None:
        self.n = len(layers)
        self._held = (0, *accumulate(layer.weights + layer.kv for layer in layers))
        self._read = (0, *accumulate(layer.read for layer in layers))
        self._compute = compute
        self._computed: dict[tuple[int, int], int] = {}

    def need(self, first: int, last: int) -> int:
        """Bytes of a range on its device."""
        if first == last:
            return 0
        if (first, last) not in self._computed:
            self._computed[first, last] = self._compute(first, last)
        return self._held[last] - self._held[first] + self._computed[first, last]

    def held(self, first: int, last: int) -> int:
        """Weights and KV alone: a lower bound of `need` that asks nobody."""
        return self._held[last] - self._held[first]

    def coster(self, place: Place) -> Callable[[int, int], int]:
        """Attoseconds a token of a range on a place, as a function of the range."""
        read, n = self._read, self.n
        per_byte = round(min(max(place.seconds_per_byte, 0.0), SLOWEST) * UNIT)
        hop, with_output = round(place.hop * UNIT), round((place.hop + place.output_hop) * UNIT)

        def cost(first: int, last: int) -> int:
            if first == last:
                return 0
            return per_byte * (read[last] - read[first]) + (with_output if last == n else hop)
        return cost


def solve(layers: Sequence[Layer], places: Sequence[Place], compute: Compute) -> Deal | None:
    """The fastest deal of all layers that keeps every place below its limit; None when there is none.

    Args:
        layers: of the model, the output layer last.
        places: in the order in which layers are dealt.
        compute: bytes of the buffers that a device computes in, by the range that it holds.
    """
    sums = _Sums(layers, compute)
    best: list[tuple[int, float] | None] = [(0, 0.0)] + [None] * sums.n
    trails: list[list[int]] = []
    for place in places:
        best, trail = _with(sums, place, best)
        trails.append(trail)
    if best[sums.n] is None:
        return None
    counts, end = [], sums.n
    for trail in reversed(trails):
        counts.append(end - trail[end])
        end = trail[end]
    return _deal(sums, places, tuple(reversed(counts)))


def _with(sums: _Sums, place: Place,
          before: Sequence[tuple[int, float] | None]) -> tuple[list[tuple[int, float] | None], list[int]]:
    """The best ways to deal the first layers, one place more; and from where each came."""
    room = place.limit - place.reserve
    after: list[tuple[int, float] | None] = [None] * len(before)
    trail = [0] * len(before)
    cost = sums.coster(place)
    for end in range(len(before)):
        for start in range(end, -1, -1):         # the more layers, the more bytes: the first that is too much ends it
            taken = end - start
            if taken and sums.held(start, end) > room:
                break
            earlier = before[start]
            if earlier is None or taken < place.least:
                continue
            need = sums.need(start, end)
            if taken and need > room:
                break
            crowded = need * need / place.limit if need else 0.0
            now = (earlier[0] + cost(start, end), earlier[1] + crowded)
            known = after[end]
            if known is None or now < known:
                after[end], trail[end] = now, start
    return after, trail


def weighed(layers: Sequence[Layer], places: Sequence[Place], compute: Compute, counts: Sequence[int]) -> Deal:
    """What comes of a given deal: whether it fits, and how long a token takes.

    Raises:
        ValueError: `counts` does not deal exactly the layers that there are.
    """
    if len(counts) != len(places) or sum(counts) != len(layers) or any(count < 0 for count in counts):
        raise ValueError("counts must have one number a place, and deal every layer")
    return _deal(_Sums(layers, compute), places, tuple(counts))


def _deal(sums: _Sums, places: Sequence[Place], counts: tuple[int, ...]) -> Deal:
    needs, cost, start, fits = [], 0, 0, True
    for place, count in zip(places, counts, strict=True):
        need = sums.need(start, start + count)
        needs.append(need)
        cost += sums.coster(place)(start, start + count)
        fits = fits and (not count or need <= place.limit - place.reserve)
        start += count
    return Deal(counts, tuple(needs), cost / UNIT, fits)


def by_memory(layers: Sequence[Layer], places: Sequence[Place], compute: Compute) -> Deal | None:
    """Layers in proportion to what each place may hold. None when that does not fit, not even without the smallest.

    A place that cannot hold its own share gets nothing, the smallest first, and the others share anew.
    """
    weights = [float(max(0, place.limit)) for place in places]
    while any(weights):
        deal = weighed(layers, places, compute, layers_by_weight(len(layers) - 1, weights))
        if deal.fits:
            return deal
        crowded = [number for number, (place, need) in enumerate(zip(places, deal.needs, strict=True))
                   if deal.counts[number] and need > place.limit - place.reserve]
        weights[min(crowded, key=lambda number: (weights[number], number))] = 0.0
    return None
