"""Where machines come from: one record for a machine seen in fleet.yaml, ssh_config, mDNS or typed by hand."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from fleet.config.schema import NodeConfig
from fleet.discovery.addresses import split_host_port
from fleet.errors import ConfigError
from fleet.model import Address

SSH_PORT = 22
NAME_LIMIT = 63      # characters of a node's name: a DNS label's length


class Source(StrEnum):
    """Who says that there is a machine. The words are those of `Node.sources` and `Address.source`."""

    CONFIG = "fleet.yaml"
    LOCAL = "local"
    SSH_CONFIG = "ssh_config"
    MANUAL = "by hand"
    MDNS = "mdns"


@dataclass(frozen=True, slots=True)
class Sighting:
    """What one source says of one machine."""

    source: Source
    name: str                              # what the source calls it: node, alias, mDNS host label, typed text
    addresses: tuple[Address, ...]
    at: float                              # engine clock
    key: str = ""                          # unique within the source; "" = the name
    host: str = ""                         # mDNS host name, "kitchen.local"
    user: str = ""
    identity_files: tuple[str, ...] = ()
    jump: str = ""                         # hops as ProxyJump has them: behind other hops are other machines
    through: str = ""                      # ProxyCommand: likewise
    local: bool = False                    # the source says that it is this machine

    @property
    def id(self) -> tuple[str, str]:
        """What this sighting replaces when it comes again."""
        return str(self.source), self.key or self.name


def from_config(node: NodeConfig, at: float) -> Sighting:
    """A node of fleet.yaml. Its first address is pinned; without one its name is its address."""
    default = node.port or SSH_PORT
    addresses = []
    for place, text in enumerate(node.addresses):
        host, port = split_host_port(text) or (text, None)
        addresses.append(Address(host, port or default, source=Source.CONFIG, pinned=place == 0))
    if not addresses and not node.local:
        addresses.append(Address(node.name, default, source=Source.CONFIG))
    return Sighting(Source.CONFIG, node.name, tuple(addresses), at, user=node.user or "",
                    identity_files=node.identity_files, jump=node.jump, local=node.local)


def by_hand(text: str, at: float) -> Sighting:
    """A machine that the user typed: "host", "host:port" or "user@host:port".

    Raises:
        ConfigError: this is no address.
    """
    user, at_sign, rest = text.strip().rpartition("@")
    found = split_host_port(rest)
    if found is None or (at_sign and (not user or not user.isprintable() or " " in user or user.startswith("-"))):
        raise ConfigError(f"{text.strip()[:60]!a} is no address.", "Type host, host:port or user@host:port.")
    host, port = found
    address = Address(host, port or SSH_PORT, source=Source.MANUAL, pinned=True)
    return Sighting(Source.MANUAL, host if port is None else f"{host}:{port}", (address,), at, user=user)


def this_machine(hostname: str, at: float) -> Sighting:
    """The machine that we run on; the registry knows its addresses."""
    return Sighting(Source.LOCAL, clean_name(hostname.partition(".")[0]) or "localhost", (), at, local=True)


def clean_name(text: str) -> str:
    """A name from the network that can stand on a command line and on a screen: bounded, no blanks."""
    shown = "".join(c if c.isprintable() and not c.isspace() and c not in "/\\\"'`$;&|<>*?" else "-" for c in text)
    return shown[:NAME_LIMIT].strip("-.").lstrip("-")
