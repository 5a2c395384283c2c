"""Chooses how the next tokens are made: alone or with a draft, which way, how long. Pure; no clock of its own.

The best way that is *known* is used, by what `knowledge` says that each is worth. Ways that are not known are tried
when they may be better than that; what trials cost is paid from a purse of a small share of all time, so that the
whole is never much slower than what is known best. When nothing beats the target alone, speculation is off; it is
tried again after a while that doubles while the purse is not full (`trials`), since no plain stretch could show that
it would pay now.

No oscillation: another arm has to be better by a margin, and stays for some rounds. A change of the network, the
target or the drafter shows in the rounds of the arm in use (`arms`, `acceptance`); what was known of the other arms
then no longer counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from fleet.speculation.arms import Arm
from fleet.speculation.choice import Choice, Mode, Round
from fleet.speculation.costs import prompts_of
from fleet.speculation.figures import Figures
from fleet.speculation.knowledge import STRETCHES, Knowledge
from fleet.speculation.settings import DrafterKind
from fleet.speculation.trials import Trials

# (N, s) of strided rounds: few, and fixed.
SHAPES = ((1, 1), (2, 1), (4, 1), (6, 1), (8, 1), (4, 2), (8, 2), (8, 4), (12, 4), (16, 4))
INJECTED = (8, 16)             # N of injection
FIRST_STRETCH = 12             # tokens to know the target alone by
FIRST_DRAFT = 2                # tokens of the first draft that is tried
TASTE = 4                      # tokens of native or injected drafting to see what it is like
INJECTIONS = 3                 # drafts of the first stretch of injection: the stream writes the first one alone
PROBE = 6                      # tokens to know the target alone again, while speculation wins
STRETCH = 32                   # tokens between two questions while it is off
RENEW = 300                    # rounds after which the target alone is measured again
BETTER = 1.03                  # another arm has to be better by this
WINS = 1.03                    # a draft has to beat the target alone by this to be begun, and by less to go on
DWELL = 4                      # rounds that an arm is kept, unless it is much worse
MUCH_WORSE = 0.75
HOPELESS = 0.8                 # of what is had now: less is looked at with the shortest draft
TURN, TURNS = 100, 4           # rounds until another drafter has a turn, and of such a turn
LONG_AGO = 900.0               # seconds without a round after which nothing that was measured is trusted


def _size(arm: Arm) -> tuple[int, int]:
    return arm.draft_length, arm.stride


class Controller:
    """Steers one target. Ask `choose` before each round, tell `record` after it."""

    def __init__(self, modes: Collection[Mode], drafters: Collection[str], *, clock: Callable[[], float],
                 slots: int = 9, shapes: Sequence[tuple[int, int]] = SHAPES,
                 injected: Sequence[int] = INJECTED) -> None:
        """Begin with nothing known.

        Args:
            modes: what this target can be asked for. Without PLAIN (a head that drafts by itself) nothing is
                measured against and NATIVE is what speculation falls back to.
            drafters: names of those that can be asked; none = no STRIDED and no INJECTION.
            clock: seconds, of any beginning.
            slots: of the target: a strided round has N/s + 1 prompts.
            shapes: (N, s) that may be chosen.
            injected: N of injection that may be chosen. n-grams are not injected: the head has its own.
        """
        self._clock = clock
        self._rest = Arm(Mode.PLAIN if Mode.PLAIN in modes or Mode.NATIVE not in modes else Mode.NATIVE)
        self._measured_alone = self._rest.mode is Mode.PLAIN
        arms = [Arm(Mode.NATIVE)] if Mode.NATIVE in modes and self._measured_alone else []
        for drafter in drafters:
            if Mode.STRIDED in modes:
                arms += [Arm(Mode.STRIDED, length, stride, drafter) for length, stride in shapes
                         if prompts_of(length, stride) <= slots and length % stride == 0]
            if Mode.INJECTION in modes and drafter != DrafterKind.NGRAM:
                arms += [Arm(Mode.INJECTION, length, 1, drafter) for length in injected]
        self._known = Knowledge(arms, drafters, self._rest)
        self._figures = Figures(self._known, drafters, measured_alone=self._measured_alone)
        self._current = self._rest
        self._since = 0                                  # the round in which the current arm was begun
        self._trial: Arm | None = None
        self._trials = Trials()
        self._turn: Arm | None = None                    # another drafter's, and how many rounds of it are left
        self._turns, self._next_turn = 0, TURN
        self._reason = "Nothing is known of this target yet."
        self._told = clock()

    # ---- asking ------------------------------------------------------------------------------------------------

    def choose(self, context: int) -> Choice:
        """What to do next with `context` tokens in front of it."""
        known = self._known
        if self._clock() - self._told > LONG_AGO:
            self._everything_changed()
            self._told = self._clock()
        known.follow(context)
        self._trial = None
        if not known.arms:
            return self._said(self._rest, 0, "No way to speculate is available here.")
        if not known.alone(context):
            return self._said(self._rest, FIRST_STRETCH, "Measuring the target alone: what speculation has to beat.")
        if self._current != self._rest and self._measured_alone and self._due(context):
            self._trial = self._rest
            return self._said(self._rest, PROBE, "Measuring the target alone again: the speed-up is against that.")
        best, value = self._best(context)
        tried = self._worth_trying(context, best, value)
        if tried is not None:
            self._trial = tried
            return self._said(tried, self._taste(tried, context),
                              f"Trying {tried.name}: it may give {known.value(tried, context, hopeful=True):.1f} "
                              f"tokens/s; {value:.1f} is what is had now.")
        self._switch(best, value, context)
        if self._current == self._rest:
            waits = f"tried again after {self._trials.waits * STRETCH} tokens"
            return self._said(self._rest, STRETCH, self._figures.why_off(context, waits))
        said = self._said(self._current, STRETCH, self._figures.why_on(self._current, context))
        if self._current.mode in STRETCHES:
            return said
        return replace(said, ready_length=known.ready_length(self._current, context, value))

    def _said(self, arm: Arm, stretch: int, reason: str) -> Choice:
        self._reason = reason
        return Choice(arm.mode, arm.draft_length, arm.stride, arm.drafter, reason,
                      stretch if arm.mode in STRETCHES else 0)

    def _due(self, context: int) -> bool:
        plain = self._known.plain
        return not plain.measured(context) or self._known.number - plain.at > RENEW

    def _best(self, context: int) -> tuple[Arm, float]:
        """The best arm that is known, what is in use being given a little; and what it is worth."""
        known = self._known
        values = {self._rest: known.alone(context)}
        values |= {arm: known.value(arm, context) for arm in known.arms if known.known(arm)}
        needed = WINS if self._current == self._rest else 1.0
        best = max(values, key=lambda arm: values[arm] / (needed if arm != self._rest else 1.0)
                   * (BETTER if arm == self._current else 1.0))
        return best, values[best]

    # ---- trying ------------------------------------------------------------------------------------------------

    def _worth_trying(self, context: int, best: Arm, value: float) -> Arm | None:
        """An arm that is not known and may be better, if the purse has enough for it; None = use what is known."""
        known = self._known
        unknown = [arm for arm in known.arms if not known.known(arm)]
        if unknown:
            likely = max(unknown, key=lambda arm: known.value(arm, context, hopeful=True))
            hoped = known.value(likely, context, hopeful=True)
            if likely.mode is Mode.STRIDED and not known.tasted(likely):
                # What a round takes is a guess so far: a short one tells it, and costs little where that is wrong.
                likely = min((arm for arm in unknown if (arm.mode, arm.drafter) == (likely.mode, likely.drafter)
                              and arm.draft_length >= FIRST_DRAFT), key=_size, default=likely)
            if hoped > value * BETTER and self._affords(likely, context, value):
                return likely
        if best != self._rest:
            return self._another_drafter(best, context, value)
        alone = known.plain.seconds(context)
        if (looking := self._trials.goes_on(alone)) is not None:
            return looking
        if not self._trials.look_due(begins=known.written == 0):
            return None
        # Off for a while: some rounds of what looks best tell whether that is still so. Where it looks hopeless a
        # short draft tells as much and costs less.
        looked = max(known.arms, key=lambda arm: known.value(arm, context, hopeful=True))
        hopeless = known.value(looked, context, hopeful=True) < HOPELESS * value
        if hopeless and looked.mode is not Mode.NATIVE:
            looked = min((arm for arm in known.arms if (arm.mode, arm.drafter) == (looked.mode, looked.drafter)),
                         key=_size)
        return self._trials.look(looked, hopeless=hopeless)

    def _another_drafter(self, best: Arm, context: int, value: float) -> Arm | None:
        """Some rounds by another drafter now and then: it may have had bad luck, or be another one now."""
        known = self._known
        if known.number >= self._next_turn:
            self._next_turn = known.number + TURN
            others = [arm for arm in known.arms if arm.drafter != best.drafter
                      and (arm.mode, arm.draft_length, arm.stride) == (best.mode, best.draft_length, best.stride)]
            self._turn = max(others, key=lambda arm: known.value(arm, context, hopeful=True), default=None)
            self._turns = TURNS
        if self._turn is None or not self._turns or not self._affords(self._turn, context, value):
            return None
        self._turns -= 1
        return self._turn

    def _affords(self, arm: Arm, context: int, value: float) -> bool:
        if self._known.value(arm, context) > value * BETTER:       # it pays within this stream, the reading included
            return True
        loss = self._known.loss(arm, context, value, self._taste(arm, context))
        return self._trials.affords(loss, self._known.plain.seconds(context))

    def _taste(self, arm: Arm, context: int) -> int:
        """Tokens of a stretch of native or injected drafting that is tried: more each time."""
        if arm.mode not in STRETCHES:
            return 0
        known = self._known
        tokens = known.arms[arm].tokens(known.number)
        hopeless = tokens and known.value(arm, context, hopeful=True) < HOPELESS * known.alone(context)
        least = max(TASTE, INJECTIONS * arm.draft_length)
        return least if hopeless else max(least, 2 * tokens)

    def _switch(self, best: Arm, value: float, context: int) -> None:
        if best == self._current:
            return
        known, current = self._known, self._current
        now = known.alone(context) if current == self._rest else (
            known.value(current, context) if known.known(current) else 0.0)
        if known.number - self._since < DWELL and current != self._rest and now > MUCH_WORSE * value:
            return
        if best == self._rest:
            self._trials.switched_off()
        self._current, self._since = best, known.number

    # ---- telling -----------------------------------------------------------------------------------------------

    def record(self, round: Round) -> None:
        """Take note of a finished round."""
        seconds = round.verify_seconds + round.draft_seconds
        if not math.isfinite(seconds) or seconds <= 0:
            return
        known = self._known
        self._told = self._clock()
        self._trials.passed(seconds)
        self._figures.note(round)
        if self._trial is not None:
            reference = known.alone(round.context) if self._current == self._rest else self._best(round.context)[1]
            if reference:
                self._trials.cost(seconds - round.emitted / reference)
            if self._current == self._rest:
                self._trials.looked(known.plain.seconds(round.context))
            self._trial = None
        if round.mode in (Mode.PLAIN, self._rest.mode):
            self._trials.stretch()
        if known.note(Arm(round.mode, round.draft_length, round.stride, round.drafter), round):
            self._trials.at_once()

    def _everything_changed(self) -> None:
        self._known.forget()
        self._known.plain.stale()
        self._trials.at_once()

    def state(self) -> dict[str, Any]:
        """Figures for a person, ready for JSON: see `fleet.speculation.figures`."""
        return self._figures.state(self._current, self._reason)
