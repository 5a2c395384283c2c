"""Which address a worker binds and its head dials: IPv4, on the network that both are on. Pure."""

from __future__ import annotations

from ipaddress import AddressValueError, IPv4Address, IPv4Interface

from fleet.errors import PlanRefused
from fleet.model import LinkKind, Node

LOOPBACK = "127.0.0.1"
ORDER = (LinkKind.WIRED, LinkKind.WIFI, LinkKind.UNKNOWN, LinkKind.VPN, LinkKind.LINK_LOCAL)


def worker_address(worker: Node, head: Node, wished: str = "") -> str:
    """The IPv4 address of `worker` that `head` dials.

    `wished` (`rpc_address:` in fleet.yaml) wins. Otherwise loopback on the same node; else an address in a network
    that the head has an address in, wired before wifi before VPN; else the one that we use ourselves. Addresses of
    container bridges never.

    Raises:
        PlanRefused: there is none.
    """
    if wished:
        if not _is_ipv4(wished):
            raise PlanRefused(f"{wished}, the `rpc_address:` of {worker.name}, is no IPv4 address; llama.cpp's RPC "
                              "listens on no other.", "Give the IPv4 address itself, or use `rpc: tunnel`.",
                              code="no-ipv4")
        return wished
    if worker.name == head.name:
        return LOOPBACK
    candidates = _addresses(worker)
    head_networks = [interface.network for interface, _ in _addresses(head)]
    in_use = worker.address.host if worker.address else ""

    def rank(entry: tuple[IPv4Interface, LinkKind]) -> tuple[bool, int, bool]:
        interface, kind = entry
        shared = any(interface.ip in network for network in head_networks)
        return not shared, ORDER.index(kind), str(interface.ip) != in_use

    if candidates:
        return str(min(candidates, key=rank)[0].ip)
    if _is_ipv4(in_use) and not IPv4Address(in_use).is_loopback:
        return in_use
    raise PlanRefused(f"{worker.name} has no IPv4 address that {head.name} could dial; llama.cpp's RPC takes no other.",
                      f"Name one with `rpc_address:` of {worker.name}, or use `rpc: tunnel`.", code="no-ipv4")


def has_address(node: Node, host: str) -> bool:
    """Whether an IP address is one of the node's."""
    known = {address.host for address in node.addresses}
    for interface in node.reading.interfaces if node.reading else ():
        known.update(address.partition("/")[0] for address in interface.addresses)
    return host in known


def _addresses(node: Node) -> list[tuple[IPv4Interface, LinkKind]]:
    found = []
    for interface in node.reading.interfaces if node.reading else ():
        if not interface.up or interface.kind not in ORDER:
            continue
        for text in interface.addresses:
            try:
                address = IPv4Interface(text if "/" in text else f"{text}/24")
            except ValueError:
                continue
            if not address.ip.is_loopback:
                found.append((address, interface.kind))
    return found


def _is_ipv4(text: str) -> bool:
    try:
        IPv4Address(text)
    except AddressValueError:
        return False
    return True
