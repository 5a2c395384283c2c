"""What operations may touch: the nodes, through whoever watches them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from fleet.config.schema import FleetConfig
from fleet.discovery.identity import KnownNode
from fleet.errors import NodeUnreachable
from fleet.model import Binary, Link, Node, NodeReading, ServiceRecord, Snapshot, Swarm
from fleet.models.reader import Headers
from fleet.nodes.supervisor import Supervisor
from fleet.nodes.transport import Transport
from fleet.proxies.hands import ProxyHand
from fleet.runtimes.binaries import Flags, read_flags
from fleet.runtimes.rpc_wire import protocol_of


class Hands(Protocol):
    """The engine, as operations see it."""

    config: FleetConfig
    clock: Callable[[], float]
    stalled_after: float          # seconds without any sign of life after which a load is given up

    def snapshot(self) -> Snapshot:
        """The newest Snapshot."""
        ...

    def transport(self, node: str) -> Transport:
        """A connected transport, or a `NodeError` that says why there is none."""
        ...

    def supervisor(self, node: str) -> Supervisor:
        """Who starts and stops processes there, or a `NodeError`."""
        ...

    def known(self, name: str) -> KnownNode | None:
        """What the sources say of a node: user, key files, hops."""
        ...

    async def reread(self, node: str, *, quick: bool = False) -> NodeReading:
        """Probe a node now; the Snapshot has the answer too. `quick`: what changes (services, sockets, memory)."""
        ...

    def keep_links(self, links: tuple[Link, ...]) -> None:
        """Remember links that were measured."""
        ...

    def proxies(self) -> dict[tuple[str, str], ProxyHand]:
        """Who asks and tells every proxy that is known of, by node and service; ("", "") is one inside this process."""
        ...

    def keep_swarm(self, swarm: Swarm) -> None:
        """Show a swarm as it is now."""
        ...


def node_of(hands: Hands, name: str) -> Node:
    """A node of the newest Snapshot.

    Raises:
        NodeUnreachable: it has left the fleet meanwhile.
    """
    node = hands.snapshot().nodes.get(name)
    if node is None:
        raise NodeUnreachable(f"{name} is no longer part of the fleet.", "See fleet.yaml; `quarterdeck nodes` lists "
                              "what there is.")
    return node


def record_of(node: Node, service: str) -> ServiceRecord | None:
    """What the node's pid files say of a service."""
    return next((r for r in node.reading.services if r.id == service), None) if node.reading else None


@dataclass
class Known:
    """What was read from binaries and model files, remembered for as long as these do not change."""

    flags: dict[tuple[str, str, int, int], Flags] = field(default_factory=dict)
    protocols: dict[tuple[str, str, int, int], tuple[int, int, int]] = field(default_factory=dict)
    headers: Headers = field(default_factory=Headers)

    async def flags_of(self, hands: Hands, node: str, binary: Binary) -> Flags:
        """The binary's options, by its own `--help`."""
        key = (node, binary.path, binary.size, binary.mtime)
        if key not in self.flags:
            self.flags[key] = await read_flags(hands.transport(node), binary)
        return self.flags[key]

    async def protocol_of(self, hands: Hands, node: str, binary: Binary) -> tuple[int, int, int]:
        """The RPC protocol that a ggml-rpc-server speaks, found by starting it for a moment on loopback."""
        key = (node, binary.path, binary.size, binary.mtime)
        if key not in self.protocols:
            self.protocols[key] = await protocol_of(hands.transport(node), binary)
        return self.protocols[key]
