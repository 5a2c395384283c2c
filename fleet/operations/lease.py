"""Only one bring-up at a time on a head: two cockpits must not build over each other.

The lease is short and renewed while the operation runs, so one that a crash left behind hinders nobody for long; one
that a dead process of this very machine left behind is taken at once.
"""

from __future__ import annotations

import asyncio
import os
import socket

import psutil

from fleet.errors import FleetError, LeaseHeld
from fleet.operations.hands import Hands
from fleet.operations.plan import Report, Step

NAME = "operation"
LEASE_SECONDS = 30
RENEW_EVERY = 10.0


def owner() -> str:
    """Who we are, for the sentence that the other one gets: host:pid:start."""
    return f"{socket.gethostname()}:{os.getpid()}:{psutil.Process().create_time():.0f}"


def is_dead(holder: str) -> bool:
    """Whether a holder is a process of this machine that is no more."""
    host, _, life = holder.rpartition(":")[0].rpartition(":")
    began = holder.rpartition(":")[2]
    if host != socket.gethostname() or not (life.isdigit() and began.isdigit()):
        return False
    try:
        return f"{psutil.Process(int(life)).create_time():.0f}" != began
    except psutil.NoSuchProcess:
        return True
    except psutil.AccessDenied:
        return False


class TakeLease(Step):
    """Reserve the head for this operation, and keep it reserved until `ReleaseLease`."""

    def __init__(self, hands: Hands, node: str) -> None:
        self.title = f"Reserve {node}"
        self.node = node
        self._hands = hands
        self._renewal: asyncio.Task[None] | None = None

    async def do(self, report: Report) -> None:
        supervisor = self._hands.supervisor(self.node)
        try:
            await supervisor.lease(NAME, owner(), LEASE_SECONDS)
        except LeaseHeld as error:
            if not is_dead(error.holder):
                raise
            report(f"taken over from {error.holder}, which died")
            await supervisor.release(NAME, error.holder)
            await supervisor.lease(NAME, owner(), LEASE_SECONDS)
        self._renewal = asyncio.ensure_future(self._renew())

    async def undo(self, report: Report) -> None:
        await self.release()

    async def release(self) -> None:
        """Let others in again."""
        if self._renewal is not None:
            self._renewal.cancel()
            await asyncio.gather(self._renewal, return_exceptions=True)
            self._renewal = None
            await self._hands.supervisor(self.node).release(NAME, owner())

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEW_EVERY)
            try:
                await self._hands.supervisor(self.node).lease(NAME, owner(), LEASE_SECONDS)
            except FleetError:
                continue      # the node is away for a moment; the operation's own steps say so if it lasts


class ReleaseLease(Step):
    """Let others in again."""

    def __init__(self, lease: TakeLease) -> None:
        self.title = f"Release {lease.node}"
        self.node = lease.node
        self._lease = lease

    async def do(self, report: Report) -> None:
        await self._lease.release()
