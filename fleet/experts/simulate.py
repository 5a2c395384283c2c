"""Caches of experts, run over a trace: what would have been hit with so much memory. Pure.

LRU is worked out for every size at once (Mattson, Gecsei, Slutz, Traiger: Evaluation techniques for storage
hierarchies, 1970): an expert is found in a cache of LRU exactly if it and all that was asked for since it was, each
once, fit into it. That sum is its stack distance, here in bytes. The recency stack is one long number with a bit for
each expert at the place where it was asked for last: the bits above a place are what was asked for since, and counting
them takes nanoseconds, where a Fenwick tree in Python takes microseconds (measured: 768 000 requests, 48 layers of 128
experts, in 2 s; each of the other policies takes 1 s for one room).

All policies see what the page cache sees: one room for all layers; prompts fill it, too, though decoding alone is
counted; within one layer of one pass an expert counts once, however many rows want it.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from fleet.errors import ModelFileError
from fleet.experts.trace import Trace
from fleet.experts.worst import LayerHits

_NEVER = 1 << 62               # of a stack distance: was not asked for before; of a next use: there is none
_LOOSE = 1024                  # places of the stack beyond twice its experts before it is packed
EXPERT = 1                     # bytes of an expert where nothing is said: rooms are then numbers of experts


@dataclass(frozen=True, slots=True)
class Requests:
    """What a trace asks of a cache, in order."""

    experts: int                                   # of a layer: key = layer * experts + expert
    keys: array = field(repr=False)                # an expert of a layer each
    counted: bytearray = field(repr=False)         # 1 where a hit counts: decoding, behind the beginning
    sizes: Mapping[int, int]                       # bytes of an expert, by layer
    tokens: int                                    # that count
    used: int                                      # experts a token and layer

    @property
    def total(self) -> int:
        """Requests that count."""
        return self.counted.count(1)

    @property
    def bytes(self) -> int:
        """Of the requests that count."""
        return sum(self.sizes[key // self.experts] for key, counts in zip(self.keys, self.counted, strict=True)
                   if counts)

    @property
    def touched(self) -> int:
        """Bytes of the experts that are ever asked for."""
        return sum(self.sizes[key // self.experts] for key in set(self.keys))


def requests_of(trace: Trace, layer_bytes: Mapping[int, int] | None = None, *, skip: int = 0) -> Requests:
    """The requests of a trace.

    Args:
        layer_bytes: of one expert, by layer; None = all are alike, and count as EXPERT.
        skip: decoded tokens at the beginning that fill the cache and do not count.

    Raises:
        ModelFileError: nothing is decoded in it, or it has a layer that `layer_bytes` has not: another model's.
    """
    keys, counted, sizes = array("I"), bytearray(), {}
    first = min((routed.layer for routed in trace.passes), default=0)
    decoding, tokens, counts, used = False, 0, False, 0
    for routed in trace.passes:
        if routed.layer == first:
            decoding = len(routed.rows) <= trace.decode_rows
            counts = decoding and tokens >= skip
            tokens += len(routed.rows) if decoding else 0
        if routed.layer not in sizes:
            size = EXPERT if layer_bytes is None else layer_bytes.get(routed.layer, 0)
            if size <= 0:
                raise ModelFileError(f"The trace is of another model: this one has no experts in layer {routed.layer}.",
                                     "Give the model that it was recorded of.")
            sizes[routed.layer] = size
        base = routed.layer * trace.experts
        wanted = routed.rows[0] if len(routed.rows) == 1 else [expert for row in routed.rows for expert in row]
        new = [base + expert for expert in dict.fromkeys(wanted)]
        keys.extend(new)
        counted.extend((b"\1" if counts else b"\0") * len(new))
        used = max(used, len(routed.rows[0]))
    if not any(counted):
        raise ModelFileError("The trace has too few decoded tokens to say anything." if tokens else
                             "Nothing is decoded in the trace.", "Record a longer one.")
    return Requests(trace.experts, keys, counted, sizes, max(0, tokens - skip), used)


# ---------------------------------------------------------------------------------------------
# LRU


@dataclass(frozen=True, slots=True)
class Lru:
    """Hits of LRU in any room."""

    requests: Requests
    distances: array = field(repr=False)           # bytes, of each request; _NEVER = it was new
    _sorted: tuple[list[int], list[int]] = field(repr=False)     # distances that count, and the bytes up to each

    def hit_rate(self, room: int) -> float:
        """By experts, 0 to 1, in a room of so many bytes."""
        return bisect_right(self._sorted[0], room) / len(self._sorted[0])

    def byte_hit_rate(self, room: int) -> float:
        """By bytes."""
        sums = self._sorted[1]
        return sums[bisect_right(self._sorted[0], room)] / sums[-1]

    def missing(self, room: int) -> float:
        """Bytes that have to be read for a token."""
        sums = self._sorted[1]
        return (sums[-1] - sums[bisect_right(self._sorted[0], room)]) / self.requests.tokens

    @property
    def new(self) -> float:
        """The part that is asked for the first time: no cache has it."""
        distances = self._sorted[0]
        return 1 - bisect_right(distances, _NEVER - 1) / len(distances)

    def layers(self, room: int) -> tuple[LayerHits, ...]:
        """Hits by layer."""
        asked: Counter[int] = Counter()
        hits: Counter[int] = Counter()
        for key, distance, counts in zip(self.requests.keys, self.distances, self.requests.counted, strict=True):
            if counts:
                layer = key // self.requests.experts
                asked[layer] += 1
                hits[layer] += distance <= room
        return tuple(LayerHits(layer, asked[layer], hits[layer]) for layer in sorted(asked))


def lru(requests: Requests) -> Lru:
    """Run LRU in all rooms at once."""
    distances = _distances(requests)
    sizes, experts = requests.sizes, requests.experts
    pairs = sorted((distance, sizes[key // experts]) for key, distance, counts
                   in zip(requests.keys, distances, requests.counted, strict=True) if counts)
    return Lru(requests, distances, ([distance for distance, _ in pairs],
                                     list(accumulate((size for _, size in pairs), initial=0))))


def _distances(requests: Requests) -> array:
    experts, distances = requests.experts, array("Q")
    kinds = sorted(set(requests.sizes.values()))
    kind_of = {layer: kinds.index(size) for layer, size in requests.sizes.items()}
    stacks = [0] * len(kinds)                      # by size of an expert; the newest is the highest bit
    place_of: dict[int, int] = {}
    alike = len(kinds) == 1
    place, limit = 0, _LOOSE
    for key in requests.keys:
        kind = kind_of[key // experts]
        at = place_of.get(key)
        if at is None:
            distances.append(_NEVER)
        else:
            if alike:
                distances.append(kinds[0] * (stacks[0] >> at).bit_count())
            else:
                distances.append(sum(size * (stack >> at).bit_count()
                                     for size, stack in zip(kinds, stacks, strict=True)))
            stacks[kind] ^= 1 << at
        stacks[kind] |= 1 << place
        place_of[key] = place
        place += 1
        if place > limit:
            place = _pack(stacks, place_of, kind_of, experts)
            limit = 2 * place + _LOOSE
    return distances


def _pack(stacks: list[int], place_of: dict[int, int], kind_of: Mapping[int, int], experts: int) -> int:
    """Close the gaps of the stack; the next free place."""
    for kind in range(len(stacks)):
        stacks[kind] = 0
    for place, key in enumerate(sorted(place_of, key=place_of.__getitem__)):
        place_of[key] = place
        stacks[kind_of[key // experts]] |= 1 << place
    return len(place_of)


# ---------------------------------------------------------------------------------------------
# Other policies, one room at a time


def lfu(requests: Requests, room: int) -> float:
    """Keeps what was asked for most often until now, also while it was out; of equals the one asked for last."""
    count: Counter[int] = Counter()
    inside: dict[int, tuple[int, int]] = {}
    heap: list[tuple[int, int, int]] = []
    sizes, experts, have, hits = requests.sizes, requests.experts, 0, 0
    for clock, (key, counts) in enumerate(zip(requests.keys, requests.counted, strict=True)):
        count[key] += 1
        if key in inside:
            hits += counts
        else:
            size = sizes[key // experts]
            if size > room:
                continue
            while have + size > room:
                times, when, oldest = heapq.heappop(heap)
                if inside.get(oldest) == (times, when):
                    del inside[oldest]
                    have -= sizes[oldest // experts]
            have += size
        inside[key] = (count[key], clock)
        heapq.heappush(heap, (count[key], clock, key))
        if len(heap) > 4 * len(inside) + _LOOSE:
            heap = [(times, when, one) for one, (times, when) in inside.items()]
            heapq.heapify(heap)
    return hits / requests.total


def belady(requests: Requests, room: int) -> float:
    """Knows the future: lets go of what is asked for again last. No cache that loads what is asked for hits more.

    Where experts differ in size that is no longer proven, but still the mark to measure by.
    """
    keys, sizes, experts = requests.keys, requests.sizes, requests.experts
    following, seen = [_NEVER] * len(keys), {}
    for at in range(len(keys) - 1, -1, -1):
        following[at] = seen.get(keys[at], _NEVER)
        seen[keys[at]] = at
    inside: dict[int, int] = {}
    heap: list[tuple[int, int]] = []
    have, hits = 0, 0
    for key, again, counts in zip(keys, following, requests.counted, strict=True):
        if key in inside:
            hits += counts
        else:
            size = sizes[key // experts]
            if size > room:
                continue
            while have + size > room:
                when, last = heapq.heappop(heap)
                if inside.get(last) == -when:
                    del inside[last]
                    have -= sizes[last // experts]
            have += size
        inside[key] = again
        heapq.heappush(heap, (-again, key))
    return hits / requests.total


def static(requests: Requests, room: int, weights: Mapping[int, float] | None = None) -> float:
    """Keeps the same experts for ever: those of the largest weight.

    Args:
        weights: by key, of an imatrix file, say; None = how often the first half of the trace asked. The second half
            is what counts then.
    """
    keys, sizes, experts = requests.keys, requests.sizes, requests.experts
    begin = 0
    if weights is None:
        begin = len(keys) // 2
        weights = Counter(keys[:begin])
    kept = pinned(weights, sizes, experts, room)
    total = requests.counted.count(1, begin)
    hits = sum(counts for key, counts in zip(keys[begin:], requests.counted[begin:], strict=True) if key in kept)
    return hits / total if total else 0.0


def pinned(weights: Mapping[int, float], sizes: Mapping[int, int], experts: int, room: int) -> set[int]:
    """The experts of the largest weight for each byte that fit."""
    kept, have = set(), 0
    for key in sorted(weights, key=lambda key: (-weights[key] / sizes.get(key // experts, 1), key)):
        size = sizes.get(key // experts)
        if size is not None and have + size <= room:
            kept.add(key)
            have += size
    return kept


def bytes_by_layer(layers: Sequence[tuple[int, int]]) -> dict[int, int]:
    """Bytes of an expert by layer, from (layer, bytes)."""
    return {layer: size for layer, size in layers if size > 0}
