"""What all answers of one target share: what it can, who drafts for it, who steers, and what is shown of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fleet.speculation.ahead import AheadRecord
from fleet.speculation.choice import Mode, Round, Steering
from fleet.speculation.history import History
from fleet.speculation.pieces import Pieces
from fleet.speculation.race import Race
from fleet.speculation.settings import SpeculationSettings
from fleet.speculation.shares import Keeping, Shares
from fleet.speculation.target import Abilities, Target

ROUNDS_KEPT = 20


@dataclass(slots=True)
class Bench:
    """What all answers of one target share."""

    target: Target
    abilities: Abilities
    pieces: Pieces
    race: Race
    steering: Steering
    shares: Shares
    settings: SpeculationSettings
    clock: Callable[[], float]
    first_timeout: float = 1800.0              # seconds of a prompt
    timeout: float = 300.0                     # seconds of a round
    ahead: AheadRecord = field(default_factory=AheadRecord)
    keeping: Keeping = field(default_factory=Keeping)
    rounds: deque[dict[str, object]] = field(default_factory=lambda: deque(maxlen=ROUNDS_KEPT))
    history: History = field(init=False)
    positions: tuple[float, ...] = ()          # chances by position of a head that drafts by itself
    watched_until: float = 0.0                 # somebody looks at the last rounds
    injection_problem: str = ""                # why nothing is injected any more
    token_seconds: float = 0.0                 # of a plain token, smoothed; 0 = never seen
    round_seconds: float = 0.05                # of a verification

    def __post_init__(self) -> None:
        self.history = History(self.clock)

    def record(self, round_: Round) -> None:
        """A round or a stretch has ended."""
        self.steering.record(round_)
        self.history.note(round_)

    async def show(self, mode: Mode, drafter: str, drafted: Sequence[int], accepted: int, said: Sequence[int], *,
                   stride: int = 1, waited: float = 0.0, took: float = 0.0) -> None:
        """Keep a round for who looks on; its tokens are asked for only while somebody does.

        Args:
            said: what the target wrote, with the `accepted` tokens of the draft.
            waited: seconds for the draft.
            took: seconds of the verification.

        Raises:
            WireError: the target did not tell what the tokens say.
            Refused: it knows no such tokens.
        """
        if self.clock() < self.watched_until:
            await self.pieces.know([*drafted, *said])
        self.rounds.append({
            "mode": str(mode), "at": round(self.clock(), 3), "drafter": drafter, "drafted": len(drafted),
            "accepted_tokens": accepted, "emitted": len(said), "stride": stride, "draft_seconds": round(waited, 4),
            "verify_seconds": round(took, 4), "accepted": self.pieces.shown(drafted[:accepted]),
            "rejected": self.pieces.shown(drafted[accepted:]), "said": self.pieces.shown(said[accepted:])})
