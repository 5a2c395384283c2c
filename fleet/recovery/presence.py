"""Two cockpits on one fleet see each other: the first one acts, another only looks until it takes over.

The claim is a lease on the node of the head, or where a head would be; without such a node there is nothing to guard.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from fleet.config.schema import FleetConfig
from fleet.errors import FleetError, LeaseHeld
from fleet.model import NodeState, Snapshot
from fleet.nodes.supervisor import Supervisor
from fleet.operations.lease import is_dead, owner, said_of
from fleet.planning.choose import may_be_head

NAME = "cockpit"
LEASE_SECONDS = 60
LOOK_EVERY = 10.0     # seconds between two renewals, and between two looks at who else is there


class Guarded(Protocol):
    """The engine, as seen from here."""

    config: FleetConfig

    def snapshot(self) -> Snapshot:
        """The newest Snapshot."""
        ...

    def supervisor(self, node: str) -> Supervisor:
        """Who keeps leases there, or a `NodeError`."""
        ...


class Presence:
    """Claims the fleet for this cockpit; `run` has to run. `on_news` is told who has it instead, "" = we have."""

    def __init__(self, engine: Guarded, on_news: Callable[[str], None]) -> None:
        self.owner = owner()
        self._engine, self._on_news = engine, on_news
        self.claimed = ""                # the node that holds our lease
        self._taking = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled; the claim is given back then."""
        try:
            while True:
                self._taking.clear()
                await self._look(take=False)
                try:
                    async with asyncio.timeout(LOOK_EVERY):
                        await self._taking.wait()
                    await self._look(take=True)
                except TimeoutError:
                    continue
        finally:
            await self._give_back()

    def take_over(self) -> None:
        """The person here wants to act: the other cockpit only looks from then on."""
        self._taking.set()

    async def _look(self, *, take: bool) -> None:
        node = self._where()
        if not node:
            return
        if self.claimed not in ("", node):
            await self._give_back()      # another node is the head now
        supervisor = None
        try:
            supervisor = self._engine.supervisor(node)
            await supervisor.lease(NAME, self.owner, LEASE_SECONDS)
        except LeaseHeld as error:
            if supervisor is not None and (take or is_dead(error.holder)):
                await self._take(supervisor, node, error.holder)
                return
            self.claimed = ""
            self._on_news(said_of(error.holder))
        except (FleetError, OSError):
            return                       # the node is away for a moment: nothing is known, and nothing changes
        else:
            self.claimed = node
            self._on_news("")

    async def _take(self, supervisor: Supervisor, node: str, holder: str) -> None:
        try:
            await supervisor.release(NAME, holder)
            await supervisor.lease(NAME, self.owner, LEASE_SECONDS)
        except (FleetError, OSError):
            return
        self.claimed = node
        self._on_news("")

    async def _give_back(self) -> None:
        node, self.claimed = self.claimed, ""
        if not node:
            return
        try:
            async with asyncio.timeout(3.0):
                await self._engine.supervisor(node).release(NAME, self.owner)
        except (FleetError, OSError, TimeoutError):
            return                       # it runs out by itself

    def _where(self) -> str:
        """The node of what serves; else the first that may be a head."""
        snapshot = self._engine.snapshot()
        up = {name for name, node in snapshot.nodes.items() if node.state is NodeState.UP}
        if snapshot.deployment.head in up:
            return snapshot.deployment.head
        return next((name for name in sorted(up) if may_be_head(self._engine.config, snapshot.nodes[name])), "")
