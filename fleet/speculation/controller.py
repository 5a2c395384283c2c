"""Chooses how the next tokens are made: alone or with a draft, which way, how long. Pure; no clock of its own.

Every arm (a mode with N, s and a drafter) is worth the tokens a second that it is expected to give:

    value = E(N, s) / (T(N, s) + waiting for the draft)         and for a stream that goes on for R tokens, whose slots
    value' = R / (R / value + seconds of reading the context)   have first to read it

E by `acceptance`, T by the arm's own last rounds and for arms that were not tried by `costs`, plain and native by what
their stretches gave. The best arm that is *known* is used. Arms that are not known are tried when they may be better
than that; what trials cost is paid from a purse of a small share of all time, so that the whole is never much slower
than what is known best. When nothing beats the target alone, speculation is off; it is tried again after a while that
doubles while the purse is not full (`trials`), since no plain stretch could show that it would pay now.

No oscillation: another arm has to be better by a margin, and stays for some rounds. A change of the network, the
target or the drafter shows in the rounds of the arm in use (`arms`, `acceptance`); what was known of the other arms
then no longer counts.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any

from fleet.speculation.acceptance import Acceptance
from fleet.speculation.arms import KNOWN, Arm, ArmRecord, PlainSpeed
from fleet.speculation.choice import Choice, Mode, Round
from fleet.speculation.costs import RoundCost, counts, prompts_of
from fleet.speculation.trials import Trials

# (N, s) of strided rounds: few, and fixed.
SHAPES = ((1, 1), (2, 1), (4, 1), (6, 1), (8, 1), (4, 2), (8, 2), (8, 4), (12, 4), (16, 4))
INJECTED = (8, 16)             # N of injection
FIRST_STRETCH = 12             # tokens to know the target alone by
TASTE = 4                      # tokens of native drafting to see what it is like
PROBE = 6                      # tokens to know it again, while speculation wins
STRETCH = 32                   # tokens between two questions while it is off
SELDOM = 40                    # rounds between two of those at least, whatever seems to have changed
RENEW = 300                    # rounds after which the target alone is measured again
BETTER = 1.03                  # another arm has to be better by this
WINS = 1.03                    # a draft has to beat the target alone by this to be begun, and by less to go on
DWELL = 4                      # rounds that an arm is kept, unless it is much worse
MUCH_WORSE = 0.75
HOPELESS = 0.8                 # of what is had now: less is looked at with the shortest draft
KNOWN_TOKENS = 48              # of native drafting, after which its speed is known
HOPE_A_TOKEN = 2.0             # what it may be better than it looked over one token; less by the root of their number
NATIVE_DRAFT = 4               # tokens that a head drafts, as far as is known before it was tried
NATIVE_CHANCE, NATIVE_HOPE = 0.7, 0.9          # of a token of its draft
HOPED_DRAFT = 0.15             # plain tokens' time that a drafted token is thought to take before one was
LOOKED_AT = 64                 # rounds that the shown figures are of
LONG_AGO = 900.0               # seconds without a round after which nothing that was measured is trusted
STREAM = 200.0                 # tokens that a stream is thought to have, before any was seen
SHORTEST_REST = 32.0


class Controller:
    """Steers one target. Ask `choose` before each round, tell `record` after it."""

    def __init__(self, modes: Collection[Mode], drafters: Collection[str], *, clock: Callable[[], float],
                 slots: int = 9, shapes: Sequence[tuple[int, int]] = SHAPES) -> None:
        """Begin with nothing known.

        Args:
            modes: what this target can be asked for. Without PLAIN (a head that drafts by itself) nothing is
                measured against and NATIVE is what speculation falls back to.
            drafters: names of those that can be asked; none = no STRIDED and no INJECTION.
            clock: seconds, of any beginning.
            slots: of the target: a strided round has N/s + 1 prompts.
            shapes: (N, s) that may be chosen.
        """
        self._clock = clock
        self._rest = Arm(Mode.PLAIN if Mode.PLAIN in modes or Mode.NATIVE not in modes else Mode.NATIVE)
        self._measured_alone = self._rest.mode is Mode.PLAIN
        arms = [Arm(Mode.NATIVE)] if Mode.NATIVE in modes and self._measured_alone else []
        for drafter in drafters:
            if Mode.STRIDED in modes:
                arms += [Arm(Mode.STRIDED, length, stride, drafter) for length, stride in shapes
                         if prompts_of(length, stride) <= slots and length % stride == 0]
            if Mode.INJECTION in modes:
                arms += [Arm(Mode.INJECTION, length, 1, drafter) for length in INJECTED]
        self._arms: dict[Arm, ArmRecord] = {arm: ArmRecord() for arm in arms}
        self._acceptance = {drafter: Acceptance() for drafter in drafters}
        self._draft_pace: dict[str, float] = {}          # seconds waited for a drafted token
        self._cost = RoundCost()
        self._injected = RoundCost()
        self._plain = PlainSpeed()
        self._current = self._rest
        self._since = 0                                  # the round in which the current arm was begun
        self._number = 0                                 # rounds so far
        self._trial: Arm | None = None
        self._trials = Trials()
        self._reason = "Nothing is known of this target yet."
        self._shown: deque[Round] = deque(maxlen=LOOKED_AT)
        self._wins: dict[str, int] = dict.fromkeys(drafters, 0)
        self._native = (0.0, 0.0)                        # drafted, accepted; fading
        self._told = clock()
        self._at = -1                                    # where the stream is: context after the last round
        self._written, self._stream = 0, STREAM          # tokens of this stream, and of streams on average
        self._slots_read = 1                             # slots that have read this stream
        self._before = (1.0, 0.0)                        # emitted and accepted of the strided round before

    # ---- asking ------------------------------------------------------------------------------------------------

    def choose(self, context: int) -> Choice:
        """What to do next with `context` tokens in front of it."""
        if self._clock() - self._told > LONG_AGO:
            self._everything_changed()
            self._told = self._clock()
        self._follow(context)
        self._trial = None
        if not self._arms:
            return self._said(self._rest, 0, "No way to speculate is available here.")
        alone = self._alone(context)
        if not alone:
            return self._said(self._rest, FIRST_STRETCH, "Measuring the target alone: what speculation has to beat.")
        if self._current != self._rest and self._measured_alone and self._due(context):
            self._trial = self._rest
            return self._said(self._rest, PROBE, "Measuring the target alone again: the speed-up is against that.")
        best, value = self._best(context)
        tried = self._worth_trying(context, best, value)
        if tried is not None:
            self._trial = tried
            return self._said(tried, self._taste(tried, context) if tried.mode is Mode.NATIVE else tried.draft_length,
                              f"Trying {tried.name}: it may give {self._value(tried, context, hopeful=True):.1f} "
                              f"tokens/s; {value:.1f} is what is had now.")
        self._switch(best, value, context)
        if self._current == self._rest:
            return self._said(self._rest, STRETCH, self._why_off(context))
        return self._said(self._current, STRETCH if self._current.mode is Mode.NATIVE else self._current.draft_length,
                          self._why_on(context))

    def _said(self, arm: Arm, length: int, reason: str) -> Choice:
        self._reason = reason
        return Choice(arm.mode, length, arm.stride, arm.drafter, reason)

    def _due(self, context: int) -> bool:
        return not self._plain.measured(context) or self._number - self._plain.at > RENEW

    def _follow(self, context: int) -> None:
        """Another stream has other slots to read it."""
        if self._at >= 0 and context < self._at:
            self._slots_read = 1
            if self._written:
                self._stream = 0.8 * self._stream + 0.2 * self._written
            self._written = 0
        self._at = context

    def _alone(self, context: int) -> float:
        """Tokens a second of the target alone, or of what stands in for it; 0 = not known."""
        seconds = self._plain.seconds(context)
        return 1 / seconds if seconds > 0 else 0.0

    def _known(self, arm: Arm) -> bool:
        if arm.mode is Mode.NATIVE:
            return self._arms[arm].tokens(self._number) >= KNOWN_TOKENS
        return self._arms[arm].rounds(self._number) >= KNOWN

    def _best(self, context: int) -> tuple[Arm, float]:
        """The best arm that is known, what is in use being given a little; and what it is worth."""
        values = {self._rest: self._alone(context)}
        values |= {arm: self._value(arm, context) for arm in self._arms if self._known(arm)}
        needed = WINS if self._current == self._rest else 1.0
        best = max(values, key=lambda arm: values[arm] / (needed if arm != self._rest else 1.0)
                   * (BETTER if arm == self._current else 1.0))
        return best, values[best]

    def _value(self, arm: Arm, context: int, *, hopeful: bool = False) -> float:
        """Tokens a second that an arm is expected to give."""
        alone = self._plain.seconds(context)
        record = self._arms[arm]
        rounds = record.rounds(self._number)
        if arm.mode is Mode.NATIVE:
            if not rounds:
                return self._native_guess(alone, NATIVE_HOPE if hopeful else NATIVE_CHANCE)
            hope = HOPE_A_TOKEN / math.sqrt(record.tokens(self._number)) if hopeful else 0.0
            return record.tokens_per_second() * (1 + hope)
        if arm.mode is Mode.INJECTION and rounds >= KNOWN:
            return record.tokens_per_second()
        emitted = self._acceptance[arm.drafter].emitted(arm.draft_length, arm.stride, hopeful=hopeful)
        verify, draft = self._modelled(arm, alone, emitted)
        if rounds:
            seen_verify, seen_draft = record.seconds()
            share = rounds / (rounds + 1)
            verify, draft = (seen_verify * share + verify * (1 - share), seen_draft * share + draft * (1 - share))
        value = emitted / max(1e-9, verify + draft)
        left = max(SHORTEST_REST, self._stream - self._written)
        return left / (left / value + self._entry_seconds(arm, context, alone))

    def _native_guess(self, alone: float, chance: float) -> float:
        """Native drafting before it was tried: one pass verifies it, and nothing crosses HTTP."""
        draft = min(self._draft_pace.values(), default=HOPED_DRAFT * alone)
        _, once, token, row = self._cost.unknowns(alone)
        seconds = once + (NATIVE_DRAFT + 1) * (token + row) + NATIVE_DRAFT * draft
        return sum(chance**k for k in range(NATIVE_DRAFT + 1)) / seconds

    def _modelled(self, arm: Arm, alone: float, emitted: float) -> tuple[float, float]:
        """Seconds of verification and of waiting for the draft, as the model has them."""
        accepted = max(0.0, min(float(arm.draft_length), emitted - arm.stride))
        draft = self._draft_pace.get(arm.drafter, HOPED_DRAFT * alone) * arm.draft_length
        if arm.mode is Mode.STRIDED:
            return self._cost.predict(counts(arm.draft_length, arm.stride, emitted, accepted), alone), draft
        return self._injected.predict(_injection_counts(arm.draft_length), alone), draft

    def _entry_seconds(self, arm: Arm, context: int, alone: float) -> float:
        if arm.mode is not Mode.STRIDED:
            return 0.0
        unread = self._unread(arm.draft_length, arm.stride, context)
        return unread * self._cost.unknowns(alone)[2] if unread else 0.0

    def _unread(self, draft_length: int, stride: int, context: int) -> int:
        """Tokens of the context that the slots of a strided round have not read; the first one has them all."""
        new = max(1, prompts_of(draft_length, stride)) - max(1, self._slots_read)
        return max(0, new) * context

    # ---- trying ------------------------------------------------------------------------------------------------

    def _worth_trying(self, context: int, best: Arm, value: float) -> Arm | None:
        """An arm that is not known and may be better, if the purse has enough for it; None = use what is known."""
        unknown = [arm for arm in self._arms if not self._known(arm)]
        if unknown:
            likely = max(unknown, key=lambda arm: self._value(arm, context, hopeful=True))
            hoped = self._value(likely, context, hopeful=True)
            if hoped > value * BETTER and self._affords(likely, context, value):
                return likely
        if best != self._rest:
            return None
        alone = self._plain.seconds(context)
        if (looking := self._trials.goes_on(alone)) is not None:
            return looking
        if not self._trials.look_due(begins=self._written == 0):
            return None
        # Off for a while: some rounds of what looks best tell whether that is still so. Where it looks hopeless a
        # short draft tells as much and costs less.
        looked = max(self._arms, key=lambda arm: self._value(arm, context, hopeful=True))
        hopeless = self._value(looked, context, hopeful=True) < HOPELESS * value
        if hopeless and looked.mode is not Mode.NATIVE:
            looked = min((arm for arm in self._arms if (arm.mode, arm.drafter) == (looked.mode, looked.drafter)),
                         key=lambda arm: (arm.draft_length, arm.stride))
        return self._trials.look(looked, hopeless=hopeless)

    def _affords(self, arm: Arm, context: int, value: float) -> bool:
        alone = self._plain.seconds(context)
        if self._value(arm, context) > value * BETTER:       # it pays within this stream, the reading included
            return True
        if arm.mode is Mode.NATIVE:
            loss = self._taste(arm, context) * max(0.0, 1 / self._value(arm, context) - 1 / value)
        else:
            emitted = self._acceptance[arm.drafter].emitted(arm.draft_length, arm.stride)
            loss = max(0.0, sum(self._modelled(arm, alone, emitted)) + self._entry_seconds(arm, context, alone)
                       - emitted / value)
        return self._trials.affords(loss, alone)

    def _taste(self, arm: Arm, context: int) -> int:
        """Tokens of a stretch of native drafting that is tried: more each time."""
        tokens = self._arms[arm].tokens(self._number)
        hopeless = tokens and self._value(arm, context, hopeful=True) < HOPELESS * self._alone(context)
        return TASTE if hopeless else max(TASTE, 2 * tokens)

    def _switch(self, best: Arm, value: float, context: int) -> None:
        if best == self._current:
            return
        now = self._alone(context) if self._current == self._rest else (
            self._value(self._current, context) if self._known(self._current) else 0.0)
        if self._number - self._since < DWELL and self._current != self._rest and now > MUCH_WORSE * value:
            return
        if best == self._rest:
            self._trials.switched_off()
        self._current, self._since = best, self._number

    # ---- telling -----------------------------------------------------------------------------------------------

    def record(self, round: Round) -> None:
        """Take note of a finished round."""
        seconds = round.verify_seconds + round.draft_seconds
        if not math.isfinite(seconds) or seconds <= 0:
            return
        self._told = self._clock()
        self._number += 1
        self._trials.passed(seconds)
        self._shown.append(round)
        self._written += max(0, round.emitted)
        self._at = round.context + max(0, round.emitted)
        if round.read_tokens > 0 and round.read_seconds > 0:
            self._cost.read(round.read_tokens, round.read_seconds)
            self._injected.read(round.read_tokens, round.read_seconds)
        alone = self._plain.seconds(round.context)
        arm = Arm(round.mode, round.draft_length, round.stride, round.drafter)
        if self._trial is not None:
            reference = self._alone(round.context) if self._current == self._rest else self._best(round.context)[1]
            if reference:
                self._trials.cost(seconds - round.emitted / reference)
            if self._current == self._rest:
                self._trials.looked(alone)
            self._trial = None
        if round.mode in (Mode.PLAIN, self._rest.mode):
            self._stretch(round)
        elif round.mode is Mode.NATIVE:
            self._note_native(round)
            self._timed(Arm(Mode.NATIVE), round)
        else:
            self._speculated(arm, round, alone)

    def _stretch(self, round_: Round) -> None:
        self._trials.stretch()
        self._note_native(round_)
        if self._plain.observe(round_.context, round_.emitted, round_.verify_seconds, self._number):
            self._everything_changed(but_plain=True)

    def _note_native(self, round_: Round) -> None:
        drafted, accepted = self._native
        self._native = (drafted * 0.9 + round_.drafted, accepted * 0.9 + round_.accepted)

    def _speculated(self, arm: Arm, round_: Round, alone: float) -> None:
        drafter = self._acceptance.setdefault(round_.drafter, Acceptance())
        if drafter.observe(round_.draft_length, round_.accepted):
            self._trials.at_once()
        self._wins[round_.drafter] = self._wins.get(round_.drafter, 0) + (round_.drafted > 0)
        if round_.draft_length > 0:
            pace = round_.draft_seconds / round_.draft_length
            self._draft_pace[round_.drafter] = 0.7 * self._draft_pace.get(round_.drafter, pace) + 0.3 * pace
        if arm.mode is Mode.INJECTION:
            self._injected.observe(_injection_counts(round_.drafted), round_.verify_seconds)
            self._timed(arm, round_)
            return
        unread = self._unread(round_.drafted, round_.stride, round_.context)
        one, passes, tokens, rows = counts(round_.drafted, round_.stride, *self._before)
        self._cost.observe((one, passes, tokens + unread, rows), round_.verify_seconds)
        self._before = (float(round_.emitted), float(round_.accepted))
        self._slots_read = max(self._slots_read, prompts_of(round_.drafted, round_.stride))
        if unread <= round_.draft_length * 2:      # else its time is that of the reading
            self._timed(arm, round_)

    def _timed(self, arm: Arm, round_: Round) -> None:
        record = self._arms.setdefault(arm, ArmRecord())
        if record.observe(round_, self._number):
            for other, known in self._arms.items():
                if other != arm:
                    known.forget()
            self._cost.forget(0.1)
            if self._number - self._plain.at > SELDOM:
                self._plain.stale()

    def _everything_changed(self, *, but_plain: bool = False) -> None:
        for record in self._arms.values():
            record.forget()
        self._cost.forget(0.1)
        self._trials.at_once()
        if not but_plain:
            self._plain.stale()

    # ---- showing -----------------------------------------------------------------------------------------------

    def _why_on(self, context: int) -> str:
        arm, alone = self._current, self._alone(context)
        record = self._acceptance.get(arm.drafter)
        right = f"; {record.rate:.0%} of its tokens are right" if record is not None else ""
        return (f"{arm.name[0].upper()}{arm.name[1:]}: about {self._value(arm, context):.1f} tokens/s, {alone:.1f} "
                f"alone{right}.")

    def _why_off(self, context: int) -> str:
        alone = self._alone(context)
        best = max(self._arms, key=lambda arm: self._value(arm, context))
        after = f"tried again after {self._trials.waits * STRETCH} tokens"
        return (f"Off: the target alone gives {alone:.1f} tokens/s, and the best of the other ways, {best.name}, is "
                f"thought to give {self._value(best, context):.1f}; {after}.")

    def state(self) -> dict[str, Any]:
        """Figures for a person, ready for JSON.

        `speed_up` is tokens a second of the last rounds, trials and all, over `plain_tokens_per_second`, the measured
        speed of the same target alone; both are None until they were measured.
        """
        context = max(0, self._at)
        alone = self._alone(context) if self._measured_alone else 0.0
        seconds = sum(round_.verify_seconds + round_.draft_seconds for round_ in self._shown)
        speed = sum(round_.emitted for round_ in self._shown) / seconds if seconds else 0.0
        drafted = [round_ for round_ in self._shown if round_.mode not in (Mode.PLAIN, self._rest.mode)]
        arm = self._current
        record = self._acceptance.get(arm.drafter) or next(iter(self._acceptance.values()), None)
        tokens = sum(round_.drafted for round_ in drafted)
        native = self._native[1] / self._native[0] if self._native[0] else None
        accepted = sum(round_.accepted for round_ in drafted) / tokens if tokens else native
        return {
            "mode": arm.mode.value, "reason": self._reason, "draft_length": arm.draft_length, "stride": arm.stride,
            "drafter": arm.drafter, "acceptance": accepted,
            "by_position": record.by_position(max(4, arm.draft_length)) if record and record.trials else [],
            "plain_tokens_per_second": alone or None, "tokens_per_second": speed or None,
            "speed_up": speed / alone if alone and speed else None, "rounds": self._number,
            "tokens_a_round": sum(r.emitted for r in drafted) / len(drafted) if drafted else None,
            "draft_seconds": sum(r.draft_seconds for r in drafted) / len(drafted) if drafted else None,
            "verify_seconds": sum(r.verify_seconds for r in drafted) / len(drafted) if drafted else None,
            "drafters": {name: {"acceptance": known.rate if known.trials else None, "rounds": self._wins.get(name, 0)}
                         for name, known in self._acceptance.items()},
            "arms": [{"name": arm.name, "mode": arm.mode.value, "tokens_per_second": self._value(arm, context),
                      "rounds": self._arms[arm].rounds(self._number)} for arm in self._arms] if self._alone(context)
            else [],
        }


def _injection_counts(drafted: int) -> tuple[float, float, float, float]:
    """A side request reads the draft, and a pass of the stream verifies it."""
    return (1.0, 2.0, 2.0 * drafted + 1, drafted + 2.0)
