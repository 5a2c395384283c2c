"""When what serves has broken: whether to bring it up again, on what, and when. Pure; time is passed in.

A worker that dies takes its head along (status 134); one that loses its power leaves a head that computes for ever
and looks healthy. Either way the model has to be brought up again, on what is left or on the node that came back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from fleet.config.schema import RecoverPolicy
from fleet.model import DeploymentState, NodeState, Operation, OperationState, Problem, Snapshot

BACK_OFF = (0.0, 3.0, 15.0, 60.0)   # seconds before the first try, and after the first, second, third ... failed one
UNSEEN = 6.0          # seconds that a node may be silent: it may come back, and its connections with it
STEADY = 120.0        # seconds of serving after which the next failure counts as the first
FLAPPING = 3          # times that a node was lost ...
FLAPS_WITHIN = 600.0  # ... within so many seconds: then it is put aside for as long
GONE = (NodeState.UNREACHABLE, NodeState.REFUSED, NodeState.GONE, NodeState.SILENT)
UNDER_WAY = (OperationState.PLANNED, OperationState.RUNNING)
COMES = ("up", "swap")     # kinds of operations that bring a model up
ALIVE = (DeploymentState.SERVING, DeploymentState.DEGRADED)


class Act(StrEnum):
    """What to do now."""

    NOTHING = "nothing"
    ASK = "ask"
    BRING_UP = "bring up"


@dataclass(frozen=True, slots=True)
class Memory:
    """What is remembered between two decisions. Times are of the engine's clock."""

    losses: tuple[tuple[str, float], ...] = ()         # nodes that were lost while they were used, and when
    lost: frozenset[str] = frozenset()                 # those that are lost now
    broken_since: float | None = None
    failures: int = 0                                  # tries in a row that did not help
    next_try: float | None = None
    asked: tuple[str, str, float] | None = None        # the break that a person was asked about
    serving_since: float | None = None
    used: frozenset[str] = frozenset()                 # nodes of what served last
    model: str = ""                                    # that served last: its name, else its path
    alive_at: float = float("-inf")                    # when something was last seen to serve


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do, and what to remember. `wait`: seconds after which to look again if nothing happens."""

    memory: Memory
    act: Act = Act.NOTHING
    model: str = ""
    without: tuple[str, ...] = ()
    sentence: str = ""                                 # why, for the log and for the question
    wait: float | None = None


def decide(memory: Memory, snapshot: Snapshot, now: float, policy: RecoverPolicy) -> Decision:
    """What to do as things stand."""
    memory = _remember(memory, snapshot, now)
    deployment = snapshot.deployment
    if deployment.state in ALIVE:
        since = memory.serving_since if memory.serving_since is not None else now
        steady = now - since >= STEADY
        memory = replace(memory, broken_since=None, next_try=None, asked=None, serving_since=since,
                         failures=0 if steady else memory.failures)
        return Decision(memory, wait=None if steady else since + STEADY - now)
    memory = replace(memory, serving_since=None)
    failed = failed_away(memory, snapshot)
    broken = deployment.state is DeploymentState.BROKEN or failed is not None
    if policy is RecoverPolicy.OFF or not broken or not memory.model:
        return Decision(replace(memory, broken_since=None, next_try=None))
    if any(operation.state in UNDER_WAY for operation in snapshot.operations):
        return Decision(memory)
    since = memory.broken_since if memory.broken_since is not None else now
    memory = replace(memory, broken_since=since)
    if (wait := _may_come_back(snapshot, memory, since, now)) > 0:
        return Decision(memory, wait=wait)
    aside = flapping(memory, now)
    sentence = _sentence(deployment.problem or (failed.problem if failed else None), aside)
    if policy is RecoverPolicy.ASK:
        about = (deployment.head, deployment.head_service, since)
        if memory.asked == about:
            return Decision(memory)
        return Decision(replace(memory, asked=about), Act.ASK, memory.model, aside, sentence)
    if memory.next_try is None:
        memory = replace(memory, next_try=now + BACK_OFF[min(memory.failures, len(BACK_OFF) - 1)])
    assert memory.next_try is not None
    if now < memory.next_try:
        return Decision(memory, wait=memory.next_try - now)
    return Decision(replace(memory, next_try=None), Act.BRING_UP, memory.model, aside, sentence)


def tried(memory: Memory, *, well: bool) -> Memory:
    """A bring-up of ours has ended."""
    return replace(memory, failures=memory.failures + 1, next_try=None,
                   broken_since=None if well else memory.broken_since)


def flapping(memory: Memory, now: float) -> tuple[str, ...]:
    """Nodes that come and go: they are left out for a while."""
    names = [name for name, at in memory.losses if now - at < FLAPS_WITHIN]
    return tuple(sorted(name for name in set(names) if names.count(name) >= FLAPPING))


def failed_away(memory: Memory, snapshot: Snapshot) -> Operation | None:
    """The operation that took away what served, brought nothing else up and could not go back; None = there is none.

    What is down without one was taken down on purpose, by us or by somebody else.
    """
    if snapshot.deployment.state is not DeploymentState.DOWN:
        return None
    last = max((o for o in snapshot.operations if o.ended is not None), key=lambda o: o.ended or 0.0, default=None)
    failed = last is not None and last.kind in COMES and last.state is OperationState.FAILED
    return last if failed and (last.ended or 0.0) >= memory.alive_at else None


def _remember(memory: Memory, snapshot: Snapshot, now: float) -> Memory:
    deployment = snapshot.deployment
    broke_before = deployment.state is DeploymentState.BROKEN and not memory.model      # before we came
    if deployment.state in ALIVE or broke_before:
        memory = replace(memory, used=frozenset(node for node, _ in deployment.workers) | {deployment.head},
                         model=deployment.model or deployment.model_path)
        if not broke_before:
            memory = replace(memory, alive_at=now)
    elif deployment.state is DeploymentState.DOWN and failed_away(memory, snapshot) is None \
            and not any(o.kind in COMES and o.state in UNDER_WAY for o in snapshot.operations):
        memory = replace(memory, used=frozenset(), model="")     # taken down on purpose: nothing is missed
    lost = frozenset(name for name in memory.used
                     if (node := snapshot.nodes.get(name)) is None or node.state in GONE)
    losses = (*memory.losses, *((name, now) for name in sorted(lost - memory.lost)))
    return replace(memory, lost=lost, losses=tuple(loss for loss in losses if now - loss[1] < FLAPS_WITHIN))


def _may_come_back(snapshot: Snapshot, memory: Memory, since: float, now: float) -> float:
    """Seconds that a node which is only silent is still waited for; 0 = what died is dead."""
    silent = any(node.state is NodeState.SILENT for name in memory.used if (node := snapshot.nodes.get(name)))
    return max(0.0, since + UNSEEN - now) if silent else 0.0


def _sentence(problem: Problem | None, aside: tuple[str, ...]) -> str:
    why = problem.what if problem else "What served has broken."
    left = f" {', '.join(aside)} came and went several times and is left out." if aside else ""
    return f"{why}{left}"
