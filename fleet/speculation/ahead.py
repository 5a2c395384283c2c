"""The next draft, made while this one is verified, in the hope that all of it is right."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from fleet.speculation.race import Draft

WORTH = 0.08             # share of such drafts that has to come true, below which none is made
AGAIN, TRIES = 40, 8     # rounds until it is tried again, and how often: one alone would tell nothing
FADES = 0.96


class AheadRecord:
    """How often such a draft came true, for all streams of one target."""

    def __init__(self) -> None:
        self.rate = 0.3                  # nothing is known yet: try
        self._waited = 0

    def pays(self) -> bool:
        """Whether to make one now."""
        if self.rate >= WORTH:
            return True
        self._waited = (self._waited + 1) % (AGAIN + TRIES)
        return self._waited >= AGAIN

    def came(self, true: bool) -> None:
        """One was made; it was of use or not."""
        self.rate = self.rate * FADES + (1 - FADES) * true


class Ahead:
    """The one of a stream."""

    def __init__(self, record: AheadRecord) -> None:
        self._record = record
        self._task: asyncio.Task[Draft | None] | None = None
        self._guessed: tuple[int, ...] = ()

    def begin(self, group: asyncio.TaskGroup, make: Callable[[], Awaitable[Draft | None]]) -> None:
        """Make one beside what else is done."""
        self.drop()

        async def work() -> Draft | None:
            return await make()

        self._task = group.create_task(work())

    def settle(self, *, all_right: bool, bonus: Sequence[int]) -> None:
        """The draft before was verified. Keep this one where all of that was right; `bonus` came behind it."""
        if self._task is None:
            return
        self._guessed = tuple(bonus)
        if not all_right or not bonus:
            self._record.came(False)
            self.drop()

    async def take(self, most: int) -> Draft | None:
        """What is left of it behind the bonus; None where there is none or it guessed that wrong."""
        if self._task is None:
            return None
        task, self._task = self._task, None
        draft = await task
        length = len(self._guessed)
        if draft is None or draft.ids[:length] != self._guessed or len(draft.ids) == length:
            self._record.came(False)
            return None
        self._record.came(True)
        return Draft(draft.ids[length:length + most], draft.drafter, draft.ascii)

    def drop(self) -> None:
        """It is of no use any more."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
