"""Several drafters at once: whose guess is taken, how long the others are waited for, and who is put aside.

A guess is worth (1 + accepted) / (seconds until it is there + seconds of a round): the tokens a second that it leads
to. What will be accepted is expected from the drafter's own record. Once the best guess at hand beats what those still
at work could bring, nobody is waited for; in any case only for their grace after the first guess, and for a deadline
in all. Who fails or hangs costs one deadline and is then left alone, twice as long after each failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fleet.speculation.drafters import Context, Drafter, DraftFailed, Guess
from fleet.speculation.settings import DrafterKind
from fleet.text import visible

FIRST_ASIDE, LONGEST_ASIDE = 1.0, 60.0       # seconds
FADES = 0.97                                 # of what a record weighs, with each draft
HOPE = (2.0, 1.0)                            # right and wrong tokens that a new drafter is credited with
PATIENCE = 8.0                               # times its usual time, after which a drafter counts as hung
MOST_IN_TIME = 64                            # tokens
SHORTEST_DEADLINE = 0.25                     # seconds


@dataclass(frozen=True, slots=True)
class Draft:
    """The guess that was taken."""

    ids: tuple[int, ...]
    drafter: str
    ascii: bool = False


@dataclass(slots=True)
class Runner:
    """A drafter and its record."""

    drafter: Drafter
    right: float = HOPE[0]
    wrong: float = HOPE[1]
    seconds: float = 0.0                     # of a draft, smoothed; 0 = never seen
    token_seconds: float = 0.0               # of one of its tokens
    drafts: int = 0
    wins: int = 0
    failures: int = 0                        # in a row
    aside_until: float = 0.0
    problem: str = ""

    @property
    def share(self) -> float:
        """How likely its next token is right, given that those before were."""
        return self.right / (self.right + self.wrong)

    def in_time(self, seconds: float) -> int:
        """Tokens that it drafts within so many seconds."""
        return int(min(MOST_IN_TIME, seconds / self.token_seconds)) if self.token_seconds > 0 else 0

    def expected(self, length: int) -> float:
        """Tokens of a draft of `length` that will be accepted: share + share^2 + ... + share^length."""
        share = self.share
        return length if share > 0.9999 else share * (1 - share ** length) / (1 - share)


@dataclass(slots=True)
class Race:
    """The drafters of one target. `clock` gives seconds."""

    runners: list[Runner]
    clock: Callable[[], float]
    deadline: float = 2.0
    grace: dict[DrafterKind, float] = field(default_factory=lambda: {
        DrafterKind.NGRAM: 0.3, DrafterKind.LLAMA_SERVER: 0.3, DrafterKind.OLLAMA: 1.0})

    def alive(self) -> list[Runner]:
        """Those that are not put aside."""
        now = self.clock()
        return [runner for runner in self.runners if runner.aside_until <= now]

    async def draft(self, context: Context, most: int, *, only: str = "", round_seconds: float = 0.05) -> Draft | None:
        """The best guess of up to `most` tokens, None where nobody has one.

        Args:
            only: the drafter that was chosen; the n-grams may stand in for it. "" = all of them race.
            round_seconds: what a round takes besides.
        """
        alive = self.alive()
        if only and any(runner.drafter.name == only for runner in alive):
            alive = [runner for runner in alive
                     if runner.drafter.name == only or runner.drafter.kind is DrafterKind.NGRAM]
        if not alive or most <= 0:
            return None
        heats: dict[asyncio.Task[Guess | None], Runner] = {}
        async with asyncio.TaskGroup() as group:
            begun = self.clock()
            for runner in alive:
                heats[group.create_task(self._run(runner, context, most))] = runner
            try:
                best = await self._judge(heats, begun, most, only, round_seconds)
            finally:
                for task in heats:
                    task.cancel()
        return best

    async def _judge(self, heats: dict[asyncio.Task[Guess | None], Runner], begun: float, most: int, only: str,
                     round_seconds: float) -> Draft | None:
        pending, first = set(heats), None
        best: Draft | None = None
        best_worth = 0.0
        while pending:
            now = self.clock()
            limit = begun + max(self._patience(heats[task]) for task in pending)
            named = any(heats[task].drafter.name == only for task in pending)
            if first is not None and not named:
                limit = min(limit, first + max(self.grace[heats[task].drafter.kind] for task in pending))
                hope = max(self._worth(heats[task], most, max(now - begun, heats[task].seconds), round_seconds)
                           for task in pending)
                if best_worth >= hope:
                    break
            if now >= limit:
                break
            done, pending = await asyncio.wait(pending, timeout=limit - now, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                guess, runner = task.result(), heats[task]
                if guess is None or not guess.ids:
                    continue
                first = first if first is not None else self.clock()
                worth = self._worth(runner, len(guess.ids), self.clock() - begun, round_seconds)
                if runner.drafter.name == only:
                    worth *= 1e6                           # it was chosen by who knows more
                if worth > best_worth or (worth == best_worth and runner.drafter.kind is DrafterKind.LLAMA_SERVER):
                    best, best_worth = Draft(guess.ids, runner.drafter.name, guess.ascii), worth
        for task in pending:
            runner = heats[task]
            if self.clock() - begun >= self._patience(runner):
                self._aside(runner, f"It gave no draft within {self._patience(runner):.2g} s.")
        return best

    async def _run(self, runner: Runner, context: Context, most: int) -> Guess | None:
        begun = self.clock()
        try:
            guess = await runner.drafter.draft(context, most)
        except DraftFailed as error:
            self._aside(runner, str(error))
            return None
        took = self.clock() - begun
        runner.seconds = took if not runner.drafts else 0.8 * runner.seconds + 0.2 * took
        if guess.ids:
            pace = took / len(guess.ids)
            runner.token_seconds = pace if not runner.token_seconds else 0.8 * runner.token_seconds + 0.2 * pace
        runner.drafts += 1
        runner.failures, runner.problem = 0, ""
        return guess

    def _patience(self, runner: Runner) -> float:
        """Seconds that it may take: its usual time several times over, and never more than the deadline."""
        if not runner.drafts:
            return self.deadline
        return min(self.deadline, max(SHORTEST_DEADLINE, PATIENCE * runner.seconds))

    def _worth(self, runner: Runner, length: int, seconds: float, round_seconds: float) -> float:
        return (1 + runner.expected(length)) / max(seconds + round_seconds, 1e-6)

    def _aside(self, runner: Runner, problem: str) -> None:
        runner.failures += 1
        runner.problem = problem
        runner.aside_until = self.clock() + min(LONGEST_ASIDE, FIRST_ASIDE * 2 ** min(runner.failures - 1, 8))

    def named(self, name: str) -> Runner:
        """One of them. Raises KeyError."""
        for runner in self.runners:
            if runner.drafter.name == name:
                return runner
        raise KeyError(name)

    def judged(self, drafter: str, drafted: int, accepted: int) -> None:
        """What became of a draft that was verified."""
        runner = self.named(drafter)
        runner.wins += 1
        runner.right = runner.right * FADES + accepted
        runner.wrong = runner.wrong * FADES + (1 if accepted < drafted else 0)

    def refused(self, drafter: str, problem: str) -> None:
        """A draft was of no use at all: put its drafter aside."""
        self._aside(self.named(drafter), problem)

    def names(self) -> Sequence[str]:
        """Of all of them."""
        return [runner.drafter.name for runner in self.runners]

    def state(self) -> list[dict[str, object]]:
        """As JSON."""
        now = self.clock()
        return [{"name": runner.drafter.name, "kind": str(runner.drafter.kind), "wins": runner.wins,
                 "drafts": runner.drafts, "acceptance": round(runner.share, 3), "seconds": round(runner.seconds, 4),
                 "state": "aside" if runner.aside_until > now else "ready" if runner.drafts else "new",
                 "problem": visible(runner.problem, limit=300)} for runner in self.runners]

    def close(self) -> None:
        """End the connections of all."""
        for runner in self.runners:
            runner.drafter.close()
