"""How often a drafter is right, by position, as it was lately. Pure.

What is kept is the chance h_i that the token at position i is right if all before it were; what old rounds said fades.
From that follows what a round may be expected to emit:

    P(i) = h_0 * h_1 * ... * h_(i-1)                    the first i tokens are right
    E(N, s) = s * (P(0) + P(s) + P(2s) + ... + P(N))    strided: s tokens of every group that is reached

(Leviathan, Kalman, Matias: Fast Inference from Transformers via Speculative Decoding, 2023, formula 1, for s = 1 and
the same chance everywhere: (1 - h^(N+1)) / (1 - h).)
"""

from __future__ import annotations

import math
from collections import deque

FADES = 0.97               # of a round's weight that is left after the next: half is gone after 23 rounds
EXPECTED = 0.7             # what is thought of a drafter that has drafted nothing yet
EXPECTED_WEIGHT = 2.0      # trials that this opinion is worth
POOLED_WEIGHT = 3.0        # trials that all positions' rate is worth at a single one
MOST_POSITIONS = 64
LATELY = 6                 # rounds that are held against the rest to see whether the drafter has changed
SURPRISE = 0.0005          # rounds that are as unlikely as this are a change and no chance
LEFT = 0.03                # of everything older when a change was seen
HOPE = 0.25                # what a position that was never tried may be better than it looks


class Acceptance:
    """The record of one drafter. Feed it every round."""

    def __init__(self) -> None:
        self._right = [0.0] * MOST_POSITIONS
        self._tried = [0.0] * MOST_POSITIONS
        self._all_right = 0.0
        self._all_tried = 0.0
        self._recent: deque[tuple[int, int]] = deque(maxlen=LATELY)     # (right, tried) of the last rounds

    def observe(self, asked: int, accepted: int) -> bool:
        """Take note of a round in which `asked` tokens were wanted and the first `accepted` were right.

        A draft that ended before its length counts as wrong at its end: it is as good as a wrong token there.

        Returns:
            Whether the drafter seems to have changed; what was known of it before then counts for little.
        """
        asked = max(0, min(asked, MOST_POSITIONS))
        accepted = max(0, min(accepted, asked))
        if not asked:
            return False
        tried = accepted + (1 if accepted < asked else 0)
        self._recent.append((accepted, tried))
        changed = self._surprised()
        fades = LEFT if changed else FADES
        self._right = [value * fades for value in self._right]
        self._tried = [value * fades for value in self._tried]
        self._all_right = self._all_right * fades + accepted
        self._all_tried = self._all_tried * fades + tried
        for position in range(tried):
            self._tried[position] += 1
            self._right[position] += position < accepted
        if changed:
            self._recent.clear()
        return changed

    def _surprised(self) -> bool:
        """Whether the last rounds fit what was known before them; asked of the last two and of all of them."""
        if self._all_tried < 2 * LATELY:
            return False
        rate = min(0.95, max(0.05, self._all_right / self._all_tried))
        for rounds in {2, 3, len(self._recent)}:
            last = list(self._recent)[-rounds:]
            right, tried = sum(pair[0] for pair in last), sum(pair[1] for pair in last)
            if len(last) < rounds or tried < 3:
                continue
            if _unlikely(right, tried, rate) < SURPRISE:
                return True
        return False

    @property
    def rate(self) -> float:
        """The chance of a token whose predecessors were right, over all positions."""
        return (self._all_right + EXPECTED * EXPECTED_WEIGHT) / (self._all_tried + EXPECTED_WEIGHT)

    @property
    def trials(self) -> float:
        """How many trials the record is worth now."""
        return self._all_tried

    def at(self, position: int, *, hopeful: bool = False) -> float:
        """h of a position. `hopeful`: as good as it may still be, by how little is known."""
        if position >= MOST_POSITIONS:
            return self.rate
        right = self._right[position] + self.rate * POOLED_WEIGHT
        tried = self._tried[position] + POOLED_WEIGHT
        bonus = HOPE / math.sqrt(1 + self._all_tried) if hopeful else 0.0
        return min(0.99, right / tried + bonus)

    def all_right(self, length: int) -> float:
        """P(length): the chance that so many tokens are right."""
        return math.prod(self.at(position) for position in range(length))

    def by_position(self, length: int) -> list[float]:
        """h of the first positions."""
        return [self.at(position) for position in range(length)]

    def emitted(self, draft_length: int, stride: int, *, hopeful: bool = False) -> float:
        """E(N, s): tokens that a round is expected to emit, at least `stride`."""
        total, chance = 0.0, 1.0
        for start in range(0, draft_length + 1, stride):
            total += stride * chance
            for position in range(start, start + stride):
                chance *= self.at(position, hopeful=hopeful)
        return total


def _unlikely(right: int, tried: int, rate: float) -> float:
    """The chance of so many right ones, or of what is further from the rate: the tail of a binomial distribution."""
    below = range(right + 1) if right < rate * tried else range(right, tried + 1)
    return sum(math.comb(tried, k) * rate**k * (1 - rate) ** (tried - k) for k in below)
