"""Plans over real hosts: who is needed, who is left alone, and that the plan is what comes up."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fleets import MODEL, bring_up, fleet_of, running, tear_down, until

from fleet.config.schema import SplitMode
from fleet.events import BringUp
from fleet.model import DeploymentState, OperationState, PlacementState, ServiceKind
from fleet.planning.propose import WhatIf

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]


async def test_a_worker_that_would_only_add_a_round_trip_is_not_started(lab):
    names = lab.plain[:3]
    config = fleet_of(lab, *names)
    config = replace(config, models={MODEL: replace(config.models[MODEL], mode=SplitMode.TIME)})
    async with running(config) as engine:
        proposal = await engine.propose()
        used = {device.node for device in proposal.devices if device.layers}
        assert len(used) == 1 and used < set(names[1:])
        assert any("gets no layer: the others have room, and it would add" in why for why in proposal.sentences)
        operation = await engine.outcome(engine.submit(BringUp("")))
        assert operation.state is OperationState.DONE, operation.problem
        assert any("takes no part: the other devices have room" in remark for remark in operation.remarks)
        snapshot = await until(engine, lambda s: s.deployment.state is DeploymentState.SERVING)
        # Both are alike: which of the two it is can turn with the links, which a bring-up measures first.
        used = {node for node, _ in snapshot.deployment.workers}
        assert len(used) == 1 and used < set(names[1:])
        assert snapshot.deployment.placement.state is PlacementState.MATCHES
        started = {node.name for node in snapshot.nodes.values() for service in node.services
                   if service.record.kind is ServiceKind.WORKER and service.record.alive}
        assert started == used
        assert (await bring_up(engine)).steps == ()
        forced = await engine.propose("", WhatIf(nodes=tuple(names[1:])))
        assert {device.node for device in forced.devices if device.layers} == set(names[1:])
        await tear_down(engine)
