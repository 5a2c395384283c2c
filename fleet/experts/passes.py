"""What verifying several tokens in one pass (MTP, drafts) costs a mixture whose experts are read from disk. Pure.

A pass over w tokens needs the union of their experts, U(w). With N experts a layer of which each token takes k:

    by chance     U(w) = N * (1 - (1 - k/N)^w)
    by overlap    U(w) = k/rho * (1 - (1 - rho)^w) = k * (1 + (1 - rho) + ... + (1 - rho)^(w-1))

rho is the part of a token's experts that the token before had too, so U(2) = k * (2 - rho); the second law is the first
among the k/rho experts that are really in question. Measured: 12.68 for 8 of 256 and w = 2, where chance alone gives
15.75: rho is 0.415, and 19 experts are in question. With drafts of which each is right with chance a, a pass writes

    T(w) = 1 + a + ... + a^(w-1) = (1 - a^w) / (1 - a)      tokens, at most 1/(1-a) however wide it is

and needs fewer experts a token only if T(w) > U(w)/k: by overlap, for any w, only if a > 1 - rho. The figures above
with a = 0.574 lose by a hair: 1.585 times the experts for 1.574 tokens.

With a cache the law is harsher. Its misses are what is read, and an expert that the next token shares was a hit anyway:
drafts that are all right save no miss, only the passes' fixed cost, and every wrong one adds misses of its own.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fleet.errors import ModelFileError
from fleet.experts.simulate import lru, requests_of
from fleet.experts.trace import Routed, Trace

USUAL_OVERLAP = 0.4            # measured: 0.376 to 0.415 of mixtures of 256 experts, 0.393 of ours
Rows = dict[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class PassVerdict:
    """Whether passes over several tokens pay."""

    loses: bool                # they read more experts a token, or miss more of them, than tokens one at a time
    sentence: str
    experts: float             # of a pass, in those of one token: U(w) / k
    tokens: float              # that a pass writes
    break_even: float | None   # the acceptance from which they need fewer experts a token; None = none does
    misses: float | None = None        # a token, with the cache, in those without drafts


def union_by_chance(experts: int, used: int, width: int) -> float:
    """Experts of a layer that so many tokens need together, if each chose by chance."""
    return experts * (1 - (1 - used / experts) ** width)


def union_from_overlap(used: int, rho: float, width: int = 2) -> float:
    """The same if a token shares that part of its experts (0 to 1) with the one before."""
    return used * sum((1 - rho) ** at for at in range(width))


def tokens_a_pass(acceptance: float, width: int) -> float:
    """Tokens that a pass over so many writes, the chance of each draft (0 to 1) given those before it."""
    return sum(acceptance**at for at in range(width))


def break_even(rho: float) -> float:
    """The acceptance from which a pass needs fewer experts a token than tokens one at a time, by overlap."""
    return 1 - rho


def break_even_of(experts: float, width: int) -> float | None:
    """The acceptance at which a pass writes so many tokens; None where not even drafts that are all right do."""
    if experts > width + 1e-9:
        return None
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if tokens_a_pass(middle, width) < experts else (low, middle)
    return high


def speed_up(tokens: float, experts: float, *, fixed: float, reading: float, draft: float = 0.0) -> float:
    """Of passes over tokens one at a time.

    Args:
        tokens: that a pass writes.
        experts: what it reads of them, in what one token reads.
        fixed: seconds of a pass beside its experts.
        reading: seconds that the experts of one token take.
        draft: seconds that its drafts take.
    """
    took = fixed + draft + reading * experts
    return tokens * (fixed + reading) / took if took > 0 else 1.0


def judge_passes(used: int, rho: float, acceptance: float, *, width: int = 2,
                 misses: float | None = None) -> PassVerdict:
    """Whether drafts pay where experts are read from disk.

    Args:
        used: experts a token and layer.
        rho: the part of them that the token before had too, 0 to 1 (`overlap_of`).
        acceptance: the chance that a draft is right, 0 to 1.
        width: tokens of a pass, the drafts and one.
        misses: a token with the cache, in those without drafts (`misses_with_drafts`); None = not simulated.
    """
    return judge_ratio(union_from_overlap(used, rho, width) / used, acceptance, width=width, misses=misses)


def judge_ratio(experts: float, acceptance: float, *, width: int = 2, misses: float | None = None) -> PassVerdict:
    """The same where it is known what a pass needs, in the experts of one token."""
    tokens, even = tokens_a_pass(acceptance, width), break_even_of(experts, width)
    ceiling = 1 / (1 - acceptance) if acceptance < 1 else float("inf")
    told = (f"A pass over {width} tokens reads {experts:.3f} times the experts of one and writes {tokens:.3f} tokens "
            f"at an acceptance of {acceptance:.3f}")
    if tokens < experts:
        by = f"Speculation loses here, by {100 * (experts / tokens - 1):.0f} %"
        if round(100 * (experts / tokens - 1)) < 1:
            by = "Speculation loses here by a hair"
        rest = (f"; wider passes cannot help, {ceiling:.2f} tokens are the most at that acceptance" if ceiling < experts
                else f"; from {even:.3f} on it would win" if even is not None else "")
        return PassVerdict(True, f"{by}: {told[0].lower()}{told[1:]}{rest}.", experts, tokens, even, misses)
    if misses is not None and misses > 1:
        return PassVerdict(True, f"Speculation loses here: {told[0].lower()}{told[1:]}, but with this cache "
                           f"{misses:.2f} times as much has to be read for a token.", experts, tokens, even, misses)
    return PassVerdict(False, f"{told}: fewer experts a token by {100 * (1 - experts / tokens):.0f} %. What has to be "
                       "read from disk hardly becomes less: drafts save a pass's fixed cost, no miss.", experts, tokens,
                       even, misses)


# ---------------------------------------------------------------------------------------------
# Of a trace


def overlap_of(trace: Trace) -> float | None:
    """The part of a decoded token's experts that the token before had too; None where there are no two."""
    shared = total = 0
    for before, now in _neighbours(trace, 2):
        for layer, row in now.items():
            if layer in before:
                shared += len(set(row) & set(before[layer]))
                total += len(row)
    return shared / total if total else None


def union_of(trace: Trace, width: int) -> float | None:
    """Experts of a layer that so many tokens in a row need together; None where there are not so many."""
    found = total = 0
    for window in _neighbours(trace, width):
        for layer in window[-1]:
            rows = [one[layer] for one in window if layer in one]
            if len(rows) == width:
                found += len(set().union(*rows))
                total += 1
    return found / total if total else None


def misses_with_drafts(trace: Trace, room: int, acceptance: float, width: int = 2,
                       layer_bytes: Mapping[int, int] | None = None, *, seed: int = 0) -> float | None:
    """Bytes that have to be read for a token with drafts, in those without; None where nothing has to be.

    A draft that is right asks for what its token will; one that is wrong for what another token of the trace does, so
    this is somewhat pessimistic.

    Args:
        room: bytes for experts (number of experts without `layer_bytes`).

    Raises:
        ModelFileError: nothing is decoded in the trace.
    """
    tokens = [token for run in _runs(trace) for token in run]
    if not tokens:
        raise ModelFileError("Nothing is decoded in the trace.", "Record a longer one.")
    dice, passes, at, skip = random.Random(seed), [], 0, len(tokens) // 4
    warm = 0
    while at < len(tokens):
        right = 0
        while right < width - 1 and dice.random() < acceptance:
            right += 1
        rows = [*tokens[at:at + 1 + right], *(dice.choice(tokens) for _ in range(width - 1 - right))]
        warm += len(rows) if at < skip else 0
        passes += _passes(rows)
        at += 1 + right
    plain = [one for token in tokens for one in _passes([token])]
    alone = lru(requests_of(Trace(trace.layers, trace.experts, 1, tuple(plain)), layer_bytes, skip=skip))
    drafted = lru(requests_of(Trace(trace.layers, trace.experts, width, tuple(passes)), layer_bytes, skip=warm))
    without = alone.missing(room)
    if without <= 0:
        return None
    read = drafted.missing(room) * drafted.requests.tokens
    return read / (len(tokens) - skip) / without


def _passes(rows: list[Rows]) -> list[Routed]:
    return [Routed(layer, tuple(row[layer] for row in rows if layer in row)) for layer in sorted(rows[0])]


def _neighbours(trace: Trace, width: int) -> Iterator[list[Rows]]:
    for run in _runs(trace):
        for at in range(len(run) - width + 1):
            yield run[at:at + width]


def _runs(trace: Trace) -> list[list[Rows]]:
    """Decoded tokens, each its experts by layer; a prompt ends a run. Rows of one pass count as tokens in a row."""
    first = min((routed.layer for routed in trace.passes), default=0)
    runs: list[list[Rows]] = [[]]
    decoding, here = False, 0
    for routed in trace.passes:
        if routed.layer == first:
            decoding, here = len(routed.rows) <= trace.decode_rows, len(routed.rows)
            if decoding:
                runs[-1] += [{} for _ in range(here)]
            elif runs[-1]:
                runs.append([])
        if decoding:
            for token, row in zip(runs[-1][-here:], routed.rows, strict=False):
                token[routed.layer] = row
    return [[token for token in run if token] for run in runs if run]
