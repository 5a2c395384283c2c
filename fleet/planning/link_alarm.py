"""Whether a link is as good as it was, and as its interfaces promise. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from fleet.model import Interface, Link, LinkKind, Node

FALLEN = 0.5            # of the best that was seen: below that it is said
PROMISED = 0.35         # of what the slower interface can carry: TCP reaches 0.94 of it
ENOUGH = 2.5e9 / 8      # bytes a second of an interface up to which the promise is taken: python3 fills no faster one


def alarm(link: Link, nodes: Mapping[str, Node]) -> str:
    """What is wrong with a link that was just measured, in a sentence; "" = nothing."""
    if link.bytes_per_second <= 0:
        return ""
    where = f"The link from {link.head} to {link.worker}"
    rate = f"{link.bytes_per_second * 8 / 1e6:.0f} Mbit/s"
    if link.bytes_per_second < FALLEN * link.best:
        return f"{where} has fallen to {rate}; {link.best * 8 / 1e6:.0f} were seen before."
    ends = [nodes[name] for name in (link.head, link.worker) if name in nodes]
    if link.kind is LinkKind.WIFI and len(ends) == 2 and all(_cables(node) for node in ends):
        return f"{where} goes over wifi ({rate}), though both have a cable. Name the wired address as `rpc_address:`."
    speeds = [interface.speed / 8 for node in ends for interface in _cables(node) if interface.speed]
    if link.kind is LinkKind.WIRED and speeds and min(speeds) <= ENOUGH and (
            link.bytes_per_second < PROMISED * min(speeds)):
        return f"{where} carries {rate}, of the {min(speeds) * 8 / 1e6:.0f} that its interfaces promise."
    return ""


def _cables(node: Node) -> list[Interface]:
    return [interface for interface in (node.reading.interfaces if node.reading else ())
            if interface.up and interface.addresses and interface.kind is LinkKind.WIRED]
