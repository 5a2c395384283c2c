"""The slots of one target among the requests that speculate there at once."""

from __future__ import annotations

from collections.abc import Callable

REREAD = 0.5               # share of its prompts that a round may read anew
MOST_REREADS = 3           # rounds in a row that read more, after which the target is taken not to keep its slots
SHORT = 64                 # tokens of a context that tell nothing


class Keeping:
    """Whether a target keeps what its slots have read from round to round, by what rounds had to read.

    Without `--no-cache-idle-slots` a llama-server with one cache for all slots saves and clears the idle ones at each
    new task, and without `--swa-full` a windowed model cannot go back: then every round reads every prompt.
    """

    def __init__(self) -> None:
        self.lost = 0

    def saw(self, *, context: int, prompts: int, read: int) -> None:
        """A round in slots that had seen the one before."""
        if context >= SHORT and prompts > 1:
            self.lost = self.lost + 1 if read > REREAD * prompts * context else 0

    @property
    def problem(self) -> str:
        """A sentence, "" while all is well."""
        return "" if self.lost < MOST_REREADS else (
            "The target reads every prompt of a round anew. Start it with --no-cache-idle-slots, and with --swa-full "
            "-ctxcp 0 where the model has a sliding window.")


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
