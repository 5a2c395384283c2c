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


class Odd(Recorded):
    """A step with a fault that nobody foresaw, on the way there or back."""

    def __init__(self, title, diary, *, there=None, back=None):
        super().__init__(title, diary)
        self.there, self.back = there, back

    async def do(self, report):
        await super().do(report)
        if self.there:
            raise self.there

    async def undo(self, report):
        await super().undo(report)
        if self.back:
            raise self.back


@pytest.mark.parametrize("error", [OSError(24, "Too many open files"), KeyError("x"), UnicodeDecodeError(
    "utf-8", b"\xff", 0, 1, "no"), RuntimeError("loop")])
async def test_a_fault_that_nobody_foresaw_is_told_and_undone_like_any_other(error):
    diary = []
    run, told = runner([Recorded("a", diary), Odd("b", diary, there=error)])
    operation = await run.run()
    assert diary == ["do a", "do b", "undo b", "undo a"]
    assert (operation.state, operation.problem.code) == (OperationState.FAILED, "internal")
    assert operation.problem.what.startswith("Quarterdeck made a mistake at the step “b”: ")
    assert told[-1] == operation


@pytest.mark.parametrize("error", [OSError(32, "Broken pipe"), StartFailed("bolt is not connected.")])
async def test_what_cannot_be_undone_is_said_and_the_rest_is_undone(error):
    diary = []
    run, _ = runner([Recorded("a", diary), Odd("b", diary, back=error), Recorded("c", diary, fails=True)])
    operation = await run.run()
    assert diary[3:] == ["undo c", "undo b", "undo a"]
    assert operation.problem.what.startswith("c broke. “b” could not be undone: ")
    assert "quarterdeck down" in operation.problem.remedy


async def test_a_second_cancellation_does_not_leave_an_undo_half_done():
    diary, waits, undoing, go_on = [], asyncio.Event(), asyncio.Event(), asyncio.Event()

    class Slow(Recorded):
        async def undo(self, report):
            undoing.set()
            await go_on.wait()
            await super().undo(report)

    run, told = runner([Recorded("a", diary), Slow("b", diary), Recorded("c", diary, waits=waits)])
    task = asyncio.ensure_future(run.run())
    await waits.wait()
    task.cancel()
    await undoing.wait()
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert diary[-3:] == ["undo c", "undo b", "undo a"]
    assert told[-1].state is OperationState.CANCELLED


async def test_a_cancellation_while_a_failure_is_undone_does_not_stop_the_undo():
    diary, undoing, go_on = [], asyncio.Event(), asyncio.Event()

    class Slow(Recorded):
        async def undo(self, report):
            undoing.set()
            await go_on.wait()
            await super().undo(report)

    run, told = runner([Slow("a", diary), Recorded("b", diary, fails=True)])
    task = asyncio.ensure_future(run.run())
    await undoing.wait()
    task.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert diary[-2:] == ["undo b", "undo a"]
    assert (told[-1].state, told[-1].problem.what) == (OperationState.FAILED, "b broke.")
