"""Bring a model up over the fleet: what of it is done already is left alone, the rest is a Plan of Steps.

Order, for what it costs to get it wrong (a second head on a busy worker hangs without a word and kills the worker
later): stop the old head, see its workers' slots free, start the workers that are missing or differ, ask each, start
the head, follow its load, prove the placement, ask for one token.
"""

from __future__ import annotations

import asyncio

from fleet.model import DeploymentState, ServiceRecord
from fleet.operations.arrangement import Arrangement, Seat
from fleet.operations.deaths import LOST
from fleet.operations.hands import Hands, Known, node_of, record_of
from fleet.operations.head_steps import FollowLoad, SmokeTest, StartHead, VerifyPlacement
from fleet.operations.lease import ReleaseLease, TakeLease
from fleet.operations.plan import Plan, Step
from fleet.operations.preflight import arrange
from fleet.operations.services import StartRecorded, StopRecorded
from fleet.operations.tunnel_steps import StartRelay
from fleet.operations.worker_steps import WorkerAnswers
from fleet.planning.rules import warnings

JUDGED_WITHIN = 6.0      # seconds from the first look at a head to what is known of it, on a slow link
LOOK_EVERY = 0.2
NOT_JUDGED = (DeploymentState.STARTING, DeploymentState.LOADING)


async def plan_bring_up(hands: Hands, known: Known, wanted: str) -> Plan:
    """The Plan that brings `wanted` up; one without Steps when it serves already as wanted.

    Raises:
        PlanRefused: it cannot work; nothing was started.
    """
    arrangement = await arrange(hands, known, wanted)
    choice = arrangement.choice
    title = f"Bring up {choice.model.name} on {arrangement.head_node}"
    if arrangement.seats:
        count = len(arrangement.seats)
        title += f" with {count} worker{'s' if count != 1 else ''}"
    if await _comes_to_serve(hands, arrangement):
        return Plan("up", f"{choice.model.name} serves already, as wanted", remarks=choice.left_out)
    remarks = (*choice.left_out, *_lost(hands, arrangement), *map(str, warnings(arrangement.verdicts)))
    return Plan("up", title, tuple(_steps(hands, arrangement)), arrangement.head_node, remarks)


async def _comes_to_serve(hands: Hands, arrangement: Arrangement) -> bool:
    """Whether just this serves. A head that was only just seen is given the time to be asked."""
    deadline = hands.clock() + JUDGED_WITHIN
    while True:
        deployment = hands.snapshot().deployment
        record = record_of(node_of(hands, arrangement.head_node), arrangement.head_service)
        same = (record is not None and record.alive and record.facts.get("wish") == arrangement.wish
                and (deployment.head, deployment.head_service) == (arrangement.head_node, record.id))
        if not same or deployment.state not in (DeploymentState.SERVING, *NOT_JUDGED):
            return False
        if deployment.state is DeploymentState.SERVING:
            return True
        if hands.clock() > deadline:
            return False
        await asyncio.sleep(LOOK_EVERY)


def _steps(hands: Hands, arrangement: Arrangement) -> list[Step]:
    lease = TakeLease(hands, arrangement.head_node, [seat.choice.node.name for seat in arrangement.seats])
    steps: list[Step] = [lease]
    steps += [StopRecorded(hands, node, record) for node, record in _old_heads(hands, arrangement)]
    for seat in arrangement.seats:
        steps += _worker_steps(hands, seat, anew=seat.endpoint in arrangement.left_over)
    steps += [StartRelay(hands, arrangement, seat) for seat in arrangement.seats if seat.tunnelled]
    steps += [WorkerAnswers(hands, arrangement, seat) for seat in arrangement.seats]
    steps += [StartHead(hands, arrangement), FollowLoad(hands, arrangement), VerifyPlacement(hands, arrangement),
              SmokeTest(hands, arrangement), ReleaseLease(lease)]
    return steps


def _old_heads(hands: Hands, arrangement: Arrangement) -> list[tuple[str, ServiceRecord]]:
    """Heads of ours that must end first: the one that serves, and what lies in the new one's place."""
    deployment = hands.snapshot().deployment
    places = dict.fromkeys(((deployment.head, deployment.head_service),
                            (arrangement.head_node, arrangement.head_service)))
    found = []
    for node, service in places:
        there = hands.snapshot().nodes.get(node)
        if there is not None and there.state not in LOST and (record := record_of(there, service)):
            found.append((node, record))
    return found


def _lost(hands: Hands, arrangement: Arrangement) -> list[str]:
    """What to know of a head that cannot be reached, and of the workers that it left occupied."""
    deployment = hands.snapshot().deployment
    there = hands.snapshot().nodes.get(deployment.head)
    told = []
    if there is not None and there.state in LOST:
        told.append(f"The head on {there.name} is not ended, since {there.name} is {there.state.value}: should it "
                    "still run, it loses the workers that are used now.")
    told += [f"The worker on {seat.choice.where} is started anew: a head that is gone still holds its slot."
             for seat in arrangement.seats if seat.endpoint in arrangement.left_over]
    return told


def _worker_steps(hands: Hands, seat: Seat, *, anew: bool) -> list[Step]:
    """Nothing for a worker that runs as it should; else what makes it run so."""
    if seat.spec is None:
        return []
    node = seat.choice.node.name
    record = record_of(node_of(hands, node), seat.service)
    start = StartRecorded(hands, node, seat.spec)
    if record is None:
        return [start]
    same = (record.argv, record.build, record.facts.get("env")) == (
        seat.spec.argv, seat.spec.build, seat.spec.facts.get("env"))
    if same and record.alive and not record.stopping and not anew:
        return []
    return [StopRecorded(hands, node, record), start]
