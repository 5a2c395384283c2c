"""The sockets under mDNS: which addresses can multicast, and a zeroconf that uses just those."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Sequence

from zeroconf.asyncio import AsyncZeroconf

from fleet.discovery.addresses import parse_ip
from fleet.discovery.services import choose_interfaces
from fleet.model import Interface, Problem, Severity

CLOSE_TIMEOUT = 3.0          # seconds
_MDNS_GROUP = "224.0.0.251"


@contextlib.asynccontextmanager
async def opened(addresses: Sequence[str]) -> AsyncIterator[AsyncZeroconf]:
    """A zeroconf that speaks on these addresses, closed at the end.

    Raises:
        OSError, zeroconf.Error: its sockets cannot be opened.
    """
    mdns = AsyncZeroconf(interfaces=list(addresses))
    try:
        await mdns.zeroconf.async_wait_for_start()
        yield mdns
    finally:
        # An end that hangs must not hold up ours; the sockets go with the process.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await mdns.async_close()


def usable(wanted: Sequence[str], own: Sequence[Interface]) -> tuple[tuple[str, ...], tuple[Problem, ...]]:
    """The addresses by which multicast works: zeroconf would give up on all because of one."""
    addresses, problems = choose_interfaces(wanted, own)
    works = tuple(address for address in addresses if can_multicast(address))
    if not works and not problems:
        tried = f" (tried {', '.join(addresses)})" if addresses else ""
        problems = (Problem("mdns-no-interface", f"No network interface of this machine can multicast{tried}, so mDNS "
                            "finds no machines.", "Name machines in fleet.yaml or ~/.ssh/config, or set "
                            "discovery.interfaces.", Severity.WARNING),)
    return works, problems


def can_multicast(address: str) -> bool:
    """Whether the mDNS group can be joined there. Nothing is sent."""
    ip = parse_ip(address)
    if ip is None:
        return False
    try:
        if ip.version == 6:
            scope = address.partition("%")[2]
            index = int(scope) if scope.isdigit() else socket.if_nametoindex(scope)
            with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP,
                                 socket.inet_pton(socket.AF_INET6, "ff02::fb") + struct.pack("@I", index))
            return True
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            interface = socket.inet_aton(address)
            probe.bind((address, 0))
            probe.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, interface)
            probe.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(_MDNS_GROUP) + interface)
    except OSError:
        return False
    return True


def named_scope(address: str) -> str:
    """fe80::1%2 as fe80::1%eth0: the number is this machine's own and says nothing to a person."""
    host, percent, scope = address.partition("%")
    if not percent or not scope.isdigit():
        return address
    try:
        return f"{host}%{socket.if_indextoname(int(scope))}"
    except (OSError, OverflowError):
        return host


def cannot_open(error: Exception) -> Problem:
    """Why mDNS does not work at all."""
    return Problem("mdns", f"mDNS cannot be used: {error or type(error).__name__}.",
                   "Name machines in fleet.yaml or ~/.ssh/config; another program may hold UDP port 5353 for itself.",
                   Severity.WARNING)
