"""Recovery at work: it submits, waits, tries again, and asks a person where that is the policy."""

import asyncio
from dataclasses import replace

from fleet.config.schema import FleetConfig, RecoverPolicy
from fleet.desk import QuestionDesk
from fleet.events import BringUp, QuestionAsked
from fleet.model import Operation, OperationState, Severity
from fleet.recovery.driver import Recovery
from tests.unit.recovery.test_decide import BROKEN, SERVES, fleet


class Watched:
    """A scripted engine: what it is told to show, and what it was asked to do."""

    def __init__(self, policy: RecoverPolicy) -> None:
        self.config = FleetConfig(recover=policy)
        self.latest, self.version, self.now = fleet(SERVES), 1, 0.0
        self.submitted: list[BringUp] = []
        self.notes: list[str] = []
        self.ends = OperationState.DONE
        self.asked: list[QuestionAsked] = []
        self.news = asyncio.Event()
        self.desk = QuestionDesk(self.emit, self.clock, somebody_there=True)

    def clock(self) -> float:
        return self.now

    def emit(self, event) -> None:
        if isinstance(event, QuestionAsked):
            self.asked.append(event)
        self.show(self.latest)

    def show(self, snapshot) -> None:
        self.latest, self.version = snapshot, self.version + 1
        self.news.set()
        self.news = asyncio.Event()

    async def changed(self, since: int) -> int:
        while self.version <= since:
            await self.news.wait()
        return self.version

    def submit(self, command: BringUp) -> int:
        self.submitted.append(command)
        return len(self.submitted)

    async def outcome(self, number: int) -> Operation:
        return Operation(number, "up", "Bring up", self.ends)

    def note(self, severity: Severity, text: str) -> None:
        self.notes.append(text)


async def until(holds) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110 (what it waits for happens between two turns of the loop)
            await asyncio.sleep(0)


async def at_work(engine: Watched) -> asyncio.Task:
    task = asyncio.ensure_future(Recovery(engine, engine.desk, engine.note).run())
    await asyncio.sleep(0)
    return task


async def test_what_broke_is_brought_up_again_on_what_is_left():
    engine = Watched(RecoverPolicy.AUTO)
    task = await at_work(engine)
    engine.show(fleet(BROKEN))
    await until(lambda: engine.submitted)
    assert engine.submitted == [BringUp("gemma", (), spare=True)]
    assert "bolt was killed" in engine.notes[0]
    task.cancel()


async def test_a_person_is_asked_and_a_no_leaves_it_broken():
    engine = Watched(RecoverPolicy.ASK)
    task = await at_work(engine)
    engine.show(fleet(BROKEN))
    await until(lambda: engine.asked)
    engine.desk.answer(engine.asked[0].question.id, None)
    engine.show(fleet(replace(BROKEN, since=1.0)))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not engine.submitted and len(engine.asked) == 1
    engine.show(fleet(SERVES))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    engine.now = 50.0
    engine.show(fleet(BROKEN))
    await until(lambda: len(engine.asked) == 2)
    engine.desk.answer(engine.asked[1].question.id, "yes")
    await until(lambda: engine.submitted)
    task.cancel()
