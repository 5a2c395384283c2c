"""Where to sign in and how: plain records, with nothing of an SSH library in them."""

from __future__ import annotations

from dataclasses import dataclass

from fleet.model import Address


@dataclass(frozen=True, slots=True)
class SshTarget:
    """A node as SSH reaches it. What is set here wins over ssh_config."""

    name: str
    addresses: tuple[Address, ...]            # in the order in which they are tried
    user: str | None = None                   # None = ssh_config's, or the one who runs this
    identity_files: tuple[str, ...] = ()      # () = ssh_config's, or the usual ones
    jump: str = ""                            # "user@host:port,..." as ProxyJump; "" = ssh_config's
    ssh_config_files: tuple[str, ...] = ()
    known_hosts: str = "~/.ssh/known_hosts"   # read, and added to when a key is accepted
    connect_timeout: float = 8.0              # seconds for each of: an address to answer, the handshake
    agent: bool = True


@dataclass(frozen=True, slots=True)
class Connected:
    """How a connection came about."""

    address: Address                          # the one that answered
    fingerprint: str                          # of its host key, "SHA256:..."
    round_trip: float                         # seconds that the smallest command took


def where(host: str, port: int) -> str:
    """host:port for people; IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
