"""From a target to a signed-in connection, hop by hop."""

from __future__ import annotations

import asyncio

import asyncssh

from fleet.nodes.questions import Interview
from fleet.nodes.ssh_door import Door, Entered
from fleet.nodes.ssh_hops import hops
from fleet.nodes.ssh_settings import Settings
from fleet.nodes.ssh_target import SshTarget

_CLOSING = 2.0    # seconds that a connection may take to say goodbye


class Chain:
    """A connection to a node, behind those that it goes through."""

    def __init__(self) -> None:
        self.doors: list[Entered] = []

    @property
    def node(self) -> Entered:
        """The node itself."""
        return self.doors[-1]

    @property
    def connection(self) -> asyncssh.SSHClientConnection:
        """The connection to the node itself."""
        return self.node.connection

    async def close(self) -> None:
        """End all of them, the farthest first; at once when the link is dead."""
        for door in reversed(self.doors):
            door.connection.close()
            try:
                async with asyncio.timeout(_CLOSING):
                    await door.connection.wait_closed()
            except TimeoutError:
                door.connection.abort()
        self.doors.clear()


async def connect(target: SshTarget, interview: Interview, *, accept_new: bool) -> Chain:
    """Sign in on the target, through its hops.

    Raises:
        NodeError: of the kind that says what is wrong; it names the hop when it is one.
    """
    chain, tunnel, through = Chain(), None, ""
    interview.begin()
    try:
        settings = Settings(target)
        way = hops(target, settings=settings)
        for place, hop in enumerate(way, 1):
            door = Door(hop, tunnel, through, interview, accept_new=accept_new,
                        settings=settings if place == len(way) else None)
            entered = await door.enter()
            chain.doors.append(entered)
            tunnel, through = entered.connection, hop.name
    except BaseException:
        interview.drop()
        await chain.close()
        raise
    return chain
