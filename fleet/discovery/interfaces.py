"""The network interfaces of a machine: this one by psutil, any Linux one by what `ip -j address` prints."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from ipaddress import IPv4Network

import psutil

from fleet.discovery.addresses import kind_of, kind_of_name, parse_ip
from fleet.model import Interface, LinkKind

INTERFACES_READ = 256        # of one machine; more is nonsense or an attack
ADDRESSES_READ = 64          # of one interface
NAME_READ = 64               # characters of an interface's name


def own_interfaces() -> tuple[Interface, ...]:
    """This machine's interfaces, addresses with their prefix ("10.0.0.4/24", "fe80::1%eth0/64")."""
    stats = psutil.net_if_stats()
    found: list[Interface] = []
    for name, entries in psutil.net_if_addrs().items():
        addresses: list[str] = []
        for entry in entries:
            if entry.family not in (socket.AF_INET, socket.AF_INET6) or parse_ip(entry.address) is None:
                continue
            prefix = _prefix(entry.netmask)
            addresses.append(f"{entry.address}/{prefix}" if prefix is not None else entry.address)
        state = stats.get(name)
        speed = state.speed * 1_000_000 if state is not None and 0 < state.speed < 65535 else None
        found.append(Interface(name, _kind(name, addresses), tuple(addresses), speed,
                               state.isup if state is not None else False))
    return tuple(found)


def read_ip_json(text: str) -> tuple[Interface, ...]:
    """The interfaces in the output of `ip -j address`; what cannot be read is left out.

    An interface is up unless the kernel says DOWN: tunnels and loopback say UNKNOWN while they work.
    """
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    if not isinstance(rows, list):
        return ()
    found: list[Interface] = []
    for row in rows[:INTERFACES_READ]:
        if not isinstance(row, Mapping) or not isinstance(row.get("ifname"), str):
            continue
        name = row["ifname"][:NAME_READ]
        entries = row.get("addr_info")
        addresses = [written for entry in (entries if isinstance(entries, list) else [])[:ADDRESSES_READ]
                     if (written := _ip_json_address(entry, name)) is not None]
        found.append(Interface(name, _kind(name, addresses), tuple(addresses), None, row.get("operstate") != "DOWN"))
    return tuple(found)


def _ip_json_address(entry: object, name: str) -> str | None:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("local"), str):
        return None
    ip = parse_ip(entry["local"])
    if ip is None:
        return None
    scope = f"%{name}" if ip.version == 6 and ip.is_link_local else ""
    prefix = entry.get("prefixlen")
    known = isinstance(prefix, int) and 0 <= prefix <= ip.max_prefixlen
    return f"{ip}{scope}/{prefix}" if known else f"{ip}{scope}"


def _kind(name: str, addresses: list[str]) -> LinkKind:
    """By name; where that says nothing, by the first address that says something.

    An interface that has just 169.254 addresses keeps what its name says: a direct cable is wired.
    """
    by_name = kind_of_name(name)
    if by_name is not LinkKind.UNKNOWN:
        return by_name
    kinds = (kind_of(name, address.partition("/")[0]) for address in addresses)
    return next((kind for kind in kinds if kind is not LinkKind.UNKNOWN), LinkKind.UNKNOWN)


def _prefix(netmask: str | None) -> int | None:
    """The prefix length that a netmask of either IP version writes out."""
    if not netmask:
        return None
    mask = parse_ip(netmask)
    if mask is None:
        return None
    if mask.version == 4:
        try:
            return IPv4Network(f"0.0.0.0/{mask}").prefixlen
        except ValueError:
            return None
    return int(mask).bit_count()
