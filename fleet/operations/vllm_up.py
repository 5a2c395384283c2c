"""Bring a model up over vLLM: the second runtime that spreads one model over machines.

Order: what served ends, with its stages; with Ray its cluster starts, the head's node first, and each node is waited
for; then the first rank starts, then the others, which look for it; then all are followed until the first answers.
"""

from __future__ import annotations

from fleet.config.schema import ModelConfig
from fleet.operations.hands import Hands
from fleet.operations.lease import ReleaseLease, TakeLease
from fleet.operations.plan import Plan, Step
from fleet.operations.served import comes_to_serve, old_heads, old_stages
from fleet.operations.services import StartRecorded, StopRecorded
from fleet.operations.vllm_arrange import VllmArrangement, arrange_vllm
from fleet.operations.vllm_steps import FirstToken, FollowStages, RayStarted, SeeServed
from fleet.planning.rules import warnings


async def plan_vllm_up(hands: Hands, model: ModelConfig) -> Plan:
    """The Plan that brings a model up over vLLM; one without Steps when it serves already as wanted.

    Raises:
        PlanRefused: it cannot work; nothing was started.
    """
    arrangement = await arrange_vllm(hands, model)
    if await comes_to_serve(hands, arrangement):
        return Plan("up", f"{model.name} serves already, as wanted", remarks=arrangement.left_out)
    count = len(arrangement.seats)
    title = f"Bring up {model.name} with vLLM on {arrangement.head_node}"
    if count > 1:
        title += f" and {count - 1} more node{'s' if count > 2 else ''}"
    remarks = (*arrangement.left_out, *arrangement.pipeline.remarks, *map(str, warnings(arrangement.verdicts)))
    return Plan("up", title, tuple(_steps(hands, arrangement)), arrangement.head_node, remarks)


def _steps(hands: Hands, arrangement: VllmArrangement) -> list[Step]:
    lease = TakeLease(hands, arrangement.head_node, [seat.node.name for seat in arrangement.seats[1:]])
    steps: list[Step] = [lease]
    steps += [StopRecorded(hands, node, record) for node, record in old_heads(hands, arrangement)]
    steps += [StopRecorded(hands, node, record) for node, record in old_stages(hands)]
    head = StartRecorded(hands, arrangement.head_node, arrangement.head_spec)
    stages = [StartRecorded(hands, node, spec) for node, spec in arrangement.stage_specs]
    if arrangement.request.ray:
        for stage in stages:
            steps += [stage, RayStarted(hands, stage.node, stage.spec.id)]
        steps.append(head)
    else:
        steps += [head, *stages]
    steps += [FollowStages(hands, arrangement), SeeServed(hands, arrangement), FirstToken(hands, arrangement),
              ReleaseLease(lease)]
    return steps
