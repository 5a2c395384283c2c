"""Operations as step lists."""

from __future__ import annotations

from app.present.units import count, duration, span
from app.present.words import OPERATION_SIGNS, STEP_SIGNS, problem_entries
from fleet.model import Operation, OperationState, Snapshot, StepRecord, StepState
from widgets.entries import Entry, Heading, Paragraph
from widgets.spans import Line, Span, Tone, line
from widgets.steps import StepEntry

SHOWN_AFTER = 8.0              # seconds that a successful operation stays on the screen


def current(snapshot: Snapshot, now: float, dismissed: int) -> Operation | None:
    """The operation to show: one that runs, or the last one for a while; a failed one until it is dismissed.

    `dismissed` is the id of the newest operation that the user has put away.
    """
    if (running := under_way(snapshot)) is not None:
        return running
    if not snapshot.operations:
        return None
    last = snapshot.operations[-1]
    if last.id <= dismissed or last.state is OperationState.PLANNED:
        return None
    if last.state is OperationState.DONE and last.ended is not None and now - last.ended > SHOWN_AFTER:
        return None
    return last


def under_way(snapshot: Snapshot) -> Operation | None:
    """The operation that runs."""
    return next((each for each in reversed(snapshot.operations) if each.state is OperationState.RUNNING), None)


def is_over(operation: Operation) -> bool:
    """Whether nothing more comes of it."""
    return operation.state not in (OperationState.PLANNED, OperationState.RUNNING)


def went_well(operation: Operation) -> bool:
    """Whether it did what it was begun for."""
    return operation.state is OperationState.DONE


def title(operation: Operation, now: float) -> Line:
    """State and title in one line."""
    sign = OPERATION_SIGNS[operation.state]
    took = ""
    if operation.ended is not None:
        took = duration(operation.ended - operation.started)
    elif operation.state is OperationState.RUNNING:
        took = span(now - operation.started)
    done = sum(step.state in (StepState.DONE, StepState.SKIPPED) for step in operation.steps)
    of = f"{done}/{len(operation.steps)} " if operation.steps else ""
    return line(*sign.line, Span(f"  {of}{took}".rstrip(), Tone.MUTED))


def heading(operation: Operation, now: float) -> Heading:
    """What is done, and how it stands."""
    return Heading(operation.title, title(operation, now))


def steps(operation: Operation, now: float) -> tuple[StepEntry, ...]:
    """Its steps."""
    planned = operation.state is OperationState.PLANNED
    return tuple(_step(step, now, planned) for step in operation.steps)


def _step(step: StepRecord, now: float, planned: bool) -> StepEntry:
    sign = STEP_SIGNS[step.state]
    took = ""
    if step.started is not None and step.ended is not None:
        took = duration(step.ended - step.started)
    elif step.started is not None and step.state is StepState.RUNNING and now - step.started >= 5:
        took = span(now - step.started)
    moving = step.state in (StepState.RUNNING, StepState.UNDOING)
    return StepEntry(
        glyph=sign.glyph, word=sign.word, title=step.title, tone=sign.tone, detail=step.detail,
        progress=round(step.progress, 2) if step.progress is not None and moving else None,
        took=took, current=moving, dim=step.state is StepState.WAITING and not planned,
        telling=step.state is StepState.FAILED and not planned)


def outcome(operation: Operation) -> tuple[Entry, ...]:
    """Why it failed or was refused."""
    return problem_entries(operation.problem) if operation.problem is not None else ()


def remarks(operation: Operation) -> tuple[Entry, ...]:
    """What to know before it runs."""
    return tuple(Paragraph(line(Span("▲ ", Tone.WARN), remark), 2) for remark in operation.remarks)


def lead(operation: Operation, now: float) -> tuple[Entry, ...]:
    """What stands above the steps: the title, and the reason when it went wrong, which is what is looked for."""
    return (heading(operation, now), *outcome(operation))


def detail(operation: Operation, now: float) -> tuple[Entry, ...]:
    """The whole of it for a pane."""
    return (*lead(operation, now), *steps(operation, now))


def in_one_sentence(operation: Operation) -> str:
    """For a toast when it is over."""
    match operation.state:
        case OperationState.DONE:
            return f"{operation.title}: done."
        case OperationState.REFUSED | OperationState.FAILED if operation.problem is not None:
            return f"{operation.title}: {operation.problem.what}"
        case _:
            return f"{operation.title}: {OPERATION_SIGNS[operation.state].word}."


def plan_summary(operation: Operation) -> str:
    """How much a plan is."""
    fresh = [step for step in operation.steps if step.state is not StepState.SKIPPED]
    nodes = {step.node for step in fresh if step.node}
    return f"{count(len(fresh), 'step')} on {count(len(nodes), 'node')}" if nodes else count(len(fresh), "step")
