"""What a round costs: a model with four unknowns, learned from the rounds themselves. Pure.

    T(N, s) = c + s*p + t*tokens + r*rows                                    seconds

    c       a request more: HTTP, tokens to JSON, graphs that are sent to workers anew
    p       a pass: the weights read once, and every worker's round trip (timing.py)
    tokens  that are evaluated: what every slot has to catch up with, and s - 1 more for each prompt
    rows    whose logits are wanted and sampled from: s for each prompt

The counts follow from how llama-server keeps slots (b10068, run and counted: 45 tokens for N = 8, s = 1 after one
token was emitted, 81 after nine). n = N/s + 1 prompts find the slots of the round before: slot k holds the context and
k*s tokens of the old draft, of which those are still good that were accepted; so with e emitted and m accepted

    evaluated = sum over k of e + k*s - min(k*s, m)          s = 1: between n*(n+1)/2 (m = 0) and n*e (m = N)

and slot 0 has written s tokens itself, the last of which has still to be read. Slots that are new to a context read
all of it first: (n - 1) * context tokens, which is what makes strided verification dear on long contexts.

Seen in the lab (two workers, one thread each, -fa off, gemma-3-270m q4_k_m): t = 4.4 ms, r = 8 ms, c = 30 ms, p = 20 ms
at 0 ms round trip and 70 and 130 at 20 and 50. On a GPU t and r are nearly nothing. With flash attention b10068 asks
every worker some 28 times one after another when the shape of a batch is not that of the pass before, which strided
rounds always change: N = 8, s = 2 took 2.6 s a round at 20 ms in place of 0.4. So targets of strided verification want
`-fa off` there; where they have it on, the measured rounds say so and speculation goes off.
"""

from __future__ import annotations

from collections.abc import Sequence

FADES = 0.97                        # of a round's weight that is left after the next
PRIOR = (0.5, 1.0, 0.05, 0.05)      # what is expected before anything was seen, in plain passes: c, p, t, r
SIZES = (1.0, 1.0, 12.0, 5.0)       # how large the counts are in an ordinary round: what makes the unknowns comparable
PRIOR_WEIGHT = 0.15                 # rounds that the expectation is worth
UNKNOWNS = 4
BATCH = 512                         # tokens that one pass reads at most (-ub)
FEWEST_READ = 8                     # tokens of a prompt that tell anything


def prompts_of(drafted: int, stride: int) -> int:
    """Prompts of a round: the context and every `stride` tokens of the draft."""
    return drafted // stride + 1


def evaluated_tokens(draft_length: int, stride: int, emitted: float, accepted: float) -> float:
    """Prompt tokens that a round evaluates in slots that saw the round before, in which so many were emitted.

    Args:
        draft_length: N.
        stride: s.
        emitted: tokens that went out in the round before.
        accepted: leading tokens of its draft that were right.
    """
    return sum(max(1.0, emitted + k * stride - min(k * stride, accepted)) if k else max(1.0, emitted - stride + 1)
               for k in range(prompts_of(draft_length, stride)))


def unread_tokens(prompts: int, context: int, emitted: float, slots: Sequence[int]) -> int:
    """What the slots of a round have to read besides (`evaluated_tokens` is for those that took part in the last one).

    Args:
        prompts: of the round; the first slot has always read all.
        context: tokens before the round.
        emitted: tokens of the strided round before.
        slots: the context of the last round that each slot of this stream took part in.
    """
    last = context - round(emitted) if slots else context
    return sum(max(0, last - (slots[slot] if slot < len(slots) else 0)) for slot in range(1, prompts))


def counts(draft_length: int, stride: int, emitted: float, accepted: float) -> tuple[float, float, float, float]:
    """What multiplies c, p, t and r in a round."""
    prompts = prompts_of(draft_length, stride)
    tokens = evaluated_tokens(draft_length, stride, emitted, accepted) + (stride - 1) * prompts
    return (1.0, float(stride), tokens, float(stride * prompts))


class RoundCost:
    """The four unknowns: least squares over the rounds seen, older ones fading, held near what is expected."""

    def __init__(self) -> None:
        self._squares = [[0.0] * UNKNOWNS for _ in range(UNKNOWNS)]
        self._products = [0.0] * UNKNOWNS
        self._solved: tuple[float, tuple[float, ...]] | None = None      # for these plain seconds
        self.rounds = 0

    def observe(self, amounts: Sequence[float], seconds: float) -> None:
        """Take note of a round with these counts."""
        self.rounds += 1
        self._note(amounts, seconds)

    def read(self, tokens: int, seconds: float) -> None:
        """Take note of a prompt that was read: passes of hundreds of tokens, so it tells what a token more costs."""
        if tokens >= FEWEST_READ:
            passes = -(-tokens // BATCH)
            self._note((1.0, float(passes), float(tokens), 1.0), seconds)

    def _note(self, amounts: Sequence[float], seconds: float) -> None:
        self._solved = None
        # In proportion, or one long prompt would outweigh all rounds.
        size = max(1.0, amounts[2] / SIZES[2])
        amounts, seconds = [amount / size for amount in amounts], seconds / size
        for row in range(UNKNOWNS):
            self._products[row] = self._products[row] * FADES + amounts[row] * seconds
            for column in range(UNKNOWNS):
                self._squares[row][column] = self._squares[row][column] * FADES + amounts[row] * amounts[column]

    def forget(self, left: float) -> None:
        """Something has changed: only this share of all that was seen still counts."""
        self._solved = None
        self._products = [value * left for value in self._products]
        self._squares = [[value * left for value in row] for row in self._squares]

    def unknowns(self, plain_seconds: float) -> tuple[float, ...]:
        """c, p, t and r in seconds; `plain_seconds` of a plain token are the measure of what is expected."""
        if self._solved is None or self._solved[0] != plain_seconds:
            self._solved = (plain_seconds, self._unknowns(plain_seconds))
        return self._solved[1]

    def _unknowns(self, plain_seconds: float) -> tuple[float, ...]:
        held: list[int] = []
        while True:       # none of them is negative: what comes out so is taken for nothing and the rest solved again
            found = self._solve(plain_seconds, held)
            negative = [number for number, value in enumerate(found) if value < 0]
            if not negative:
                return tuple(found)
            held += negative

    def _solve(self, plain_seconds: float, held: list[int]) -> list[float]:
        free = [number for number in range(UNKNOWNS) if number not in held]
        rows = []
        for row in free:
            weight = PRIOR_WEIGHT * SIZES[row] ** 2
            line = [self._squares[row][column] + (weight if row == column else 0.0) for column in free]
            rows.append([*line, self._products[row] + weight * PRIOR[row] * plain_seconds])
        solved = iter(_gauss(rows))
        return [0.0 if number in held else next(solved) for number in range(UNKNOWNS)]

    def predict(self, amounts: Sequence[float], plain_seconds: float) -> float:
        """Seconds of a round with these counts."""
        return sum(amount * value for amount, value in zip(amounts, self.unknowns(plain_seconds), strict=True))


def _gauss(rows: list[list[float]]) -> list[float]:
    """Solve a positive definite system; each row ends with its right side."""
    size = len(rows)
    for column in range(size):
        pivot = max(range(column, size), key=lambda row: abs(rows[row][column]))
        rows[column], rows[pivot] = rows[pivot], rows[column]
        for row in range(column + 1, size):
            factor = rows[row][column] / rows[column][column]
            rows[row] = [a - factor * b for a, b in zip(rows[row], rows[column], strict=True)]
    solved = [0.0] * size
    for row in reversed(range(size)):
        known = sum(rows[row][column] * solved[column] for column in range(row + 1, size))
        solved[row] = (rows[row][size] - known) / rows[row][row]
    return solved
