"""Only one bring-up at a time on a head: two cockpits must not build over each other."""

from __future__ import annotations

import os
import socket

from fleet.operations.hands import Hands
from fleet.operations.plan import Report, Step

NAME = "operation"
LEASE_SECONDS = 3600.0    # after that a lease is taken to be left over from a crash


def owner() -> str:
    """Who we are, for the sentence that the other one gets."""
    return f"{socket.gethostname()}:{os.getpid()}"


class TakeLease(Step):
    """Reserve the head for this operation."""

    def __init__(self, hands: Hands, node: str) -> None:
        self.title = f"Reserve {node}"
        self.node = node
        self._hands = hands

    async def do(self, report: Report) -> None:
        await self._hands.supervisor(self.node).lease(NAME, owner(), LEASE_SECONDS)

    async def undo(self, report: Report) -> None:
        await self._hands.supervisor(self.node).release(NAME, owner())


class ReleaseLease(Step):
    """Let others in again."""

    def __init__(self, hands: Hands, node: str) -> None:
        self.title = f"Release {node}"
        self.node = node
        self._hands = hands

    async def do(self, report: Report) -> None:
        await self._hands.supervisor(self.node).release(NAME, owner())
