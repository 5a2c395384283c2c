"""What trying other ways may cost, and when speculation that is off is looked at again. Pure."""

from __future__ import annotations

from fleet.speculation.arms import Arm

PURSE = 6.0                    # plain tokens' time that trials may cost at the start
SHARE = 0.01                   # of all time that they may cost after that
FIRST_WAIT, LONGEST_WAIT = 12, 24     # stretches between two looks while it is off
PATIENT = 8                    # stretches more that a look waits for a stream that begins: few tokens to read
LOOK = 4                       # rounds of a look, as long as the purse lasts


class Trials:
    """The purse, and the next look."""

    def __init__(self) -> None:
        self._spent, self._all = 0.0, 0.0          # seconds that trials cost, and all of them
        self._wait, self._next = 0, FIRST_WAIT     # stretches until the next look; and between it and the one after
        self._looking: Arm | None = None
        self._left = 0                             # rounds of this look

    def passed(self, seconds: float) -> None:
        """So much time of any kind went by."""
        self._all += seconds

    def cost(self, seconds: float) -> None:
        """A trial took so much longer than what is known best would have."""
        self._spent += max(0.0, seconds)

    def affords(self, loss: float, alone: float) -> bool:
        """Whether a trial that is expected to cost so many seconds may be made; `alone` is a plain token's time."""
        return loss <= 0 or self._spent + loss <= self._purse(alone)

    def _purse(self, alone: float) -> float:
        return PURSE * alone + SHARE * self._all

    def stretch(self) -> None:
        """A plain stretch is over."""
        self._wait -= 1

    @property
    def waits(self) -> int:
        """Stretches until the next look."""
        return max(1, self._wait)

    def look_due(self, *, begins: bool) -> bool:
        """Whether it is time; `begins`: a stream is about to begin."""
        return self._left == 0 and self._wait <= 0 and (begins or self._wait <= -PATIENT)

    def look(self, arm: Arm, *, hopeless: bool) -> Arm:
        """Begin to look at an arm; for one round if there is little hope."""
        self._looking, self._left = arm, 1 if hopeless else LOOK
        return arm

    def goes_on(self, alone: float) -> Arm | None:
        """The arm that is being looked at and has rounds left, if the purse is not empty."""
        if self._left and self._spent > self._purse(alone):
            self._end(alone)
        return self._looking if self._left else None

    def looked(self, alone: float) -> None:
        """One round of the look is over."""
        if self._left:
            self._left -= 1
            if not self._left:
                self._end(alone)

    def _end(self, alone: float) -> None:
        self._looking, self._left = None, 0
        self._wait = self._next
        # With a full purse there is no need to wait longer each time.
        self._next = min(LONGEST_WAIT, self._next * 2) if self._spent > self._purse(alone) / 2 else FIRST_WAIT

    def switched_off(self) -> None:
        """Speculation was given up just now."""
        self._looking, self._left = None, 0
        self._wait = self._next

    def at_once(self) -> None:
        """Something has changed: do not wait."""
        self._wait, self._next = 0, FIRST_WAIT
