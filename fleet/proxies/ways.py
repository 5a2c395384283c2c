"""How a proxy on one node reaches the head on another: directly, or through SSH where the head keeps to its loopback.

Pure. The way through SSH is a relay: it runs on this machine and listens on the loopback of the proxy's node, so it is
found by what is written beside it, not by where it runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fleet.model import Node, ServiceKind, ServiceRecord
from fleet.planning.addresses import LOOPBACK, worker_address
from fleet.proxy.access import from_here, is_loopback

WAY = "way"            # of a relay's facts: the "NODE:PORT" that it leads to
FROM = "from"          # the proxy's node
LISTENS = "listens"    # port on that node's loopback
_ALL = ("", "0.0.0.0", "::")


@dataclass(frozen=True, slots=True)
class Way:
    """`url` as the proxy dials it; "" = there has to be a relay first."""

    url: str
    relay: bool = False


def way_to_head(nodes: Mapping[str, Node], proxy: str, head: str, record: ServiceRecord) -> Way:
    """How a proxy on the node `proxy` reaches the head `record` on the node `head`.

    Raises:
        PlanRefused: the head has no address that the proxy's node could dial.
    """
    if proxy == head:
        return Way(_url(from_here(record.bind), record.port))
    if record.bind not in _ALL and not is_loopback(record.bind):
        return Way(_url(record.bind, record.port))
    if record.bind in _ALL and proxy in nodes and head in nodes:
        return Way(_url(worker_address(nodes[head], nodes[proxy]), record.port))
    port = way_port(nodes, proxy, head, record.port)
    return Way(_url(LOOPBACK, port) if port else "", True)


@dataclass(frozen=True, slots=True)
class KnownWay:
    """One of them."""

    record: ServiceRecord
    node: str              # where the relay runs: this machine
    proxy: str             # node
    leads_to: str          # "NODE:PORT"
    port: int              # on the loopback of the proxy's node


def facts_of_way(proxy: str, head: str, head_port: int, port: int) -> dict[str, object]:
    """What is written beside such a relay."""
    return {WAY: f"{head}:{head_port}", FROM: proxy, LISTENS: port}


def ways(nodes: Mapping[str, Node]) -> Iterator[KnownWay]:
    """All of them, running or ended; what makes no sense is passed over."""
    for node in nodes.values():
        for record in node.reading.services if node.local and node.reading else ():
            leads_to, proxy, port = (record.facts.get(key) for key in (WAY, FROM, LISTENS))
            if record.kind is ServiceKind.RELAY and isinstance(leads_to, str) and isinstance(proxy, str) \
                    and isinstance(port, int) and 0 < port < 65536:
                yield KnownWay(record, node.name, proxy, leads_to, port)


def way_port(nodes: Mapping[str, Node], proxy: str, head: str, head_port: int) -> int | None:
    """The port on the loopback of the proxy's node that leads to the head's; None when no relay runs there."""
    return next((way.port for way in ways(nodes) if way.record.alive
                 and (way.proxy, way.leads_to) == (proxy, f"{head}:{head_port}")), None)


def _url(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
