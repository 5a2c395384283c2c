"""Who follows the heads: when all of them were looked at once, and that nobody waits for those that are gone."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from fleet.config.schema import FleetConfig
from fleet.errors import NodeUnreachable
from fleet.model import Node, NodeReading, ServiceKind, ServiceRecord, Snapshot
from fleet.runtimes.witness import Witness

HEAD = ServiceRecord("coordinator-8080", ServiceKind.COORDINATOR, 7, "1", (), 8080, "127.0.0.1", True, 0.0, "/s")


@dataclass
class Context:
    """An engine whose only node is not reached while it is asked for its head."""

    config: FleetConfig = field(default_factory=FleetConfig)
    asked: int = 0

    def clock(self) -> float:
        return 0.0

    def snapshot(self) -> Snapshot:
        return Snapshot(nodes={"atlas": Node("atlas", reading=NodeReading(services=(HEAD,)))})

    def supervisor(self, node: str) -> None:
        self.asked += 1
        raise NodeUnreachable(f"{node} does not answer.", "Wait.")

    transport = supervisor


@pytest.fixture
async def witness():
    watching = Witness(Context(), lambda _node: None)
    yield watching
    await watching.close()


async def test_all_heads_count_as_looked_at_once_each_was_asked_whatever_came_of_it(witness: Witness):
    await witness.looked()                 # nobody to wait for
    witness.look("atlas")
    assert witness._context.asked == 0
    async with asyncio.timeout(5):
        await witness.looked()
    assert witness._context.asked == 1


async def test_nobody_waits_for_the_head_of_a_node_that_is_gone(witness: Witness):
    witness.look("atlas")
    waiting = asyncio.ensure_future(witness.looked())
    await asyncio.sleep(0)
    witness.forget("atlas")
    async with asyncio.timeout(5):
        await waiting
