"""Which of a machine's addresses to use: wired before wifi before VPN, container bridges never.

Pure. "Own" networks are those of the machine that wants to connect: `rank` judges every address
from there, so a head's interfaces go in when the question is how a head reaches its workers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
    ip_address,
    ip_interface,
)

from fleet.model import Address, Interface, LinkKind

DOCKER_NETWORK = IPv4Network("172.17.0.0/16")             # Docker's default bridge, the same on every machine
CARRIER_NETWORK = IPv4Network("100.64.0.0/10")            # where Tailscale and others hand out addresses
TAILSCALE_V6 = IPv6Network("fd7a:115c:a1e0::/48")

# Interface names, first match wins. `br-lan` is OpenWrt's real bridge, any other `br-` is Docker's
# way of naming a network; `br0`, `vmbr0` and macOS's `bridge0` (Thunderbolt) carry real cables.
_NAMES: tuple[tuple[LinkKind, re.Pattern[str]], ...] = (
    (LinkKind.LOOPBACK, re.compile(r"lo\d*$")),
    (LinkKind.WIRED, re.compile(r"br-(lan|wan)")),
    (LinkKind.CONTAINER, re.compile(
        r"(docker|br-|veth|virbr|vnet|podman|cni|cali|flannel|lxcbr|lxdbr|incusbr|kube|nerdctl|crc|vmnet"
        r"|vboxnet|bridge1\d\d|waydroid|hassio)")),
    (LinkKind.VPN, re.compile(r"(tailscale|wg|wt|tun|utun|tap|zt|ppp|ipsec|gif|nebula|nordlynx|proton|cscotun)")),
    (LinkKind.WIFI, re.compile(r"(wl|wifi|ath\d|ra\d|airport)")),
    (LinkKind.WIRED, re.compile(
        r"(e(th|n|m)|lan|bond|team|br\d|vmbr|bridge\d$|ib|usb|p\d+p\d+|thunderbolt|macvlan|macvtap|igb|igc|ixl?\d|re\d|bge|vmx)")),
)

_HOST = re.compile(r"[^\W_]([\w.-]{0,252}[\w.])?")           # letters of any script: names of mDNS are UTF-8
_SCOPE = re.compile(r"[A-Za-z0-9_.@-]{1,32}")
_ALL_DIGITS = re.compile(r"[0-9.]+")                       # meant as an IPv4 address

_ORDER = {kind: place for place, kind in enumerate((
    LinkKind.LOOPBACK, LinkKind.WIRED, LinkKind.WIFI, LinkKind.VPN, LinkKind.LINK_LOCAL, LinkKind.UNKNOWN,
    LinkKind.CONTAINER))}
_SOURCES = {source: place for place, source in enumerate(("fleet.yaml", "by hand", "ssh_config", "mdns", "probe"))}


@lru_cache(maxsize=4096)
def parse_ip(host: str) -> IPv4Address | IPv6Address | None:
    """The IP that `host` is, its %scope kept; None for a name, and for a scope that names no interface."""
    try:
        found = ip_address(host.strip().removeprefix("[").removesuffix("]"))
    except ValueError:
        return None
    if isinstance(found, IPv6Address) and found.scope_id is not None and not _SCOPE.fullmatch(found.scope_id):
        return None      # Python takes anything there, also what would be a second word of known_hosts
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        return found.ipv4_mapped
    return found


def kind_of_name(interface_name: str) -> LinkKind:
    """What an interface carries, judged by its name alone."""
    name = interface_name.lower().partition("@")[0]
    return next((kind for kind, pattern in _NAMES if pattern.match(name)), LinkKind.UNKNOWN)


def kind_of(interface_name: str, ip: str) -> LinkKind:
    """What carries address `ip` on the interface of that name; "" where the name is not known.

    A name that says something wins over the range, so a home whose LAN is 172.17.0.0/16 works.
    """
    by_name = kind_of_name(interface_name) if interface_name else LinkKind.UNKNOWN
    if by_name in (LinkKind.CONTAINER, LinkKind.VPN):
        return by_name
    address = parse_ip(ip)
    if address is None:
        return by_name
    if address.is_loopback:
        return LinkKind.LOOPBACK
    if address.is_link_local:
        return LinkKind.LINK_LOCAL
    if by_name is not LinkKind.UNKNOWN:
        return by_name
    if isinstance(address, IPv4Address):
        if address in DOCKER_NETWORK:
            return LinkKind.CONTAINER
        return LinkKind.VPN if address in CARRIER_NETWORK else LinkKind.UNKNOWN
    return LinkKind.VPN if address in TAILSCALE_V6 else LinkKind.UNKNOWN


@lru_cache(maxsize=4096)
def network_of(text: str) -> IPv4Interface | IPv6Interface | None:
    """An interface's address with its prefix ("10.0.0.4/24"); without one it is a single host."""
    bare, slash, prefix = text.partition("/")
    try:
        return ip_interface(bare.partition("%")[0] + slash + prefix)
    except ValueError:
        return None


def own_interface(host: str, own_networks: Sequence[Interface]) -> Interface | None:
    """The interface of ours whose network `host` lies in, the narrowest first."""
    address = parse_ip(host)
    if address is None:
        return None
    scope = address.scope_id if isinstance(address, IPv6Address) else None
    best: tuple[int, Interface] | None = None
    for interface in own_networks:
        if scope and scope != interface.name:
            continue
        for text in interface.addresses:
            network = network_of(text)
            if (network is not None and network.version == address.version
                    and _unscoped(address) in network.network
                    and (best is None or network.network.prefixlen > best[0])):
                best = (network.network.prefixlen, interface)
    return best[1] if best else None


def rank(addresses: Iterable[Address], *, own_networks: Sequence[Interface] = (),
         local: bool = False) -> tuple[Address, ...]:
    """The addresses that can be used, best first, each with its `kind` filled in.

    Left out, unless the user pinned them: container bridges, fe80 without a scope, 169.254 where we
    have no 169.254 address ourselves, loopback (kept with `local`), what is no unicast address.
    The same host and port is given once, the pinned one if there is one.
    """
    usable: dict[tuple[str, int], Address] = {}
    for address in addresses:
        judged = _judge(address, own_networks)
        if not judged.pinned and not _usable(judged, own_networks, local):
            continue
        place = (judged.host.lower(), judged.port)
        if place not in usable or _key(judged) < _key(usable[place]):
            usable[place] = judged
    return tuple(sorted(usable.values(), key=_key))


def _judge(address: Address, own_networks: Sequence[Interface]) -> Address:
    """With its kind: as given, by the interface of ours that leads there, or by its range."""
    ip = parse_ip(address.host)
    if ip is None:
        return address
    if address.kind is not LinkKind.UNKNOWN:
        return address
    if isinstance(ip, IPv6Address) and ip.is_link_local and ip.scope_id:
        by_scope = kind_of_name(ip.scope_id)
        return replace(address, kind=by_scope if by_scope is LinkKind.CONTAINER else LinkKind.LINK_LOCAL)
    ours = own_interface(address.host, own_networks)
    kind = kind_of(ours.name, address.host) if ours else kind_of("", address.host)
    if kind is LinkKind.UNKNOWN and ours is not None:
        kind = ours.kind
    return replace(address, kind=kind)


def _usable(address: Address, own_networks: Sequence[Interface], local: bool) -> bool:
    if address.kind is LinkKind.CONTAINER or (address.kind is LinkKind.LOOPBACK and not local):
        return False
    ip = parse_ip(address.host)
    if ip is None:
        return bool(address.host) and (local or address.host.lower() not in ("localhost", "localhost."))
    if ip.is_multicast or ip.is_unspecified or str(ip) == "255.255.255.255":
        return False
    if isinstance(ip, IPv6Address):
        return not ip.is_link_local or bool(ip.scope_id)
    return not ip.is_link_local or own_interface(address.host, own_networks) is not None


def _key(address: Address) -> tuple[object, ...]:
    ip = parse_ip(address.host)
    return (not address.pinned,
            _ORDER[address.kind],
            _SOURCES.get(address.source, len(_SOURCES)),
            0 if ip is None else ip.version,
            (0, int(_unscoped(ip)), "") if ip is not None else (1, 0, address.host.lower()),
            address.port,
            address.host,
            address.source)


def _unscoped(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    return IPv6Address(int(address)) if isinstance(address, IPv6Address) else address


def split_host_port(text: str) -> tuple[str, int | None] | None:
    """Host and port of "host", "host:port", "10.0.0.1:22", "fe80::1%eth0" or "[fe80::1%eth0]:22".

    None where it is none of these: a user, a path, a space, a port out of range.
    """
    if parse_ip(text) is not None:
        return text.strip().removeprefix("[").removesuffix("]"), None
    host, colon, port = text.rpartition(":")
    if not colon:
        host, port = text, ""
    number = int(port) if port.isascii() and port.isdigit() and len(port) <= 5 else None
    if colon and (number is None or not 1 <= number <= 65535):
        return None
    if host.startswith("[") and host.endswith("]"):
        ip = parse_ip(host)
        return (host[1:-1], number) if ip is not None and ip.version == 6 else None
    if _HOST.fullmatch(host) and (not _ALL_DIGITS.fullmatch(host) or parse_ip(host) is not None):
        return host, number
    return None
