"""Which piece next and from whom: pure, seeded, no clock.

Rarest first: of the pieces that are still wanted, one that the fewest known peers have, so that
nothing hangs on a single machine for long. Among equals a random order of this puller's own, so
that pullers that start together diverge and have something to give to each other; a puller that
knows of one source only has nobody to diverge from and goes from the start to the end, which lets
the hash of the whole follow right behind.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet


class Rarity:
    """Wanted pieces in the order in which they should be asked for; O(log n) for each change."""

    def __init__(self, wanted: Iterable[int], count: int, rng: random.Random) -> None:
        self._wanted = set(wanted)
        self._owners = [0] * count
        order = list(range(count))
        rng.shuffle(order)
        self._random = [0] * count
        for place, index in enumerate(order):
            self._random[index] = place
        self._in_order = False
        self._heaps: dict[int, list[tuple[int, int]]] = {}
        self._entries = 0
        self._rebuild()

    def __len__(self) -> int:
        return len(self._wanted)

    def __contains__(self, index: object) -> bool:
        return index in self._wanted

    def owners(self, index: int) -> int:
        """How many peers are known to have the piece."""
        return self._owners[index]

    def set_in_order(self, in_order: bool) -> None:
        """From the start to the end among equals (one source), or at random."""
        if in_order != self._in_order:
            self._in_order = in_order
            self._rebuild()

    def want(self, index: int) -> None:
        """It is missing (again)."""
        self._wanted.add(index)
        self._push(index)

    def unwant(self, index: int) -> None:
        """Somebody is at it, or it is here."""
        self._wanted.discard(index)

    def gain(self, indices: Iterable[int]) -> None:
        """One more peer has these."""
        for index in indices:
            self._owners[index] += 1
            if index in self._wanted:
                self._push(index)

    def lose(self, indices: Iterable[int]) -> None:
        """One peer fewer has these."""
        for index in indices:
            self._owners[index] -= 1
            if index in self._wanted:
                self._push(index)

    def first(self, sources: Sequence[AbstractSet[int]], look: int = 4_096) -> int | None:
        """The rarest wanted piece that one of `sources` has; None when there is none.

        At most `look` pieces that nobody among them has are passed over.
        """
        found, passed = None, []
        for owners in sorted(filter(None, self._heaps)):   # nobody has those with 0 owners
            heap = self._heaps[owners]
            while heap and found is None and len(passed) < look:
                place, index = heapq.heappop(heap)
                if index not in self._wanted or self._owners[index] != owners:
                    continue   # out of date
                passed.append((owners, place, index))
                if any(index in have for have in sources):
                    found = index
            if not heap:
                del self._heaps[owners]
            if found is not None:
                break
        for owners, place, index in set(passed):
            heapq.heappush(self._heaps.setdefault(owners, []), (place, index))
        return found

    def _push(self, index: int) -> None:
        self._entries += 1
        if self._entries > 8 * len(self._owners) + 1_024:
            self._rebuild()   # peers that come and go leave entries that are out of date
            return
        place = index if self._in_order else self._random[index]
        heapq.heappush(self._heaps.setdefault(self._owners[index], []), (place, index))

    def _rebuild(self) -> None:
        self._heaps, self._entries = {}, 0
        for index in self._wanted:
            self._push(index)


def best_source(rates: Sequence[tuple[float, int]]) -> int:
    """Which of several peers should send the next piece, given (bytes a second so far, requests in flight) of each.

    The one that would be through with one more the soonest. A peer that was never measured (rate 0)
    counts as the fastest that is known, so that it is tried.
    """
    fastest = max((rate for rate, _ in rates), default=0.0) or 1.0
    return min(range(len(rates)), key=lambda number: (rates[number][1] + 1) / (rates[number][0] or fastest))


def share(left: int, slow: float, fast: float, grain: int) -> int:
    """How many of the last `left` bytes a second peer should take over so that both end at once; whole grains."""
    if slow + fast <= 0:
        return left // 2 // grain * grain
    return int(left * fast / (slow + fast)) // grain * grain
