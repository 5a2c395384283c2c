"""What one target's rounds have told: what each way to go on is worth, in tokens a second. Pure.

A strided arm with N, s and a drafter is worth

    value = E(N, s) / (T(N, s) + waiting for the draft)         and for a stream that goes on for R tokens, whose slots
    value' = R / (R / value + seconds of reading the context)   have first to read it

E by `acceptance`, T by the arm's own last rounds and for arms that were not tried by `costs`. Plain, native and
injected stretches are worth what they gave. A draft that was made beside the verification before costs no waiting, so
it may be longer: N' is then the length with the most of

    E(N') - g * (T(N') - P(N' + s) * w)        g = tokens a second now, w = the waiting that the next round saves again
"""

from __future__ import annotations

import math
from collections.abc import Collection

from fleet.speculation.acceptance import Acceptance
from fleet.speculation.arms import KNOWN, Arm, ArmRecord, PlainSpeed
from fleet.speculation.choice import Mode, Round
from fleet.speculation.costs import FEWEST_READ, RoundCost, counts, prompts_of, unread_tokens

KNOWN_TOKENS = 48              # of native or injected drafting, after which its speed is known
HOPE_A_TOKEN = 2.0             # what it may be better than it looked over one token; less by the root of their number
NATIVE_DRAFT = 4               # tokens that a head drafts, as far as is known before it was tried
NATIVE_CHANCE, NATIVE_HOPE = 0.7, 0.9          # of a token of its draft
HOPED_DRAFT = 0.15             # plain tokens' time that a drafted token is thought to take before one was
INJECTED_FLOOR = 0.95          # of the target alone: an injected stream goes on whatever is injected
STREAM = 200.0                 # tokens that a stream is thought to have, before any was seen
SHORTEST_REST = 32.0
SELDOM = 40                    # rounds between two measurements of the target alone, whatever seems to have changed
READ_AT_ONCE = 64              # tokens that a pass is thought to read in the time of one, before any were read
READS = 32                     # tokens of a round's slots that tell what reading costs
AS_USUAL, MUCH_MORE = 1.15, 1.4    # of its arm's time: the tokens of such a round cost nothing, or too much
STRETCHES = (Mode.PLAIN, Mode.NATIVE, Mode.INJECTION)      # modes that are judged by tokens over time alone


class Knowledge:
    """Of one target and its drafters. `number` counts the rounds."""

    def __init__(self, arms: Collection[Arm], drafters: Collection[str], rest: Arm) -> None:
        """Begin with nothing known.

        Args:
            arms: that can be chosen, besides `rest`.
            rest: what the target does when nothing is drafted for it.
        """
        self.rest = rest
        self.arms: dict[Arm, ArmRecord] = {arm: ArmRecord() for arm in arms}
        self.acceptance = {drafter: Acceptance() for drafter in drafters}
        self.plain = PlainSpeed()
        self.number = 0
        self.written = 0                                 # tokens of this stream
        self.at = -1                                     # where the stream is: context after the last round
        self._draft_pace: dict[str, float] = {}          # seconds waited for a drafted token
        self._cost = RoundCost()
        self._read = (0, 0.0)                            # tokens that were read at once last, and seconds
        self._free = 0.0                                 # tokens that a round was seen to read for nothing
        self._native = (0.0, 0.0)                        # drafted, accepted; fading
        self._stream = STREAM                            # tokens of a stream, on average
        self._slots: list[int] = []                      # tokens of this stream that each of its slots has read
        self._before = (1.0, 0.0)                        # emitted and accepted of the strided round before

    # ---- what is worth what ------------------------------------------------------------------------------------

    def follow(self, context: int) -> None:
        """The next round has so many tokens in front of it. Another stream has other slots to read it."""
        if self.at >= 0 and context < self.at:
            self._slots.clear()
            if self.written:
                self._stream = 0.8 * self._stream + 0.2 * self.written
            self.written = 0
        self.at = context

    def alone(self, context: int) -> float:
        """Tokens a second of the target alone, or of what stands in for it; 0 = not known."""
        seconds = self.plain.seconds(context)
        return 1 / seconds if seconds > 0 else 0.0

    def known(self, arm: Arm) -> bool:
        """Its own rounds tell what it is worth."""
        if arm.mode in STRETCHES:
            return self.arms[arm].tokens(self.number) >= KNOWN_TOKENS
        return self.arms[arm].rounds(self.number) >= KNOWN

    def tasted(self, arm: Arm) -> bool:
        """Something is known of rounds, and of its drafter."""
        return self._cost.rounds > 0 and arm.drafter in self._draft_pace

    def value(self, arm: Arm, context: int, *, hopeful: bool = False) -> float:
        """Tokens a second that an arm is expected to give; `hopeful`: that it may give, by how little is known."""
        alone = self.plain.seconds(context)
        record = self.arms[arm]
        rounds = record.rounds(self.number)
        if arm.mode in STRETCHES:
            if not rounds:
                return self._guess(arm, alone, hopeful=hopeful)
            hope = HOPE_A_TOKEN / math.sqrt(record.tokens(self.number)) if hopeful else 0.0
            return record.tokens_per_second() * (1 + hope)
        emitted = self._emitted(arm, hopeful=hopeful)
        verify, draft = self._modelled(arm, alone, emitted)
        if rounds:
            seen_verify, seen_draft = record.seconds()
            share = rounds / (rounds + 1)
            verify, draft = (seen_verify * share + verify * (1 - share), seen_draft * share + draft * (1 - share))
        value = emitted / max(1e-9, verify + draft)
        left = max(SHORTEST_REST, self._stream - self.written)
        return left / (left / value + self._entry_seconds(arm, context, alone))

    def loss(self, arm: Arm, context: int, value: float, tokens: int) -> float:
        """Seconds that a trial of it is expected to cost, where `value` tokens a second are had without it.

        Args:
            tokens: of the trial, where it is one of a stretch.
        """
        if arm.mode in STRETCHES:
            return tokens * max(0.0, 1 / self.value(arm, context) - 1 / value)
        alone = self.plain.seconds(context)
        emitted = self.acceptance[arm.drafter].emitted(arm.draft_length, arm.stride)
        return max(0.0, sum(self._modelled(arm, alone, emitted)) + self._entry_seconds(arm, context, alone)
                   - emitted / value)

    def ready_length(self, arm: Arm, context: int, value: float) -> int:
        """N' of a draft that is there without waiting, in the place of the arm's N."""
        if arm.mode is not Mode.STRIDED or arm.drafter not in self.acceptance:
            return arm.draft_length
        alone, record = self.plain.seconds(context), self.acceptance[arm.drafter]
        waiting = self._draft_pace.get(arm.drafter, 0.0) * arm.draft_length

        def worth(length: int) -> float:
            emitted = record.emitted(length, arm.stride)
            seconds = self._verified(length, arm.stride, alone, emitted)
            return emitted - value * (seconds - record.all_right(length + arm.stride) * waiting)

        lengths = {other.draft_length for other in self.arms
                   if (other.mode, other.stride, other.drafter) == (arm.mode, arm.stride, arm.drafter)}
        fitting = [length for length in lengths if length > arm.draft_length and self._tokens(
            length, arm.stride, context) <= self._free]
        return max([arm.draft_length, *fitting], key=worth)

    def _emitted(self, arm: Arm, *, hopeful: bool) -> float:
        """Tokens of a round, the longer drafts that were ready among them as often as they were lately."""
        record = self.acceptance[arm.drafter]
        lengths = [max(arm.draft_length, drafted) for drafted in self.arms[arm].drafted(self.number)]
        lengths = lengths or [arm.draft_length]
        return sum(record.emitted(length, arm.stride, hopeful=hopeful) * lengths.count(length)
                   for length in set(lengths)) / len(lengths)

    def _guess(self, arm: Arm, alone: float, *, hopeful: bool) -> float:
        """Native and injected drafting before they were tried."""
        _, once, token, row = self._cost.unknowns(alone)
        if arm.mode is Mode.INJECTION:
            # A side request reads the draft beside a pass of the stream, and the next pass verifies it.
            length = arm.draft_length
            emitted = self.acceptance[arm.drafter].emitted(length, 1, hopeful=hopeful)
            seconds = 2 * once + 2 * length * token + (length + 2) * row + length * self._draft_pace.get(
                arm.drafter, HOPED_DRAFT * alone)
            return max(INJECTED_FLOOR / alone, emitted / seconds)
        # One pass verifies it, and nothing crosses HTTP.
        chance = NATIVE_HOPE if hopeful else NATIVE_CHANCE
        draft = min(self._draft_pace.values(), default=HOPED_DRAFT * alone)
        seconds = once + (NATIVE_DRAFT + 1) * (token + row) + NATIVE_DRAFT * draft
        return sum(chance**k for k in range(NATIVE_DRAFT + 1)) / seconds

    def _modelled(self, arm: Arm, alone: float, emitted: float) -> tuple[float, float]:
        """Seconds of verification and of waiting for the draft, as the model has them."""
        draft = self._draft_pace.get(arm.drafter, HOPED_DRAFT * alone) * arm.draft_length
        return self._verified(arm.draft_length, arm.stride, alone, emitted), draft

    def _verified(self, length: int, stride: int, alone: float, emitted: float) -> float:
        accepted = max(0.0, min(float(length), emitted - stride))
        return self._cost.predict(counts(length, stride, emitted, accepted), alone)

    def _entry_seconds(self, arm: Arm, context: int, alone: float) -> float:
        unread = self._unread(arm.draft_length, arm.stride, context)
        if not unread:
            return 0.0
        tokens, seconds = self._read
        pace = max(0.0, seconds - alone) / tokens if tokens else alone / READ_AT_ONCE
        return unread * max(self._cost.unknowns(alone)[2], pace)

    def _tokens(self, draft_length: int, stride: int, context: int) -> float:
        """Tokens that the next round would evaluate."""
        return counts(draft_length, stride, *self._before)[2] + self._unread(draft_length, stride, context)

    def _unread(self, draft_length: int, stride: int, context: int) -> int:
        return unread_tokens(prompts_of(draft_length, stride), context, self._before[0], self._slots)

    # ---- what is learned ---------------------------------------------------------------------------------------

    def note(self, arm: Arm, round_: Round) -> bool:
        """Take note of a finished round of an arm.

        Returns:
            Whether something has changed so much that what was off may pay now.
        """
        self.number += 1
        self.written += max(0, round_.emitted)
        self.at = round_.context + max(0, round_.emitted)
        if round_.read_tokens > 0 and round_.read_seconds > 0:
            self._cost.read(round_.read_tokens, round_.read_seconds)
            if round_.read_tokens >= FEWEST_READ:
                self._read = (round_.read_tokens, round_.read_seconds)
        if round_.mode in STRETCHES:
            self._note_native(round_)
        if round_.mode in (Mode.PLAIN, self.rest.mode):
            changed = self.plain.observe(round_.context, round_.emitted, round_.verify_seconds, self.number)
            if changed:
                self.forget()
            return changed
        if round_.mode in STRETCHES:
            self._timed(arm, round_)
            return False
        return self._strided(arm, round_)

    def _note_native(self, round_: Round) -> None:
        drafted, accepted = self._native
        self._native = (drafted * 0.9 + round_.drafted, accepted * 0.9 + round_.accepted)

    def _strided(self, arm: Arm, round_: Round) -> bool:
        drafter = self.acceptance.setdefault(round_.drafter, Acceptance())
        changed = drafter.observe(max(round_.draft_length, round_.drafted), round_.accepted)
        if round_.draft_length > 0:
            pace = round_.draft_seconds / max(round_.draft_length, round_.drafted)
            self._draft_pace[round_.drafter] = 0.7 * self._draft_pace.get(round_.drafter, pace) + 0.3 * pace
        unread = self._unread(round_.drafted, round_.stride, round_.context)
        one, passes, tokens, rows = counts(round_.drafted, round_.stride, *self._before)
        self._cost.observe((one, passes, tokens + unread, rows), round_.verify_seconds)
        record = self.arms.get(arm)
        usual = record.seconds()[0] if record and record.rounds(self.number) else 0.0
        if usual and round_.verify_seconds <= AS_USUAL * usual:
            self._free = max(self._free, tokens + unread)
        elif usual and round_.verify_seconds > MUCH_MORE * usual and tokens + unread <= self._free:
            self._free = tokens + unread - 1
        if usual and unread >= READS:
            self._read = (unread, round_.verify_seconds - usual + self.plain.seconds(round_.context))
        self._before = (float(round_.emitted), float(round_.accepted))
        slots = prompts_of(round_.drafted, round_.stride)
        self._slots[:slots] = [round_.context] * slots
        if unread <= round_.draft_length * 2:      # else its time is that of the reading
            self._timed(arm, round_)
        return changed

    def _timed(self, arm: Arm, round_: Round) -> None:
        record = self.arms.setdefault(arm, ArmRecord())
        if record.observe(round_, self.number):
            for other, known in self.arms.items():
                if other != arm:
                    known.forget()
            self._cost.forget(0.1)
            if self.number - self.plain.at > SELDOM:
                self.plain.stale()

    def forget(self) -> None:
        """Something has changed that all arms will feel."""
        for record in self.arms.values():
            record.forget()
        self._cost.forget(0.1)

    @property
    def native_acceptance(self) -> float | None:
        """Share of the head's own drafted tokens that were right lately; None = it drafted none."""
        return self._native[1] / self._native[0] if self._native[0] else None
