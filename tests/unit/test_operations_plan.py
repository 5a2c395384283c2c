"""Plans: steps in order, undone newest first, and what the screens are told."""

import asyncio
from itertools import count

import pytest

from fleet.errors import StartFailed
from fleet.model import OperationState, StepState
from fleet.operations.plan import Plan, Runner, Step


class Recorded(Step):
    """A step that writes down what was done with it."""

    def __init__(self, title, diary, *, fails=False, already=None, waits=None):
        self.title, self.diary, self.fails, self.already, self.waits = title, diary, fails, already, waits

    async def check(self):
        return self.already

    async def do(self, report):
        self.diary.append(f"do {self.title}")
        report("working", 0.5)
        if self.waits:
            self.waits.set()
            await asyncio.Event().wait()
        if self.fails:
            raise StartFailed(f"{self.title} broke.", "Mend it.")

    async def undo(self, report):
        self.diary.append(f"undo {self.title}")


def runner(steps):
    told = []
    ticks = count()
    return Runner(Plan("up", "Bring up", tuple(steps)), 1, lambda: float(next(ticks)), told.append), told


async def test_steps_run_in_order_and_what_is_so_already_is_skipped():
    diary = []
    run, told = runner([Recorded("a", diary), Recorded("b", diary, already="runs"), Recorded("c", diary)])
    operation = await run.run()
    assert diary == ["do a", "do c"]
    assert operation.state is OperationState.DONE
    assert [s.state for s in operation.steps] == [StepState.DONE, StepState.SKIPPED, StepState.DONE]
    assert told[-1] == operation


async def test_a_failure_undoes_what_was_done_newest_first_and_keeps_the_reason():
    diary = []
    failing = Recorded("c", diary, fails=True)
    run, _ = runner([Recorded("a", diary), Recorded("b", diary), failing, Recorded("d", diary)])
    operation = await run.run()
    assert diary == ["do a", "do b", "do c", "undo c", "undo b", "undo a"]
    assert operation.state is OperationState.FAILED
    assert operation.problem.what == "c broke."
    states = [step.state for step in operation.steps]
    assert states == [StepState.UNDONE, StepState.UNDONE, StepState.FAILED, StepState.WAITING]
    assert operation.steps[2].detail == "c broke."


async def test_a_step_that_was_skipped_is_not_undone():
    diary = []
    run, _ = runner([Recorded("a", diary, already="runs"), Recorded("b", diary, fails=True)])
    await run.run()
    assert diary == ["do b", "undo b"]


async def test_one_undo_that_fails_does_not_stop_the_others():
    class Stubborn(Recorded):
        async def undo(self, report):
            raise StartFailed("cannot be undone")

    diary = []
    run, _ = runner([Recorded("a", diary), Stubborn("b", diary), Recorded("c", diary, fails=True)])
    operation = await run.run()
    assert diary[-1] == "undo a"
    assert "could not be undone" in operation.steps[1].detail


async def test_cancelling_undoes_too_and_is_raised_after_that():
    diary, reached = [], asyncio.Event()
    run, told = runner([Recorded("a", diary), Recorded("b", diary, waits=reached)])
    task = asyncio.ensure_future(run.run())
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert diary == ["do a", "do b", "undo b", "undo a"]
    assert told[-1].state is OperationState.CANCELLED


async def test_progress_stays_a_fraction():
    class Wild(Step):
        title = "wild"

        async def do(self, report):
            report("x", 7.0)

    told = []
    await Runner(Plan("up", "t", (Wild(),)), 1, lambda: 0.0, told.append).run()
    assert max(s.progress or 0 for o in told for s in o.steps) == 1.0
