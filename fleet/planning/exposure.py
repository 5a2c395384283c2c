"""What can be reached by others on the network without saying who they are. Pure; sentences for people."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address

from fleet.facts import head_facts
from fleet.model import ServiceKind, ServiceRecord

TUNNEL = ("On a network that is not yours alone say `rpc: tunnel`: workers then bind loopback, and SSH carries the "
          "traffic.")
KEY = "Give it an `api_key_file:`, or bind it to 127.0.0.1."


def stays_inside(bind: str) -> bool:
    """Whether only programs of the same machine reach what is bound to this address."""
    host = bind.strip("[]").partition("%")[0]
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False            # a name, "*" or nothing: taken for an address that others reach


def is_public(bind: str) -> bool:
    """Whether the address can be reached from beyond the house."""
    try:
        return ip_address(bind.strip("[]").partition("%")[0]).is_global
    except ValueError:
        return False


def of_head(node: str, bind: str, port: int, api_key_file: str) -> str:
    """Why this head is open to others; "" when it is not."""
    if stays_inside(bind) or api_key_file:
        return ""
    return f"The head on {node} listens on {bind or 'all addresses'}:{port} and asks nobody for a key."


def of_workers(places: Iterable[tuple[str, str, int]]) -> str:
    """Which workers are open to others, of (node, bind, port); "" when none is."""
    open_ones = [f"{bind}:{port} ({node})" for node, bind, port in places if not stays_inside(bind)]
    if not open_ones:
        return ""
    who = f"worker at {open_ones[0]} takes" if len(open_ones) == 1 else f"workers at {', '.join(open_ones)} take"
    return f"The {who} orders from whoever reaches that port: ggml-rpc-server has no authentication."


def of_running(node: str, record: ServiceRecord) -> tuple[str, str]:
    """What is open of a service that runs, and what to do about it; ("", "") for nothing."""
    if not record.alive:
        return "", ""
    if record.kind is ServiceKind.WORKER:
        return of_workers([(node, record.bind, record.port)]), TUNNEL
    if record.kind is ServiceKind.COORDINATOR:
        key_file = head_facts(record.facts).api_key_file or ("--api-key-file" if _has_key(record.argv) else "")
        return of_head(node, record.bind, record.port, key_file), KEY
    return "", ""


def _has_key(argv: tuple[str, ...]) -> bool:
    return any(word.partition("=")[0] in ("--api-key", "--api-key-file") for word in argv)
