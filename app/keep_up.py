"""Keeping a model up: when to bring it up again, and when to leave it alone. Pure; time is passed in."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fleet.model import DeploymentState, OperationState, Snapshot

BACK_OFF = (3.0, 15.0, 60.0)   # seconds before a try after the first, second, third and any later failure
PATIENCE = 5.0                 # seconds of being down that are no restart or swap by somebody else
STEADY = 120.0                 # seconds of serving after which the next failure counts as the first
UNDER_WAY = (OperationState.PLANNED, OperationState.RUNNING)
ALIVE = (DeploymentState.SERVING, DeploymentState.DEGRADED)
ENDED_BADLY = (DeploymentState.DOWN, DeploymentState.BROKEN)


@dataclass(frozen=True, slots=True)
class Wish:
    """A model that is to be up, and how that went so far. Times are of the engine's clock."""

    model: str                          # "" = the one that fleet.yaml names
    tried: bool = False
    failures: int = 0                   # since it last served for long
    next_try: float | None = None       # None = no try is due
    served: bool = False                # seen serving, and no try of ours has failed since
    serving_since: float | None = None
    down_since: float | None = None     # seen down although nothing of it died
    given_up: bool = False              # somebody took it down on purpose: not ours to undo


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now: bring it up or not, what to say, when to look again if nothing happens."""

    wish: Wish
    bring_up: bool = False
    say: str = ""
    wait: float | None = None


def decide(wish: Wish, snapshot: Snapshot, now: float) -> Decision:
    """What to do about `wish`, as things stand.

    A part that died makes a deployment BROKEN. One that is DOWN after it served was taken down by
    somebody, and that is respected.
    """
    if under_way(snapshot):
        return Decision(wish)
    state = snapshot.deployment.state
    if state in ALIVE:
        return _while_alive(wish, now)
    if wish.given_up or state not in ENDED_BADLY:
        return Decision(replace(wish, down_since=None))
    if state is DeploymentState.DOWN and wish.served:
        return _while_down(wish, now)
    if not wish.tried or (wish.next_try is not None and now >= wish.next_try):
        return Decision(replace(wish, tried=True, next_try=None), bring_up=True)
    if wish.next_try is not None:
        return Decision(wish, wait=wish.next_try - now)
    return _schedule(wish, now)


def under_way(snapshot: Snapshot) -> bool:
    """Whether somebody is changing the fleet at this moment."""
    return any(operation.state in UNDER_WAY for operation in snapshot.operations)


def after_failed_try(wish: Wish) -> Wish:
    """A bring-up of ours ended badly: that it is down now is nobody's wish."""
    return replace(wish, served=False)


def _while_down(wish: Wish, now: float) -> Decision:
    since = wish.down_since if wish.down_since is not None else now
    if now - since < PATIENCE:
        return Decision(replace(wish, down_since=since, next_try=None), wait=since + PATIENCE - now)
    return Decision(replace(wish, given_up=True, down_since=None), say="somebody took the model down: it stays down")


def _schedule(wish: Wish, now: float) -> Decision:
    pause = BACK_OFF[min(wish.failures, len(BACK_OFF) - 1)]
    wish = replace(wish, failures=wish.failures + 1, next_try=now + pause, serving_since=None)
    return Decision(wish, say=f"the model is not up: bringing it up again in {pause:.0f} s", wait=pause)


def _while_alive(wish: Wish, now: float) -> Decision:
    since = wish.serving_since if wish.serving_since is not None else now
    wish = replace(wish, tried=True, served=True, serving_since=since, next_try=None, down_since=None,
                   given_up=False)
    if now - since >= STEADY:
        return Decision(replace(wish, failures=0))
    return Decision(wish, wait=since + STEADY - now)
