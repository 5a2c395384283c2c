"""Questions that only a person can answer, and the way an answer goes back to who asked.

An answer (it may be a password) is handed to the one who waits for it and kept nowhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count

from fleet.events import Event, QuestionAsked, QuestionSettled
from fleet.model import Question, QuestionKind


class QuestionDesk:
    """Shows questions through events; `answer` settles one. With nobody there, every answer is None at once."""

    def __init__(self, emit: Callable[[Event], None], clock: Callable[[], float], *, somebody_there: bool) -> None:
        self._emit = emit
        self._clock = clock
        self._somebody_there = somebody_there
        self._numbers = count(1)
        self._waiting: dict[int, asyncio.Future[str | None]] = {}

    async def ask(self, kind: QuestionKind, node: str, text: str, detail: str) -> str | None:
        """Wait for a person's answer; None = no. Withdrawn when who asks is cancelled."""
        if not self._somebody_there:
            return None
        question = Question(next(self._numbers), kind, node, text, detail)
        future = asyncio.get_running_loop().create_future()
        self._waiting[question.id] = future
        self._emit(QuestionAsked(self._clock(), question))
        try:
            return await future
        finally:
            del self._waiting[question.id]
            self._emit(QuestionSettled(self._clock(), question.id))

    def answer(self, number: int, answer: str | None) -> None:
        """Give the answer; one that came too late is dropped."""
        future = self._waiting.get(number)
        if future is not None and not future.done():
            future.set_result(answer)
