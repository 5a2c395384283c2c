"""What serves already, and what must end before something else serves: the same for every runtime."""

from __future__ import annotations

import asyncio
from typing import Protocol

from fleet.model import DeploymentState, ServiceKind, ServiceRecord
from fleet.operations.deaths import LOST
from fleet.operations.hands import Hands, node_of, record_of

JUDGED_WITHIN = 6.0      # seconds from the first look at a head to what is known of it, on a slow link
LOOK_EVERY = 0.2
NOT_JUDGED = (DeploymentState.STARTING, DeploymentState.LOADING)


class Wanted(Protocol):
    """What of an arrangement says whether it serves already."""

    @property
    def head_node(self) -> str:
        """Name of the head's node."""
        ...

    @property
    def head_service(self) -> str:
        """Service id of the head."""
        ...

    @property
    def wish(self) -> str:
        """A digest of all that is wanted."""
        ...


async def comes_to_serve(hands: Hands, wanted: Wanted) -> bool:
    """Whether just this serves. A head that was only just seen is given the time to be asked."""
    deadline = hands.clock() + JUDGED_WITHIN
    while True:
        deployment = hands.snapshot().deployment
        record = record_of(node_of(hands, wanted.head_node), wanted.head_service)
        same = (record is not None and record.alive and record.facts.get("wish") == wanted.wish
                and (deployment.head, deployment.head_service) == (wanted.head_node, record.id))
        if not same or deployment.state not in (DeploymentState.SERVING, *NOT_JUDGED):
            return False
        if deployment.state is DeploymentState.SERVING:
            return True
        if hands.clock() > deadline:
            return False
        await asyncio.sleep(LOOK_EVERY)


def old_heads(hands: Hands, wanted: Wanted) -> list[tuple[str, ServiceRecord]]:
    """Heads of ours that must end first: the one that serves, and what lies in the new one's place."""
    deployment = hands.snapshot().deployment
    places = dict.fromkeys(((deployment.head, deployment.head_service), (wanted.head_node, wanted.head_service)))
    found = []
    for node, service in places:
        there = hands.snapshot().nodes.get(node)
        if there is not None and there.state not in LOST and (record := record_of(there, service)):
            found.append((node, record))
    return found


def old_stages(hands: Hands) -> list[tuple[str, ServiceRecord]]:
    """Stages of ours: none of them can join another head than the one that it was started for."""
    return [(node.name, record) for node in hands.snapshot().nodes.values()
            if node.reading is not None and node.state not in LOST for record in node.reading.services
            if record.kind is ServiceKind.STAGE and record.fleet in ("", hands.config.fleet)]
