"""Drafters that race: who wins, who is waited for, who is put aside. Time is the test's own."""

from __future__ import annotations

import asyncio

import pytest

from fleet.speculation.drafters import Context, DraftFailed, Guess
from fleet.speculation.race import FIRST_ASIDE, Race, Runner
from fleet.speculation.settings import DrafterKind


class Scripted:
    """A drafter that answers when it is told to."""

    def __init__(self, name: str, kind: DrafterKind = DrafterKind.LLAMA_SERVER, ids: tuple[int, ...] = (1, 2)) -> None:
        self.name, self.kind, self.ids = name, kind, ids
        self.may, self.begun = asyncio.Event(), asyncio.Event()
        self.may.set()
        self.fails = ""
        self.asked = self.cancelled = 0

    async def draft(self, context: Context, most: int) -> Guess:
        self.asked += 1
        self.begun.set()
        try:
            await self.may.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.fails:
            raise DraftFailed(self.fails)
        return Guess(self.ids[:most])

    def close(self) -> None:
        pass


def race(*drafters: Scripted, deadline: float = 0.2, grace: float = 0.05) -> Race:
    clock = asyncio.get_running_loop().time
    return Race([Runner(drafter) for drafter in drafters], clock, deadline, dict.fromkeys(DrafterKind, grace))


CONTEXT = Context([7])


async def test_the_one_with_the_better_record_wins() -> None:
    good, bad = Scripted("good", ids=(1, 1, 1)), Scripted("bad", ids=(2, 2, 2))
    track = race(bad, good)
    for _ in range(10):
        track.judged("good", 3, 3)
        track.judged("bad", 3, 0)
    draft = await track.draft(CONTEXT, 3)
    assert draft is not None and draft.drafter == "good"


async def test_a_straggler_is_cancelled_after_its_grace_and_not_put_aside() -> None:
    quick, slow = Scripted("quick"), Scripted("slow")
    slow.may.clear()
    track = race(quick, slow, deadline=30, grace=0.02)
    track.named("slow").right = 50.0
    draft = await track.draft(CONTEXT, 2)
    assert draft is not None and draft.drafter == "quick" and slow.cancelled == 1
    assert len(track.alive()) == 2


async def test_nobody_is_waited_for_who_could_not_win() -> None:
    quick, hopeless = Scripted("quick", ids=(1,) * 8), Scripted("hopeless")
    hopeless.may.clear()
    track = race(quick, hopeless, deadline=300, grace=300)
    for _ in range(20):
        track.judged("hopeless", 8, 0)
        track.judged("quick", 8, 8)
    async with asyncio.timeout(10):
        draft = await track.draft(CONTEXT, 8)
    assert draft is not None and draft.drafter == "quick"


async def test_one_that_hangs_costs_one_deadline_and_is_put_aside_for_longer_each_time() -> None:
    hung = Scripted("hung")
    hung.may.clear()
    track = race(hung, deadline=0.02)
    assert await track.draft(CONTEXT, 2) is None
    assert track.alive() == [] and "no draft within" in track.state()[0]["problem"]
    assert await track.draft(CONTEXT, 2) is None and hung.asked == 1
    runner = track.named("hung")
    runner.aside_until = 0.0
    await track.draft(CONTEXT, 2)
    assert runner.aside_until - track.clock() > FIRST_ASIDE


async def test_one_that_fails_is_put_aside_and_comes_back() -> None:
    one = Scripted("one")
    one.fails = "It is gone."
    track = race(one)
    assert await track.draft(CONTEXT, 2) is None and track.state()[0]["state"] == "aside"
    one.fails, track.named("one").aside_until = "", 0.0
    draft = await track.draft(CONTEXT, 2)
    assert draft is not None and track.state()[0]["state"] == "ready"


async def test_the_chosen_one_is_waited_for_and_the_ngrams_stand_in_for_it() -> None:
    chosen, other, ngram = Scripted("chosen"), Scripted("other"), Scripted("ngram", DrafterKind.NGRAM, (9, 9))
    track = race(ngram, chosen, other)
    draft = await track.draft(CONTEXT, 2, only="chosen")
    assert draft is not None and draft.drafter == "chosen" and other.asked == 0
    chosen.fails = "gone"
    draft = await track.draft(CONTEXT, 2, only="chosen")
    assert draft is not None and draft.drafter == "ngram"


async def test_nothing_to_say_is_no_failure() -> None:
    silent = Scripted("silent", ids=())
    track = race(silent)
    assert await track.draft(CONTEXT, 2) is None
    assert track.alive() and track.state()[0]["state"] == "ready"


async def test_a_client_that_leaves_ends_all_drafters() -> None:
    one, two = Scripted("one"), Scripted("two")
    one.may.clear()
    two.may.clear()
    track = race(one, two, deadline=300)
    task = asyncio.create_task(track.draft(CONTEXT, 2))
    await one.begun.wait()
    await two.begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert one.cancelled == two.cancelled == 1
