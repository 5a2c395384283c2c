"""Drafts without a model: what followed the last time that the same tokens stood in this very request."""

from __future__ import annotations

from collections.abc import Sequence

LONGEST, SHORTEST = 5, 2       # tokens that have to be the same
REACH = 1 << 13                # tokens that are looked at, from the end: 15 ms of a core for a new prompt


class NgramIndex:
    """Where each n-gram of a growing context was last seen.

    A longer match is the better guess, so lengths are tried from the longest. Of two places the later one counts.
    """

    def __init__(self) -> None:
        self._seen = 0
        self._base = 0
        self._places: dict[tuple[int, ...], int] = {}       # n-gram -> place behind it

    def draft(self, ids: Sequence[int], most: int) -> list[int]:
        """Up to `most` tokens that may follow `ids`; [] where nothing repeats. `ids` only ever grows."""
        self._learn(ids)
        for length in range(min(LONGEST, len(ids)), SHORTEST - 1, -1):
            place = self._places.get(tuple(ids[-length:]))
            if place is not None:
                after = ids[place:place + most]             # shorter where the text goes round: so does the guess
                return [after[number % len(after)] for number in range(most)]
        return []

    def _learn(self, ids: Sequence[int]) -> None:
        """Every n-gram that has something behind it."""
        begin = max(self._seen, len(ids) - REACH)
        for end in range(begin, len(ids)):                  # the n-gram ends before `end`
            for length in range(SHORTEST, LONGEST + 1):
                if end >= length:
                    self._places[tuple(ids[end - length:end])] = end
        self._seen = max(self._seen, len(ids))
