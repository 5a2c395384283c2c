"""Only one bring-up at a time on a head: two cockpits must not build over each other.

The lease is short and renewed while the operation runs, so one that a crash left behind hinders nobody for long; one
that a dead process of this very machine left behind is taken at once.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from functools import cache

import psutil

from fleet.errors import FleetError, LeaseHeld, OperationFailed
from fleet.operations.hands import Hands, node_of
from fleet.operations.plan import Report, Step

NAME = "operation"
LEASE_SECONDS = 30
RENEW_EVERY = 10.0
CLOCK_SLACK = 3.0     # seconds: the start of a process is told by a clock that is set now and then


class FleetChanged(OperationFailed):
    """Somebody else has worked on the fleet since the plan was made: it has to be made anew. Nothing was done."""

    code = "fleet-changed"


@cache
def owner() -> str:
    """Who we are: host:pid:start. The same for as long as we live, though the clock may be set meanwhile."""
    return f"{socket.gethostname()}:{os.getpid()}:{psutil.Process().create_time():.0f}"


def is_dead(holder: str) -> bool:
    """Whether a holder is a process of this machine that is no more."""
    host, pid, began = _parts(holder)
    if host != socket.gethostname() or not (pid.isdecimal() and began.isdecimal()):
        return False
    try:
        return abs(psutil.Process(int(pid)).create_time() - int(began)) > CLOCK_SLACK
    except (psutil.NoSuchProcess, OverflowError):
        return True
    except psutil.AccessDenied:
        return False


def _parts(holder: str) -> tuple[str, str, str]:
    rest, _, began = holder.rpartition(":")
    host, _, pid = rest.rpartition(":")
    return host, pid, began


def said_of(holder: str) -> str:
    """A holder for people: the beginning of a sentence."""
    host, pid, _ = _parts(holder)
    return f"Another Quarterdeck (process {pid} on {host})" if host and pid.isdecimal() else holder or "Somebody else"


class TakeLease(Step):
    """Reserve the head for this operation, and keep it reserved until `ReleaseLease`.

    `nodes` are those that the plan is about: what runs there must be as the plan has seen it.
    """

    def __init__(self, hands: Hands, node: str, nodes: Sequence[str] = ()) -> None:
        self.title = f"Reserve {node}"
        self.node = node
        self._hands = hands
        self._nodes = tuple(dict.fromkeys((node, *nodes)))
        self._seen = self._services()
        self._renewal: asyncio.Task[None] | None = None
        self._taken = False

    async def do(self, report: Report) -> None:
        supervisor = self._hands.supervisor(self.node)
        self._taken = True
        try:
            await supervisor.lease(NAME, owner(), LEASE_SECONDS)
        except LeaseHeld as error:
            if not is_dead(error.holder):
                self._taken = False
                raise LeaseHeld(f"{said_of(error.holder)} is at work on {self.node}.", error.remedy,
                                holder=error.holder) from error
            report(f"taken over from {error.holder}, which died")
            await supervisor.release(NAME, error.holder)
            await supervisor.lease(NAME, owner(), LEASE_SECONDS)
        self._renewal = asyncio.ensure_future(self._renew())
        await asyncio.gather(*(self._hands.reread(name, quick=True) for name in self._nodes))
        if self._services() != self._seen:
            raise FleetChanged("Somebody else has started or ended services since this was planned.", "Try it again.")

    async def undo(self, report: Report) -> None:
        await self.release()

    async def release(self) -> None:
        """Let others in again."""
        if self._renewal is not None:
            self._renewal.cancel()
            await asyncio.gather(self._renewal, return_exceptions=True)
            self._renewal = None
        if self._taken:
            self._taken = False
            await self._hands.supervisor(self.node).release(NAME, owner())

    def _services(self) -> frozenset[tuple[str, str, int, bool]]:
        """The lives of all services on the nodes of the plan, as last read."""
        return frozenset((name, record.id, record.pid, record.alive) for name in self._nodes
                         if (reading := node_of(self._hands, name).reading) for record in reading.services)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEW_EVERY)
            try:
                await self._hands.supervisor(self.node).lease(NAME, owner(), LEASE_SECONDS)
            except (FleetError, OSError):
                continue      # the node is away for a moment; the operation's own steps say so if it lasts


class ReleaseLease(Step):
    """Let others in again."""

    def __init__(self, lease: TakeLease) -> None:
        self.title = f"Release {lease.node}"
        self.node = lease.node
        self._lease = lease

    async def do(self, report: Report) -> None:
        try:
            await self._lease.release()
        except FleetError as error:
            report(f"runs out by itself within {LEASE_SECONDS} s: {error.what}")   # no reason to undo what serves
