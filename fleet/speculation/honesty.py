"""The honesty meter: some requests are asked again plainly, and the answers are held against each other. Pure.

A session that answered a request with drafts asks `sample` whether to check it, asks the target alone for the same
(temperature 0, no draft, the same number of tokens) when nothing else waits, and tells `compare` both answers as token
ids. Only greedy requests can be compared: sampled ones differ by chance, which a chi-square test of the distribution
has to judge.

Quantised kernels give slightly other logits for another shape of a batch, and a near tie then falls the other way: a
Q4 target alone, asked anew every nine tokens, differed from its own single stream on five of seven prompts, with F32
weights on none. So identity is promised for F32 and measured for everything else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

KEPT = 40                  # comparisons that are shown
SHOWN = 8                  # tokens of either answer, where they part
BATCH_NOTE = ("Quantised kernels round differently for another shape of a batch, so a near tie can fall the other way; "
              "identity is promised for F32 weights and measured for others.")


@dataclass(frozen=True, slots=True)
class Comparison:
    """One request that was asked twice."""

    at: float                            # clock, seconds
    compared: int                        # tokens that both answers have
    differs_at: int | None               # the first token that is another one, None = none is
    drafted: tuple[int, ...] = ()        # from there on: what went out
    plain: tuple[int, ...] = ()          # and what the target says alone


class HonestyMeter:
    """What is sampled, and what came of it."""

    def __init__(self, share: float, *, clock: Callable[[], float], random: Callable[[], float]) -> None:
        """Begin with nothing compared.

        Args:
            share: of the requests, 0 = off, 1 = all of them.
            clock: seconds.
            random: numbers from 0 to 1.
        """
        self.share = min(1.0, max(0.0, share))
        self._clock = clock
        self._random = random
        self._kept: deque[Comparison] = deque(maxlen=KEPT)
        self._busy = False
        self.compared = self.identical = self.failed = 0

    def sample(self, *, temperature: float, drafted: int, written: int) -> bool:
        """Whether this request is to be asked again. Where it says yes, `compare` or `gave_up` has to follow.

        Args:
            temperature: of the request; only 0 can be compared.
            drafted: tokens that were drafted for it: without any there is nothing to check.
            written: tokens of its answer.
        """
        if self._busy or self.share <= 0 or temperature > 0 or not drafted or not written:
            return False
        if self._random() >= self.share:
            return False
        self._busy = True
        return True

    def gave_up(self) -> None:
        """The target could not be asked again."""
        self._busy = False
        self.failed += 1

    def compare(self, drafted: Sequence[int], plain: Sequence[int]) -> Comparison:
        """Hold what went out against what the target says alone, token by token.

        An answer that ends while the other goes on differs there, unless it was only asked for fewer tokens: ask for
        as many as went out.
        """
        self._busy = False
        common = min(len(drafted), len(plain))
        differs = next((k for k in range(common) if drafted[k] != plain[k]), None)
        if differs is None and len(drafted) != len(plain):
            differs = common
        self.compared += 1
        self.identical += differs is None
        found = Comparison(self._clock(), common, differs) if differs is None else Comparison(
            self._clock(), common, differs, tuple(drafted[differs:differs + SHOWN]),
            tuple(plain[differs:differs + SHOWN]))
        self._kept.append(found)
        return found

    @property
    def verdict(self) -> str:
        """A few words: "identical 40/40", or where answers first differed."""
        if self.share <= 0:
            return "not checked"
        if not self.compared:
            return "nothing compared yet"
        words = f"identical {self.identical}/{self.compared}"
        earliest = min((one.differs_at for one in self._kept if one.differs_at is not None), default=None)
        return words if earliest is None else f"{words}, first difference at token {earliest + 1}"

    def state(self, *, quantised: bool | None = None) -> dict[str, Any]:
        """For the Draft screen, ready for JSON. `quantised`: whether the target's weights are; None = not known."""
        last = next((one for one in reversed(self._kept) if one.differs_at is not None), None)
        differs = self.identical < self.compared
        return {
            "share": self.share, "compared": self.compared, "identical": self.identical, "failed": self.failed,
            "verdict": self.verdict, "note": BATCH_NOTE if differs and quantised is not False else "",
            "difference": None if last is None or last.differs_at is None else {
                "token": last.differs_at, "drafted": list(last.drafted), "plain": list(last.plain)},
        }
