"""The way of a proxy to a head that keeps to its loopback on another node: a relay on this machine.

It ends on both nodes' loopbacks, and lives on when the cockpit is closed; while this machine is off there is no way.
"""

from __future__ import annotations

from fleet.errors import PlanRefused
from fleet.model import ServiceRecord
from fleet.nodes.connect import target_of
from fleet.nodes.ssh_target import SshTarget
from fleet.operations.hands import Hands, node_of
from fleet.operations.tunnel_steps import Relay, local_node
from fleet.proxies.ways import facts_of_way, way_to_head, ways
from fleet.relay import RelayPlan

WAY_PORT = 50252      # the first port on the proxy's node that such a way listens on; those of workers begin at 50152
MOST_WAYS = 64

__all__ = ["StartWay", "way_to_head"]


class StartWay(Relay):
    """Start the relay that a proxy reaches a head through, unless the same one runs."""

    def __init__(self, hands: Hands, proxy: str, head: str, record: ServiceRecord) -> None:
        known = tuple(ways(hands.snapshot().nodes))
        same = (way.port for way in known if (way.proxy, way.leads_to) == (proxy, f"{head}:{record.port}"))
        port = next(same, None) or _free({way.port for way in known})
        plan = RelayPlan(_target(hands, proxy), _target(hands, head), port, record.port)
        super().__init__(hands, f"Way from the proxy on {proxy} to the head on {head}, port {record.port}, through "
                         f"{local_node(hands)}", f"relay-{port}", plan,
                         facts_of_way(proxy, head, record.port, port))


def _free(taken: set[int]) -> int:
    for port in range(WAY_PORT, WAY_PORT + MOST_WAYS):
        if port not in taken:
            return port
    raise PlanRefused(f"{MOST_WAYS} proxies have ways through this machine already.", "Stop one of them.")


def _target(hands: Hands, name: str) -> SshTarget | None:
    node = node_of(hands, name)
    return None if node.local else target_of(hands, node)
