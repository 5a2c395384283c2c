"""What a controller tells a person: the reason of what it does, and figures of the last rounds. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Any

from fleet.speculation.arms import Arm
from fleet.speculation.choice import Mode, Round
from fleet.speculation.knowledge import STRETCHES, Knowledge

LOOKED_AT = 64                 # rounds that the shown figures are of
FEWEST_POSITIONS = 4           # that are shown


class Figures:
    """Of one controller."""

    def __init__(self, known: Knowledge, drafters: Collection[str], *, measured_alone: bool) -> None:
        self._known = known
        self._measured_alone = measured_alone
        self._shown: deque[Round] = deque(maxlen=LOOKED_AT)
        self._wins: dict[str, int] = dict.fromkeys(drafters, 0)

    def note(self, round_: Round) -> None:
        """A round has ended."""
        self._shown.append(round_)
        if round_.mode not in STRETCHES:
            self._wins[round_.drafter] = self._wins.get(round_.drafter, 0) + (round_.drafted > 0)

    def why_on(self, arm: Arm, context: int) -> str:
        """A sentence about an arm that is in use."""
        record = self._known.acceptance.get(arm.drafter)
        right = f"; {record.rate:.0%} of its tokens are right" if record is not None else ""
        return (f"{arm.name[0].upper()}{arm.name[1:]}: about {self._known.value(arm, context):.1f} tokens/s, "
                f"{self._known.alone(context):.1f} alone{right}.")

    def why_off(self, context: int, after: str) -> str:
        """A sentence about why none is."""
        known = self._known
        best = max(known.arms, key=lambda arm: known.value(arm, context))
        return (f"Off: the target alone gives {known.alone(context):.1f} tokens/s, and the best of the other ways, "
                f"{best.name}, is thought to give {known.value(best, context):.1f}; {after}.")

    def state(self, arm: Arm, reason: str) -> dict[str, Any]:
        """Ready for JSON.

        `speed_up` is tokens a second of the last rounds, trials and all, over `plain_tokens_per_second`, the measured
        speed of the same target alone; both are None until they were measured.
        """
        known = self._known
        context = max(0, known.at)
        alone = known.alone(context) if self._measured_alone else 0.0
        seconds = sum(round_.verify_seconds + round_.draft_seconds for round_ in self._shown)
        speed = sum(round_.emitted for round_ in self._shown) / seconds if seconds else 0.0
        drafted = [round_ for round_ in self._shown if round_.mode not in (Mode.PLAIN, known.rest.mode)]
        record = known.acceptance.get(arm.drafter) or next(iter(known.acceptance.values()), None)
        tokens = sum(round_.drafted for round_ in drafted)
        accepted = sum(round_.accepted for round_ in drafted) / tokens if tokens else known.native_acceptance
        return {
            "mode": arm.mode.value, "reason": reason, "draft_length": arm.draft_length, "stride": arm.stride,
            "drafter": arm.drafter, "acceptance": accepted,
            "by_position": record.by_position(max(FEWEST_POSITIONS, arm.draft_length))
            if record and record.trials else [],
            "plain_tokens_per_second": alone or None, "tokens_per_second": speed or None,
            "speed_up": speed / alone if alone and speed else None, "rounds": known.number,
            "tokens_a_round": sum(r.emitted for r in drafted) / len(drafted) if drafted else None,
            "draft_seconds": sum(r.draft_seconds for r in drafted) / len(drafted) if drafted else None,
            "verify_seconds": sum(r.verify_seconds for r in drafted) / len(drafted) if drafted else None,
            "drafters": {name: {"acceptance": acceptance.rate if acceptance.trials else None,
                                "rounds": self._wins.get(name, 0)} for name, acceptance in known.acceptance.items()},
            "arms": [{"name": other.name, "mode": other.mode.value, "tokens_per_second": known.value(other, context),
                      "rounds": known.arms[other].rounds(known.number)} for other in known.arms]
            if known.alone(context) else [],
        }
