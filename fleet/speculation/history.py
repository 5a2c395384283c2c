"""How speculation went lately: one sample for every few seconds in which something was written. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from fleet.speculation.choice import Mode, Round

EVERY = 5.0                # seconds of one sample
KEPT = 120                 # samples


@dataclass(slots=True)
class Sample:
    """What came of the rounds and stretches that ended within `EVERY` seconds."""

    begun: float                       # clock
    mode: Mode = Mode.PLAIN            # of the last of them
    draft_length: int = 0              # N and s of the last one that drafted
    stride: int = 1
    drafted: int = 0                   # tokens
    accepted: int = 0
    emitted: int = 0
    seconds: float = 0.0               # that they took
    rounds: int = 0                    # that drafted
    round_tokens: int = 0              # emitted in these


class History:
    """Of one target. `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._samples: deque[Sample] = deque(maxlen=KEPT)
        self._told: tuple[int, int] | None = None

    def note(self, round_: Round) -> None:
        """A round or a stretch has ended."""
        if round_.emitted <= 0:
            return
        sample = self._now()
        sample.mode = round_.mode
        sample.emitted += round_.emitted
        sample.seconds += round_.verify_seconds + round_.draft_seconds
        if round_.drafted > 0:
            sample.draft_length, sample.stride = round_.draft_length, round_.stride
            sample.drafted, sample.accepted = sample.drafted + round_.drafted, sample.accepted + round_.accepted
            sample.rounds, sample.round_tokens = sample.rounds + 1, sample.round_tokens + round_.emitted

    def counted(self, drafted: int, accepted: int) -> None:
        """A head that drafts by itself has counted so many tokens so far; what is more than last time is new."""
        before, self._told = self._told, (drafted, accepted)
        if before is None or drafted < before[0]:
            before = (0, 0)
        if drafted > before[0]:
            sample = self._now()
            sample.mode = Mode.NATIVE
            sample.drafted += drafted - before[0]
            sample.accepted += max(0, accepted - before[1])

    def _now(self) -> Sample:
        now = self._clock()
        if not self._samples or now - self._samples[-1].begun >= EVERY:
            self._samples.append(Sample(now))
        return self._samples[-1]

    def state(self) -> list[dict[str, object]]:
        """As JSON, oldest first."""
        now = self._clock()
        return [{"seconds_ago": round(now - one.begun, 1), "mode": str(one.mode), "draft_length": one.draft_length,
                 "stride": one.stride, "drafted": one.drafted, "accepted": one.accepted,
                 "acceptance": one.accepted / one.drafted if one.drafted else None,
                 "tokens_a_round": one.round_tokens / one.rounds if one.rounds else None,
                 "tokens_per_second": one.emitted / one.seconds if one.seconds > 0 else None}
                for one in self._samples]
