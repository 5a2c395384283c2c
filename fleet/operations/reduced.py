"""A bring-up on what is left of the fleet: nodes that take no part, and workers that are not there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from fleet.config.schema import FleetConfig
from fleet.discovery.identity import KnownNode
from fleet.events import BringUp
from fleet.model import Link, NodeReading, Snapshot
from fleet.nodes.supervisor import Supervisor
from fleet.nodes.transport import Transport
from fleet.operations.hands import Hands
from fleet.proxies.hands import ProxyHand


@dataclass
class ReducedHands:
    """`Hands` with another configuration: whoever plans with them sees less of the fleet."""

    config: FleetConfig
    whole: Hands

    @property
    def clock(self) -> Callable[[], float]:
        """The engine's clock."""
        return self.whole.clock

    @property
    def stalled_after(self) -> float:
        """Seconds without a sign of life after which a load is given up."""
        return self.whole.stalled_after

    @stalled_after.setter
    def stalled_after(self, seconds: float) -> None:
        self.whole.stalled_after = seconds

    def snapshot(self) -> Snapshot:
        """The newest Snapshot."""
        return self.whole.snapshot()

    def transport(self, node: str) -> Transport:
        """As `Hands.transport`."""
        return self.whole.transport(node)

    def supervisor(self, node: str) -> Supervisor:
        """As `Hands.supervisor`."""
        return self.whole.supervisor(node)

    def known(self, name: str) -> KnownNode | None:
        """As `Hands.known`."""
        return self.whole.known(name)

    async def reread(self, node: str, *, quick: bool = False) -> NodeReading:
        """As `Hands.reread`."""
        return await self.whole.reread(node, quick=quick)

    def keep_links(self, links: tuple[Link, ...]) -> None:
        """As `Hands.keep_links`."""
        self.whole.keep_links(links)

    def proxies(self) -> dict[tuple[str, str], ProxyHand]:
        """As `Hands.proxies`."""
        return self.whole.proxies()


def reduced(hands: Hands, command: BringUp) -> Hands:
    """The fleet as `command` may use it."""
    return ReducedHands(replace(hands.config, absent=frozenset(command.without), spare=command.spare), hands)
