"""What mDNS says of a machine, as records with bounds, and which interfaces it is asked on. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fleet.discovery.addresses import parse_ip
from fleet.discovery.sightings import SSH_PORT, Sighting, Source, clean_name
from fleet.model import Address, Interface, LinkKind, Problem, Severity

SSH_SERVICE = "_ssh._tcp.local."
WORKSTATION_SERVICE = "_workstation._tcp.local."
OWN_SERVICE = "_quarterdeck._tcp.local."
SWARM_SERVICE = "_qd-swarm._tcp.local."     # a model that a seeder gives away; it tells of no machine
SERVICES = (SSH_SERVICE, WORKSTATION_SERVICE, OWN_SERVICE)

NAME_LIMIT = 255            # of a DNS name
ADDRESSES_KEPT = 16         # of one answer
PROPERTIES_KEPT = 32
PROPERTY_NAME_LIMIT = 64
PROPERTY_LIMIT = 255        # a TXT string's length


@dataclass(frozen=True, slots=True)
class Found:
    """A service was found, or says something else than before."""

    service: str                           # one of SERVICES, or SWARM_SERVICE
    key: str                               # its full instance name
    host: str                              # "kitchen.local."
    addresses: tuple[str, ...]             # fe80 with %interface where that is known
    port: int
    properties: Mapping[str, str] = field(default_factory=dict)   # a key without a value has ""

    @property
    def name(self) -> str:
        """What the machine calls itself: our own service says it, else it is the host's first label."""
        said = self.properties.get("node", "") if self.service == OWN_SERVICE else ""
        return clean_name(said) or clean_name(self.host.partition(".")[0]) or "unnamed"

    def sighting(self, at: float) -> Sighting:
        """What this says of a machine. Only _ssh._tcp tells sshd's port; our own service may, as `ssh`."""
        said = self.properties.get("ssh", "") if self.service == OWN_SERVICE else ""
        port = self.port if self.service == SSH_SERVICE else int(said) if said.isascii() and said.isdigit() else 0
        ssh_port = port if 0 < port < 65536 else SSH_PORT
        host = f"{self.name}.local." if self.service == OWN_SERVICE and self.properties.get("node") else self.host
        return Sighting(Source.MDNS, self.name,
                        tuple(Address(address, ssh_port, source=Source.MDNS) for address in self.addresses), at,
                        key=self.key, host=host)


@dataclass(frozen=True, slots=True)
class Lost:
    """A service is no longer there: it said goodbye, or answers no more."""

    service: str
    key: str
    goodbye: bool


def found(service: str, key: str, host: str | None, addresses: Sequence[str], port: int | None,
          properties: Mapping[bytes, bytes | None]) -> Found | None:
    """An answer from the network within bounds; None where it names no host, or is too long to be one."""
    if not host or len(host) > NAME_LIMIT or len(key) > NAME_LIMIT or not host.isprintable():
        return None
    usable = [address for address in addresses if parse_ip(address) is not None][:ADDRESSES_KEPT]
    return Found(service, key, host, tuple(dict.fromkeys(usable)), port if port and 0 < port < 65536 else 0,
                 bounded_properties(properties))


def bounded_properties(properties: Mapping[bytes, bytes | None]) -> dict[str, str]:
    """A TXT record as text: empty strings in it are nothing, a key without `=` has the value ""."""
    kept: dict[str, str] = {}
    for name, value in properties.items():
        if name and len(kept) < PROPERTIES_KEPT:
            text = name[:PROPERTY_NAME_LIMIT].decode("utf-8", "replace").lower()
            kept.setdefault(text, (value or b"")[:PROPERTY_LIMIT].decode("utf-8", "replace"))
    return kept


def choose_interfaces(wanted: Sequence[str], own: Sequence[Interface]) -> tuple[tuple[str, ...], tuple[Problem, ...]]:
    """The addresses on which to ask, and what is wrong with the setting.

    Nothing wanted: every interface that is up but loopback, container bridges and VPNs (multicast does
    not cross them). Otherwise those of the names or addresses given. An interface is asked on by its
    IPv4 address, or by its fe80 one where it has none.
    """
    problems: list[Problem] = []
    if not wanted:
        left_out = (LinkKind.LOOPBACK, LinkKind.CONTAINER, LinkKind.VPN)
        chosen = [interface for interface in own if interface.up and interface.kind not in left_out]
        return tuple(dict.fromkeys(host for interface in chosen for host in _speaks_by(interface))), ()
    addresses: list[str] = []
    for name in wanted:
        by_name = [host for interface in own if interface.name == name for host in _speaks_by(interface)]
        known = any(interface.name == name for interface in own)
        by_address = [host for interface in own for host in _hosts(interface)
                      if host.partition("%")[0] == name.partition("%")[0]]
        if by_name or by_address:
            addresses += by_name or by_address[:1]
        else:
            there = ", ".join(interface.name for interface in own if _hosts(interface))
            what = f"Interface {name} has no address" if known else f"There is no interface or address {name}"
            problems.append(Problem(
                "mdns-interface", f"{what}; machines are not looked for there.",
                f"Correct discovery.interfaces in fleet.yaml; there are: {there}.", Severity.WARNING))
    return tuple(dict.fromkeys(addresses)), tuple(problems)


def _hosts(interface: Interface) -> list[str]:
    return [text.partition("/")[0] for text in interface.addresses]


def _speaks_by(interface: Interface) -> list[str]:
    ips = [(host, parse_ip(host)) for host in _hosts(interface)]
    v4 = [host for host, ip in ips if ip is not None and ip.version == 4]
    return v4[:1] or [host for host, ip in ips if ip is not None and ip.version == 6 and ip.is_link_local][:1]
