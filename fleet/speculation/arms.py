"""What is known of each way to get the next tokens: how long its last rounds took, what they gave. Pure."""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass

from fleet.speculation.choice import Mode, Round

WINDOW = 9                 # rounds that are remembered: the last tell a change, the others what it was before
KNOWN = 2                  # rounds after which an arm's own times count for more than the model's
LASTS = 300                # rounds after which they are too old
OLDER, NEWER = 5, 4        # rounds that are held against each other
SHIFT = 1.5                # times as long, or as short, is a change and no noise
OUTLIER = 4                # rounds from which on the slowest is left out: a new shape of a batch, a busy moment


@dataclass(frozen=True, slots=True)
class Arm:
    """One way: a mode with its settings. N and s are 0 and 1 where the mode has none."""

    mode: Mode
    draft_length: int = 0
    stride: int = 1
    drafter: str = ""

    @property
    def name(self) -> str:
        """For a person."""
        if self.mode in (Mode.PLAIN, Mode.NATIVE):
            return {Mode.PLAIN: "the target alone", Mode.NATIVE: "native drafting"}[self.mode]
        if self.mode is Mode.INJECTION:
            return f"injection of {self.draft_length} tokens by {self.drafter or 'the drafter'}"
        step = f" in steps of {self.stride}" if self.stride > 1 else ""
        return f"{self.mode.value} with {self.draft_length} tokens{step} by {self.drafter or 'the drafter'}"


class ArmRecord:
    """The last rounds of one arm, changes noticed."""

    def __init__(self) -> None:
        self._rounds: deque[tuple[float, float, int, int]] = deque(maxlen=WINDOW)   # (verify, draft, emitted, drafted)
        self._last = 0

    def observe(self, round_: Round, number: int) -> bool:
        """Take note of round number so and so.

        Returns:
            Whether it takes a different time now; older rounds are then forgotten.
        """
        if number - self._last > LASTS:
            self._rounds.clear()
        self._last = number
        self._rounds.append((round_.verify_seconds, round_.draft_seconds, round_.emitted, round_.drafted))
        # A draft that was ready in time may be a longer one: that is no change.
        paces = [self._pace(entry, round_.mode) for entry in self._rounds
                 if round_.mode is not Mode.STRIDED or entry[3] <= round_.draft_length]
        if len(paces) < OLDER + NEWER:
            return False
        ratio = statistics.median(paces[-NEWER:]) / max(1e-9, statistics.median(paces[:-NEWER]))
        if 1 / SHIFT < ratio < SHIFT:
            return False
        for _ in range(len(self._rounds) - NEWER):
            self._rounds.popleft()
        return True

    @staticmethod
    def _pace(entry: tuple[float, float, int, int], mode: Mode) -> float:
        """Seconds of a verification: drafts that were ready in time come and go. Of a stretch those of a token."""
        seconds = entry[0]
        return seconds if mode is Mode.STRIDED else seconds / max(1, entry[2])

    def forget(self) -> None:
        """Something else has changed that this arm will feel too."""
        self._rounds.clear()

    def rounds(self, number: int) -> int:
        """Rounds that are remembered and recent at round `number`."""
        return len(self._rounds) if number - self._last <= LASTS else 0

    def tokens(self, number: int) -> int:
        """Tokens of the rounds that are remembered and recent."""
        return sum(entry[2] for entry in self._rounds) if number - self._last <= LASTS else 0

    def drafted(self, number: int) -> list[int]:
        """Tokens of the drafts of the rounds that are remembered and recent."""
        return [entry[3] for entry in self._rounds] if number - self._last <= LASTS else []

    def seconds(self) -> tuple[float, float]:
        """(verification, waiting for the draft) of a round, means without the slowest."""
        kept = sorted(self._rounds, key=lambda entry: entry[0] + entry[1])
        kept = kept[:-1] if len(kept) >= OUTLIER else kept
        return (sum(entry[0] for entry in kept) / len(kept), sum(entry[1] for entry in kept) / len(kept))

    def tokens_per_second(self) -> float:
        """What it gave, over all that is remembered."""
        seconds = sum(entry[0] + entry[1] for entry in self._rounds)
        return sum(entry[2] for entry in self._rounds) / seconds if seconds > 0 else 0.0


class PlainSpeed:
    """Seconds a token of the target alone, by the size of the context: one figure for each doubling of it."""

    SMALLEST = 8               # 2**8 tokens: below, a context costs nothing that could be measured
    KEPT = 5                   # stretches of each size
    SHORTEST = 4               # tokens: a stretch of less tells too little

    def __init__(self) -> None:
        self._sizes: dict[int, deque[float]] = {}
        self._stale = False
        self._odd = 0          # stretches one after another that did not fit what was known
        self.at = 0            # the round of the last measurement

    @classmethod
    def _size(cls, context: int) -> int:
        return max(cls.SMALLEST, context.bit_length())

    def observe(self, context: int, emitted: int, seconds: float, number: int) -> bool:
        """Take note of a stretch.

        Returns:
            Whether the target has another speed than before.
        """
        if emitted < self.SHORTEST or seconds <= 0:
            return False
        pace = seconds / emitted
        if self._stale:
            self._sizes.clear()
            self._stale = False
        known = self._sizes.setdefault(self._size(context), deque(maxlen=self.KEPT))
        self.at = number
        fits = not known or 1 / SHIFT < pace / statistics.median(known) < SHIFT
        self._odd = 0 if fits else self._odd + 1
        if self._odd >= 2:
            self._odd = 0
            self._sizes = {self._size(context): deque([pace], maxlen=self.KEPT)}
            return True
        known.append(pace)
        return False

    def stale(self) -> None:
        """What was measured is no longer so: it stands until the next stretch, and is due at once."""
        self._stale = True

    def measured(self, context: int) -> bool:
        """Whether a context of this size has been measured, and not gone stale."""
        return not self._stale and self._size(context) in self._sizes

    def seconds(self, context: int) -> float:
        """Seconds a token at this context, by the nearest size that was measured; 0 = nothing was."""
        if not self._sizes:
            return 0.0
        nearest = min(self._sizes, key=lambda size: abs(size - self._size(context)))
        return statistics.median(self._sizes[nearest])
