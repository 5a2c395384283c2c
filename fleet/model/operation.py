"""Plans that run, step by step."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from fleet.model.words import Problem


class StepState(StrEnum):
    """Where a step of an operation stands."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    SKIPPED = "skipped"                   # was so already
    FAILED = "failed"
    UNDOING = "undoing"
    UNDONE = "undone"


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step as the screens show it."""

    title: str                            # a sentence: "Start worker on bolt, port 50052"
    node: str = ""
    state: StepState = StepState.WAITING
    started: float | None = None
    ended: float | None = None
    progress: float | None = None         # 0..1
    detail: str = ""


class OperationState(StrEnum):
    """Where an operation stands."""

    PLANNED = "planned"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"                     # and undone
    CANCELLED = "cancelled"               # and undone
    REFUSED = "refused"                   # nothing was started


@dataclass(frozen=True, slots=True)
class Operation:
    """A Plan under way or over."""

    id: int
    kind: str                             # "up", "down", "start", "stop", "restart"
    title: str
    state: OperationState
    steps: tuple[StepRecord, ...] = ()
    started: float = 0.0
    ended: float | None = None
    problem: Problem | None = None        # why it failed or was refused
    remarks: tuple[str, ...] = ()         # what to know before it runs: nodes left out, requests that end
