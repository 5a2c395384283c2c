"""Sampled text has the target's distribution: a chi-square test that does not reject it, and rejects a broken walk."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Sequence

import pytest

from fleet.speculation.asking import Asker
from fleet.speculation.pieces import Pieces
from fleet.speculation.strided import verify, walk
from fleet.speculation.target import Target
from tests.unit.speculation.engines import Engine, prompts

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

SAMPLES = 1200
AT_ONCE = 3
SAMPLING = {"temperature": 0.8, "top_k": 4, "top_p": 1.0, "min_p": 0.0}


def chi_square(one: Counter[tuple[int, ...]], other: Counter[tuple[int, ...]]) -> tuple[float, float]:
    """Statistic of two samples and its limit at 0.01 (Wilson and Hilferty); rare outcomes are put together."""
    rare = {key for key in one | other if one[key] + other[key] < 12}
    cells = [(one[key], other[key]) for key in (one | other) if key not in rare]
    cells.append((sum(one[key] for key in rare), sum(other[key] for key in rare)))
    cells = [cell for cell in cells if sum(cell)]
    first, second = sum(a for a, _ in cells), sum(b for _, b in cells)
    statistic = sum((a * math.sqrt(second / first) - b * math.sqrt(first / second)) ** 2 / (a + b) for a, b in cells)
    freedom = len(cells) - 1
    limit = freedom * (1 - 2 / (9 * freedom) + 2.326 * math.sqrt(2 / (9 * freedom))) ** 3
    return statistic, limit


async def sampled(target: Target, prompt: Sequence[int], draft: Sequence[int], *, broken: bool = False
                  ) -> Counter[tuple[int, ...]]:
    """The first three tokens of many answers, with a draft at stride 1."""
    pieces = Pieces(target)

    async def one() -> tuple[int, ...]:
        ids: list[int] = []
        while len(ids) < 3:
            rest = draft[len(ids):] if list(draft[:len(ids)]) == ids else []
            context = [*prompt, *ids]
            if broken and rest:
                answers = await target.after(context, [rest[:at] for at in range(len(rest) + 1)], 1, SAMPLING,
                                             timeout=30)
                # What was accepted unseen is the draft's, and not the target's.
                ids += [*rest[:2], *walk(answers[2:], [], 1, equal=lambda *_: True).ids]
            else:
                ids += (await verify(target, context, rest, 1, SAMPLING, pieces=pieces, within=False, ascii=True,
                                     timeout=30)).ids
        return tuple(ids[:3])

    found: Counter[tuple[int, ...]] = Counter()
    for _ in range(SAMPLES // AT_ONCE):
        found.update(await asyncio.gather(*(one() for _ in range(AT_ONCE))))
    return found


async def alone(target: Target, prompt: Sequence[int]) -> Counter[tuple[int, ...]]:
    found: Counter[tuple[int, ...]] = Counter()
    for _ in range(SAMPLES // 6):
        answers = await target.after(prompt, [()] * 6, 3, SAMPLING, timeout=30)
        found.update(answer.tokens[:3] for answer in answers)
    return found


async def test_the_distribution_is_the_targets_and_the_test_would_see_it_if_it_were_not(target: Engine) -> None:
    asked = Target(Asker.at(target.url))
    # A place without an emoji or the end near: only tokens that can be asked for in one way.
    for start in prompts(target, 40, tokens=12, seed=31):
        prompt = await asked.tokenize(start, special=True)
        draft = target.complete(prompt, 3)["tokens"]
        likely = await alone(asked, prompt)
        if len(likely) > 12 and target.text(draft).isascii() and all(
                target.text(outcome).isascii() and 2 not in outcome for outcome in likely):
            break
    else:
        pytest.fail("no prompt with plain words behind it")
    statistic, limit = chi_square(likely, await sampled(asked, prompt, draft))
    assert statistic < limit
    statistic, limit = chi_square(likely, await sampled(asked, prompt, draft, broken=True))
    assert statistic > limit
