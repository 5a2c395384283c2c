"""An operation as lines: each step once, when it has ended, and what it is about while it runs."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import TextIO

from app.exit_codes import ExitCode
from app.face import EngineFace
from app.output import TransientLine, note
from app.present.units import duration, percent
from fleet.errors import NO_SUCH
from fleet.model import Operation, OperationState, StepRecord, StepState
from fleet.text import visible

MARKS = {
    StepState.WAITING: "  · ",
    StepState.RUNNING: "... ",
    StepState.DONE: " ok ",
    StepState.SKIPPED: "  = ",
    StepState.FAILED: "FAIL",
    StepState.UNDOING: "undo",
    StepState.UNDONE: "undo",
}
ENDED = frozenset({StepState.DONE, StepState.SKIPPED, StepState.FAILED, StepState.UNDONE})
KEPT = "distribute"  # kind of an operation whose result is not undone with it: finished pieces stay
QUARTERS = 4  # lines of progress in a long step, where there is no terminal to show it on

EXIT_CODES = {
    OperationState.DONE: ExitCode.OK,
    OperationState.PLANNED: ExitCode.OK,
    OperationState.REFUSED: ExitCode.REFUSED,
    OperationState.CANCELLED: ExitCode.INTERRUPTED,
}


def exit_code(operation: Operation) -> ExitCode:
    """What a command ends with whose operation ended so."""
    if operation.state is OperationState.REFUSED and operation.problem and operation.problem.code == NO_SUCH:
        return ExitCode.NOT_THERE
    return EXIT_CODES.get(operation.state, ExitCode.FAILED)


def step_line(step: StepRecord) -> str:
    """One step: mark, sentence, what came of it, how long it took."""
    about = f": {visible(step.detail, limit=300)}" if step.detail else ""
    took = ""
    if step.state is StepState.DONE and step.started is not None and step.ended is not None:
        took = f" ({duration(step.ended - step.started)})"
    return f"[{MARKS[step.state]}] {visible(step.title)}{about}{took}"


def running_line(step: StepRecord, now_done: int, of: int) -> str:
    """The step that runs, for a line that is written over."""
    progress = f" {percent(step.progress)}" if step.progress is not None else ""
    about = f": {step.detail}" if step.detail else ""
    return f"[{now_done + 1}/{of}] {step.title}{progress}{about}"


def plan_lines(operation: Operation) -> list[str]:
    """A Plan before it runs, or why it cannot."""
    lines = [visible(operation.title)]
    lines += [f"  {number}. {visible(step.title)}" for number, step in enumerate(operation.steps, 1)]
    if not operation.steps and operation.state is OperationState.PLANNED:
        lines.append("  nothing to do")
    return lines + remark_lines(operation) + problem_lines(operation)


def remark_lines(operation: Operation) -> list[str]:
    """What to know before it runs."""
    return [f"  note: {visible(remark)}" for remark in operation.remarks]


def problem_lines(operation: Operation) -> list[str]:
    """Why an operation failed or was refused; [] when it did not."""
    problem = operation.problem
    if problem is None:
        return []
    lines = visible(problem.what, keep="\n").split("\n")
    return lines + ([f"  {visible(problem.remedy)}"] if problem.remedy else [])


def ending(operation: Operation) -> str:
    """How it ended, in a few words."""
    took = "" if operation.ended is None else f" after {duration(operation.ended - operation.started)}"
    title = visible(operation.title)
    done = all(step.state is StepState.SKIPPED for step in operation.steps)
    match operation.state:
        case OperationState.DONE:
            return f"{title}: nothing had to be done" if done else f"{title}: done{took}"
        case OperationState.FAILED if operation.kind == KEPT:
            return f"{title}: failed{took}; what came is kept, and the same command goes on from there"
        case OperationState.FAILED:
            return f"{title}: failed{took}; what was begun has been undone"
        case OperationState.CANCELLED if operation.kind == KEPT:
            return f"{title}: stopped{took}; what came is kept, and the same command goes on from there"
        case OperationState.CANCELLED:
            return f"{title}: cancelled{took} and undone"
        case OperationState.REFUSED:
            return f"{title}: refused; nothing was started"
    return f"{title}: {operation.state}"


class StepLines:
    """Prints an operation's steps as they end; on a terminal the running one stands below them."""

    def __init__(self, put: Callable[[str], None], stream: TextIO) -> None:
        self._put = put
        self._foot = TransientLine(stream)
        self._printed: dict[int, str] = {}
        self._quarter: dict[int, int] = {}
        self._remarked = False

    def show(self, operation: Operation) -> None:
        """Print what is new in `operation`; before its first step, what to know of it."""
        if operation.remarks and not self._remarked:
            self._remarked = True
            for line in remark_lines(operation):
                self._put(line)
        for index, step in enumerate(operation.steps):
            if step.state in ENDED or step.state is StepState.UNDOING:
                self._print_ended(index, step)
            elif step.state is StepState.RUNNING:
                self._show_running(operation, index, step)

    def close(self) -> None:
        """Take the line at the foot away."""
        self._foot.clear()

    def _print_ended(self, index: int, step: StepRecord) -> None:
        line = step_line(step)
        if step.state is StepState.UNDOING or self._printed.get(index) == line:
            return
        self._printed[index] = line
        self._foot.clear()
        self._put(line)

    def _show_running(self, operation: Operation, index: int, step: StepRecord) -> None:
        if self._foot.possible:
            self._foot.show(running_line(step, index, len(operation.steps)))
        elif step.progress is not None:
            quarter = int(step.progress * QUARTERS)
            if 0 < quarter < QUARTERS and quarter > self._quarter.get(index, 0):
                self._quarter[index] = quarter
                self._put(f"{step_line(step)} {percent(step.progress)}")


async def follow(engine: EngineFace, operation_id: int, put: Callable[[str], None],
                 stream: TextIO | None = None) -> Operation:
    """Print an operation's steps until it has ended. Cancelled meanwhile: it is undone, and that is said."""
    lines = StepLines(put, stream or sys.stdout)
    try:
        return await _until_ended(engine, operation_id, lines)
    except asyncio.CancelledError:
        lines.close()
        note("interrupted: undoing what was begun")
        engine.cancel(operation_id)
        operation = await _until_ended(engine, operation_id, lines)
        note(ending(operation))
        raise
    finally:
        lines.close()


async def _until_ended(engine: EngineFace, operation_id: int, lines: StepLines) -> Operation:
    while True:
        version = engine.version
        operation = next((o for o in engine.latest.operations if o.id == operation_id), None)
        if operation is not None:
            lines.show(operation)
            if operation.state not in (OperationState.PLANNED, OperationState.RUNNING):
                return operation
        await engine.changed(version)
