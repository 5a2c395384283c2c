"""Network interfaces with what carries them: sysfs first (it knows), names second, address ranges last."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from fleet.discovery.addresses import kind_of, kind_of_name, parse_ip
from fleet.discovery.interfaces import ADDRESSES_READ, INTERFACES_READ, NAME_READ, read_ip_json
from fleet.model import Interface, LinkKind
from fleet.nodes.hardware.figures import whole

_LOOPBACK_TYPE = "772"          # ARPHRD_LOOPBACK
_IFCONFIG_HEAD = re.compile(r"^([A-Za-z0-9_.@-]{1,64}):?\s+(?:flags=[0-9a-f]+<([A-Z0-9_,-]*)>|Link encap:(.*))")
_INET = re.compile(r"^\s+(inet6?)\s+(?:addr:\s*)?([0-9A-Fa-f:.]{2,45})(?:%\S+)?(?:/([0-9]{1,3}))?")
_MASK = re.compile(r"(?:netmask\s+|Mask:)(0x[0-9a-fA-F]{8}|[0-9.]{7,15})")
_PREFIX = re.compile(r"prefixlen\s+([0-9]{1,3})")
_IP_LINE = re.compile(r"^[0-9]+:\s+(\S{1,64})\s+(inet6?)\s+([0-9A-Fa-f:.]{2,45})(?:/([0-9]{1,3}))?")


@dataclass(frozen=True, slots=True)
class Link:
    """What sysfs tells of an interface."""

    up: bool
    speed: int | None = None              # bits a second
    kind: LinkKind | None = None          # None: sysfs does not settle it


def read_links(text: str) -> dict[str, Link]:
    """Rows of the probe: name, operstate, speed in Mbit/s, ARPHRD type, then words for what exists."""
    links: dict[str, Link] = {}
    for line in text.split("\n")[:INTERFACES_READ]:
        name, *words = line.split()[:16] or [""]
        if len(words) < 3:
            continue
        speed = whole(words[1])
        links[name[:NAME_READ]] = Link(
            up=words[0] != "down", speed=speed * 1_000_000 if speed and speed < 10_000_000 else None,
            kind=_kind_by_facts(name, words[2], frozenset(words[3:])))
    return links


def _kind_by_facts(name: str, arphrd: str, facts: frozenset[str]) -> LinkKind | None:
    if arphrd == _LOOPBACK_TYPE:
        return LinkKind.LOOPBACK
    if facts & {"wireless", "phy80211", "DEVTYPE=wlan"}:
        return LinkKind.WIFI
    if "tun_flags" in facts or "DEVTYPE=wireguard" in facts:
        # A tap of a virtual machine has tun_flags as well: its name (vnet0) says so.
        named = kind_of_name(name)
        return named if named is LinkKind.CONTAINER else LinkKind.VPN
    if "device" in facts and kind_of_name(name) is LinkKind.UNKNOWN:
        return LinkKind.WIRED           # real hardware that is no radio, whatever it is called
    return None


def read_interfaces(ip_json: str = "", ip_lines: str = "", ifconfig: str = "", links: Mapping[str, Link] | None = None,
                    ports: Mapping[str, LinkKind] | None = None) -> tuple[Interface, ...]:
    """Interfaces from whichever of the three listings there is, put right by sysfs (`links`) or by
    macOS's list of hardware ports. Addresses have their prefix: "10.0.0.4/24", "fe80::1%eth0/64"."""
    found = read_ip_json(ip_json) or _read_ip_lines(ip_lines) or _read_ifconfig(ifconfig)
    return tuple(_with_facts(interface, links or {}, ports or {}) for interface in found)


def _with_facts(interface: Interface, links: Mapping[str, Link], ports: Mapping[str, LinkKind]) -> Interface:
    link = links.get(interface.name.partition("@")[0])
    if link is None:
        return replace(interface, kind=ports.get(interface.name, interface.kind))
    return replace(interface, kind=link.kind or interface.kind, speed=link.speed, up=link.up)


def _read_ip_lines(text: str) -> tuple[Interface, ...]:
    """`ip -o address`, for an ip that knows no JSON (busybox)."""
    addresses: dict[str, list[str]] = {}
    for line in text.split("\n")[:INTERFACES_READ * ADDRESSES_READ]:
        if match := _IP_LINE.match(line):
            _note(addresses, match[1], match[3], match[4])
    return tuple(_interface(name, listed, True) for name, listed in addresses.items())


def _read_ifconfig(text: str) -> tuple[Interface, ...]:
    """`ifconfig -a`, of macOS, net-tools or busybox."""
    addresses: dict[str, list[str]] = {}
    down: set[str] = set()
    current = ""
    for line in text.split("\n")[:INTERFACES_READ * ADDRESSES_READ]:
        if match := _IFCONFIG_HEAD.match(line):
            current = match[1].rstrip(":")
            addresses.setdefault(current, [])
            if match[2] is not None and "UP" not in match[2].split(","):
                down.add(current)
        elif current and line.strip() == "status: inactive":
            down.add(current)
        elif current and (match := _INET.match(line)):
            prefix = match[3] or (found[1] if (found := _PREFIX.search(line)) else None)
            if prefix is None and (mask := _MASK.search(line)):
                prefix = _prefix_of(mask[1])
            _note(addresses, current, match[2], prefix)
    return tuple(_interface(name, listed, name not in down) for name, listed in addresses.items())[:INTERFACES_READ]


def _note(addresses: dict[str, list[str]], name: str, ip: str, prefix: str | None) -> None:
    listed = addresses.setdefault(name[:NAME_READ], [])
    address = parse_ip(ip)
    if address is None or len(listed) >= ADDRESSES_READ or len(addresses) > INTERFACES_READ:
        return
    scope = f"%{name}" if address.version == 6 and address.is_link_local else ""
    listed.append(f"{address}{scope}/{int(prefix)}" if prefix and int(prefix) <= 128 else f"{address}{scope}")


def _prefix_of(mask: str) -> str | None:
    """The prefix length of "0xffffff00" or "255.255.255.0"."""
    if mask.startswith("0x"):
        bits = int(mask, 16)
    else:
        parts = [whole(part) for part in mask.split(".")]
        if len(parts) != 4 or any(part is None or part > 255 for part in parts):
            return None
        bits = int.from_bytes(bytes(part or 0 for part in parts))
    return str(bits.bit_count())


def _interface(name: str, addresses: list[str], up: bool) -> Interface:
    by_name = kind_of_name(name)
    if by_name is LinkKind.UNKNOWN:
        kinds = [kind_of("", address.partition("/")[0].partition("%")[0]) for address in addresses]
        by_name = next((kind for kind in kinds if kind is not LinkKind.LINK_LOCAL), LinkKind.UNKNOWN)
    return Interface(name, by_name, tuple(addresses), None, up)


def read_hardware_ports(text: str) -> dict[str, LinkKind]:
    """What macOS's interfaces are, from `networksetup -listallhardwareports`: en0 is Wi-Fi on a laptop."""
    kinds: dict[str, LinkKind] = {}
    port = ""
    for line in text.split("\n")[:1024]:
        key, _, value = line.partition(":")
        if key.strip() == "Hardware Port":
            port = value.strip().lower()
        elif key.strip() == "Device" and port:
            kinds[value.strip()[:NAME_READ]] = LinkKind.WIFI if "wi-fi" in port or "airport" in port else LinkKind.WIRED
            port = ""
    return kinds
