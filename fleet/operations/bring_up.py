"""Bring a model up over the fleet: what of it is done already is left alone, the rest is a Plan of Steps.

Order, for what it costs to get it wrong (a second head on a busy worker hangs without a word and kills the worker
later): stop the old head, see its workers' slots free, start the workers that are missing or differ, ask each, start
the head, follow its load, prove the placement, ask for one token.
"""

from __future__ import annotations

from fleet.config.schema import RuntimeName
from fleet.events import BringUp
from fleet.facts import head_facts, recent_after
from fleet.operations.arrangement import Arrangement, Seat
from fleet.operations.deaths import LOST
from fleet.operations.expert_steps import LimitHolds, steps_before
from fleet.operations.hands import Hands, Known, node_of, record_of
from fleet.operations.head_steps import FollowLoad, SmokeTest, StartHead, VerifyPlacement
from fleet.operations.hold_steps import ALIVE, DrainRequests, HoldRequests, ReleaseRequests, held_for
from fleet.operations.lease import ReleaseLease, TakeLease
from fleet.operations.plan import Plan, Step
from fleet.operations.preflight import arrange
from fleet.operations.proxy_steps import ProxyWays, proxy_steps
from fleet.operations.reduced import reduced
from fleet.operations.served import comes_to_serve, old_heads, old_stages
from fleet.operations.services import StartRecorded, StopRecorded
from fleet.operations.slot_steps import KeepPrompts, ReadPromptsBack
from fleet.operations.tunnel_steps import StartRelay
from fleet.operations.vllm_up import plan_vllm_up
from fleet.operations.warm_steps import WarmFile
from fleet.operations.worker_steps import WorkerAnswers
from fleet.planning.choose import find_model
from fleet.planning.rules import warnings


async def plan_bring_up(hands: Hands, known: Known, command: BringUp) -> Plan:
    """The Plan that brings a model up; one without Steps when it serves already as wanted.

    Raises:
        PlanRefused: it cannot work; nothing was started.
    """
    wanted = command.model
    if command.without or command.spare:
        hands = reduced(hands, command)
    model = find_model(hands.snapshot(), hands.config, wanted)
    if model.runtime is RuntimeName.VLLM:
        return await plan_vllm_up(hands, model)
    arrangement = await arrange(hands, known, wanted)
    choice = arrangement.choice
    title = f"Bring up {choice.model.name} on {arrangement.head_node}"
    if arrangement.seats:
        count = len(arrangement.seats)
        title += f" with {count} worker{'s' if count != 1 else ''}"
    if await comes_to_serve(hands, arrangement):
        proxies = await proxy_steps(hands)
        return Plan("up", f"{choice.model.name} serves already, as wanted", proxies, remarks=choice.left_out)
    streamed = arrangement.streaming.remarks if arrangement.streaming else ()
    remarks = (*choice.left_out, *_lost(hands, arrangement), *streamed, *map(str, warnings(arrangement.verdicts)))
    old = hands.snapshot().deployment.model
    arrangement.recent = _recent(hands, choice.model.name)
    swaps = bool(old) and old != choice.model.name and held_for(hands, choice.model.name) is not None
    steps = _steps(hands, arrangement, await proxy_steps(hands), command.drain)
    return Plan("swap" if swaps else "up", f"Swap {old}: {title[0].lower()}{title[1:]}" if swaps else title,
                tuple(steps), arrangement.head_node, remarks)


def _steps(hands: Hands, arrangement: Arrangement, proxies: tuple[Step, ...], drain: float) -> list[Step]:
    lease = TakeLease(hands, arrangement.head_node, [seat.choice.node.name for seat in arrangement.seats])
    steps: list[Step] = [lease, *proxies]
    held = held_for(hands, arrangement.choice.model.name)
    if held is not None:
        serves = hands.snapshot().deployment.state in ALIVE      # else nobody gains by waiting for the disk first
        steps += [WarmFile(hands, arrangement)] if serves else []
        steps += [HoldRequests(held), DrainRequests(held, drain)]
        steps += [KeepPrompts(hands, held.was)] if hands.config.serving.keep_prompts else []
    steps += [StopRecorded(hands, node, record) for node, record in old_heads(hands, arrangement)]
    steps += [StopRecorded(hands, node, record) for node, record in old_stages(hands)]
    for seat in arrangement.seats:
        steps += _worker_steps(hands, seat, anew=seat.endpoint in arrangement.left_over)
    steps += [StartRelay(hands, arrangement, seat) for seat in arrangement.seats if seat.tunnelled]
    steps += [WorkerAnswers(hands, arrangement, seat) for seat in arrangement.seats]
    streamed = arrangement.streaming
    steps += [] if streamed is None else steps_before(hands, arrangement.head_node, streamed)
    steps += [StartHead(hands, arrangement), FollowLoad(hands, arrangement), VerifyPlacement(hands, arrangement),
              SmokeTest(hands, arrangement)]
    steps += [ReadPromptsBack(hands, arrangement)] if hands.config.serving.keep_prompts else []
    steps += [] if streamed is None else [LimitHolds(hands, arrangement.head_node, arrangement.head_service, streamed)]
    steps.append(ProxyWays(hands, arrangement))
    steps += [ReleaseRequests(held)] if held is not None else []
    return [*steps, ReleaseLease(lease)]


def _recent(hands: Hands, model: str) -> tuple[str, ...]:
    """What was served before `model`, by what is written beside the head that is there."""
    deployment = hands.snapshot().deployment
    there = hands.snapshot().nodes.get(deployment.head)
    record = record_of(there, deployment.head_service) if there is not None else None
    return recent_after(head_facts(record.facts), model) if record is not None else ()


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
