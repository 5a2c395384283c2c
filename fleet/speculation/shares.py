"""The slots of one target among the requests that speculate there at once."""

from __future__ import annotations

from collections.abc import Callable


class Shares:
    """Each stream gets the same number of slots, whatever it would like, and never more memory than is its part.

    Args:
        slots: of the target.
        context: tokens that its cache holds for all slots together (`-kvu`).
        others: requests that hold a slot of it besides.
    """

    def __init__(self, slots: int, context: int, others: Callable[[], int]) -> None:
        self.slots = slots
        self.context = context
        self.streams = 0
        self._others = others

    def lanes(self, tokens: int) -> int:
        """Prompts that one round of one stream may have, each of `tokens` tokens; at least 1."""
        streams = max(1, self.streams)
        by_slots = (self.slots - self._others()) // streams
        by_memory = self.context // max(1, tokens) // streams if self.context else by_slots
        return max(1, min(by_slots, by_memory))
