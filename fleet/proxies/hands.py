"""A proxy as the engine asks and tells it: through a node, or inside this very process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from fleet.proxies.of_fleet import OfFleet
    from fleet.proxy.proxy import Proxy


class ProxyHand(Protocol):
    """`fleet.proxy.client.ProxyClient` has this shape; so has `InsideHand`. Every call raises FleetError."""

    async def state(self) -> Mapping[str, object]:
        """Everything but the requests."""
        ...

    async def requests(self, last: int = 60) -> Mapping[str, object]:
        """Live requests and the last ended ones."""
        ...

    async def cancel(self, request: str) -> bool:
        """End a live request; False when it has ended."""
        ...

    async def hold(self, name: str, progress: Mapping[str, object], seconds: float) -> None:
        """Admit nothing more to an upstream for so long, unless it is said again."""
        ...

    async def release(self, name: str) -> None:
        """Admit again."""
        ...

    async def drain(self, name: str, limit: float, progress: Mapping[str, object], seconds: float) -> int:
        """Hold, wait up to `limit` seconds for what runs; gives how many still do."""
        ...

    async def fleet(self, said: OfFleet) -> Mapping[str, object]:
        """What the fleet serves now; gives the state."""
        ...

    async def tell(self, kind: str, facts: Mapping[str, object]) -> None:
        """An event for whoever listens to the proxy's."""
        ...

    async def close(self) -> None:
        """Let go of it."""
        ...


class InsideHand:
    """The proxy that this engine runs itself."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy

    async def state(self) -> Mapping[str, object]:
        """As ProxyHand."""
        return self._proxy.state()

    async def requests(self, last: int = 60) -> Mapping[str, object]:
        """As ProxyHand."""
        return self._proxy.requests(last)

    async def cancel(self, request: str) -> bool:
        """As ProxyHand."""
        return self._proxy.cancel(request)

    async def hold(self, name: str, progress: Mapping[str, object], seconds: float) -> None:
        """As ProxyHand."""
        self._proxy.hold(name, dict(progress), seconds)

    async def release(self, name: str) -> None:
        """As ProxyHand."""
        self._proxy.release(name)

    async def drain(self, name: str, limit: float, progress: Mapping[str, object], seconds: float) -> int:
        """As ProxyHand."""
        return await self._proxy.drain(name, limit, dict(progress), seconds)

    async def fleet(self, said: OfFleet) -> Mapping[str, object]:
        """As ProxyHand."""
        self._proxy.set_fleet(said.upstreams, said.lost, said.catalogue, said.aliases, waits=said.waits)
        return self._proxy.state()

    async def tell(self, kind: str, facts: Mapping[str, object]) -> None:
        """As ProxyHand."""
        self._proxy.records.events.tell(kind, dict(facts))

    async def close(self) -> None:
        """The one who started it ends it."""
