"""Injection beside a stream: begun and ended as the controller says, what came of its drafts counted and shown."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence

from fleet.runtimes.head_answers import count
from fleet.speculation.bench import Bench
from fleet.speculation.choice import Choice, Mode
from fleet.speculation.drafters import Context
from fleet.speculation.injection import Injector


class Beside:
    """Of one stream. `end` it before the stream's own end is told to anybody."""

    def __init__(self, bench: Bench, context: Context, group: asyncio.TaskGroup) -> None:
        self.drafted = self.accepted = 0       # tokens, as the head counts them
        self._bench, self._context, self._group = bench, context, group
        self._injector: Injector | None = None
        self._task: asyncio.Task[None] | None = None
        self._judged: deque[tuple[str, list[int], list[int]]] = deque()
        self._before = (0, 0)

    def follow(self, choice: Choice) -> None:
        """Inject as it says, or nothing."""
        now = self._injector
        if choice.mode is not Mode.INJECTION:
            self.end()
        elif now is None or (now.length, now.drafter) != (choice.draft_length, choice.drafter):
            self.end()
            bench = self._bench
            self._injector = Injector(bench.target.asker, bench.race, self._context, choice.draft_length,
                                      choice.drafter, bench.timeout, self._note)
            self._task = self._group.create_task(self._injector.run())

    def _note(self, drafter: str, drafted: Sequence[int], written: Sequence[int]) -> None:
        self._judged.append((drafter, list(drafted), list(written)))

    async def grew(self, timings: Mapping[str, object], *, known: bool) -> None:
        """The stream has written something; without `known` tokens nothing can be drafted for it."""
        self.drafted = count(timings.get("draft_n")) or self.drafted
        self.accepted = count(timings.get("draft_n_accepted")) or self.accepted
        if self._injector is None:
            return
        self._bench.injection_problem = self._injector.problem
        if not known:
            self.end()
        else:
            self._injector.grew()
        while self._judged:
            drafter, drafted, written = self._judged.popleft()
            right = next((at for at, (one, other) in enumerate(zip(drafted, written, strict=False)) if one != other),
                         min(len(drafted), len(written)))
            self._bench.race.judged(drafter, len(drafted), right)
            await self._bench.show(Mode.INJECTION, drafter, drafted, right, written[:right + 1])

    def counted(self) -> tuple[int, int]:
        """Drafted and accepted tokens since this was asked last."""
        before, self._before = self._before, (self.drafted, self.accepted)
        return self.drafted - before[0], self.accepted - before[1]

    def end(self) -> None:
        """Inject nothing more."""
        if self._task is not None:
            self._task.cancel()
        self._injector = self._task = None
