"""Plans before deeds: a Plan is a list of Steps, each with a check, a deed and an undo.

The same Plan is printed by `--dry-run`, shown before it runs, and shown while it runs. When a Step fails or the
operation is cancelled, the Steps that were done are undone, newest first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from fleet.errors import FleetError, OperationFailed
from fleet.model import Operation, OperationState, Problem, StepRecord, StepState

UNDO_TIMEOUT = 60.0   # seconds for the undo of one step: a node that is gone must not hold up the rest


class Report:
    """What a running Step tells of itself: `detail` in a few words, `progress` as a fraction of one."""

    def __init__(self, tell: Callable[[str | None, float | None], None]) -> None:
        self._tell = tell

    def __call__(self, detail: str | None = None, progress: float | None = None) -> None:
        self._tell(detail, progress)


class Step:
    """One deed on the way. Subclasses say what they do; a Step that only looks needs no undo."""

    title = ""
    node = ""
    undo_within = UNDO_TIMEOUT        # seconds

    async def check(self) -> str | None:
        """A few words when it is so already and nothing has to be done; else None."""
        return None

    async def do(self, report: Report) -> None:
        """Do it, or raise a `FleetError`."""
        raise OperationFailed(f"The step “{self.title}” does not say what it does.")

    async def undo(self, report: Report) -> None:
        """Make it as if it had not been done. Called also when `do` failed half-way."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What will be done, in order."""

    kind: str
    title: str
    steps: tuple[Step, ...] = ()
    node: str = ""
    remarks: tuple[str, ...] = ()   # what the user should know before it runs

    def as_operation(self, number: int, state: OperationState = OperationState.PLANNED) -> Operation:
        """The Plan as the screens show it, before anything was done."""
        return Operation(number, self.kind, self.title, state,
                         tuple(StepRecord(step.title, step.node) for step in self.steps), remarks=self.remarks)


def problem_of(error: Exception, where: str) -> Problem:
    """An error as a Problem; one that was not foreseen is said to be ours, and never ends the engine."""
    if isinstance(error, FleetError):
        return Problem(error.code, error.what, error.remedy)
    return Problem("internal", f"Quarterdeck made a mistake {where}: {type(error).__name__}: {str(error)[:300]}.",
                   "Please report it, with the log.")


def _with_left(problem: Problem, left: tuple[str, ...]) -> Problem:
    if not left:
        return problem
    return replace(problem, what=" ".join((problem.what, *left)),
                   remedy=f"{problem.remedy} Run `quarterdeck down` when everything can be reached again.".strip())


class Runner:
    """Runs one Plan and tells every change of it as an `Operation`."""

    def __init__(self, plan: Plan, number: int, clock: Callable[[], float], tell: Callable[[Operation], None]) -> None:
        self._plan = plan
        self._clock = clock
        self._tell = tell
        self._operation = plan.as_operation(number, OperationState.RUNNING)
        self._operation = replace(self._operation, started=clock())

    async def run(self) -> Operation:
        """Run all Steps. Gives the ended Operation; only a cancellation is raised, after the undo."""
        self._tell(self._operation)
        reached = -1
        try:
            for reached, step in enumerate(self._plan.steps):
                await self._run_step(reached, step)
        except asyncio.CancelledError:
            self._end_step(reached, StepState.FAILED, "cancelled")
            left = await self._undo_to_the_end(reached)
            what = f"{self._plan.title}: cancelled{'' if left else ' and undone'}."
            self._end(OperationState.CANCELLED, _with_left(Problem("cancelled", what), left))
            raise
        except Exception as error:
            problem = problem_of(error, f"at the step “{self._plan.steps[reached].title}”")
            self._end_step(reached, StepState.FAILED, problem.what)
            left = await self._undo_to_the_end(reached)
            return self._end(OperationState.FAILED, _with_left(problem, left))
        return self._end(OperationState.DONE, None)

    async def _run_step(self, index: int, step: Step) -> None:
        self._change(index, state=StepState.RUNNING, started=self._clock())
        already = await step.check()
        if already is not None:
            self._change(index, state=StepState.SKIPPED, detail=already, ended=self._clock())
            return
        await step.do(self._reporter(index))
        self._change(index, state=StepState.DONE, progress=None, ended=self._clock())

    async def _undo_to_the_end(self, reached: int) -> tuple[str, ...]:
        """Undo, and let no cancellation (a second one, or the engine's end) leave it half done."""
        undoing = asyncio.ensure_future(self._undo(reached))
        cancelled = False
        while not undoing.done():
            try:
                await asyncio.shield(undoing)
            except asyncio.CancelledError:
                cancelled = True
        if cancelled and (task := asyncio.current_task()) is not None:
            task.cancel()       # said again, now that nothing is left half done
        return undoing.result()

    async def _undo(self, reached: int) -> tuple[str, ...]:
        """Undo the steps up to `reached`, newest first; one that cannot be undone does not stop the others.

        Gives a sentence for each that could not be undone.
        """
        left = []
        for index in range(reached, -1, -1):
            record = self._operation.steps[index]
            if record.state not in (StepState.DONE, StepState.FAILED):
                continue
            step = self._plan.steps[index]
            if type(step).undo is Step.undo:
                continue
            failed = record.state is StepState.FAILED
            reason = record.detail
            self._change(index, state=StepState.UNDOING)
            try:
                async with asyncio.timeout(step.undo_within):
                    await step.undo(self._reporter(index))
            except TimeoutError:
                why = f"no answer within {step.undo_within:.0f} s"
            except Exception as error:
                why = problem_of(error, "while it was undone").what
            else:
                why = ""
            if why:
                left.append(f"“{step.title}” could not be undone: {why}")
                self._change(index, state=StepState.FAILED, detail=f"could not be undone: {why}")
            else:
                state = StepState.FAILED if failed else StepState.UNDONE
                self._change(index, state=state, progress=None, detail=reason if failed else "undone")
        return tuple(left)

    def _reporter(self, index: int) -> Report:
        def tell(detail: str | None, progress: float | None) -> None:
            changes: dict[str, object] = {}
            if detail is not None:
                changes["detail"] = detail
            if progress is not None:
                changes["progress"] = min(max(progress, 0.0), 1.0)
            self._change(index, **changes)
        return Report(tell)

    def _end_step(self, index: int, state: StepState, detail: str) -> None:
        if 0 <= index < len(self._operation.steps):
            self._change(index, state=state, detail=detail, ended=self._clock())

    def _change(self, index: int, **changes: object) -> None:
        steps = list(self._operation.steps)
        changed = replace(steps[index], **changes)  # type: ignore[arg-type]  # names and types are this class's own
        if changed == steps[index]:
            return
        steps[index] = changed
        self._operation = replace(self._operation, steps=tuple(steps))
        self._tell(self._operation)

    def _end(self, state: OperationState, problem: Problem | None) -> Operation:
        self._operation = replace(self._operation, state=state, problem=problem, ended=self._clock())
        self._tell(self._operation)
        return self._operation
