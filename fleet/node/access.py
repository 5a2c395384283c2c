"""Who may ask a seeder: a bearer token first (401), then the address (403). Both off is open."""

from __future__ import annotations

import hmac
import ipaddress
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from .files import read_bounded
from .trouble import StoreError, SwarmError

VARIABLE = "QUARTERDECK_SWARM_TOKEN"
LONGEST_TOKEN = 512
_TOKEN = re.compile(r"[\x21-\x7e]{8,512}")


class Access:
    """The rule of one seeder. `networks` are CIDR texts, IPv4 or IPv6; SwarmError for one that is none."""

    def __init__(self, token: str = "", networks: Sequence[str] = ()) -> None:
        self.token = check_token(token) if token else ""
        self.networks = tuple(parse_network(text) for text in networks)

    @property
    def open(self) -> bool:
        """Whether anybody may ask."""
        return not self.token and not self.networks

    def judge(self, address: str, authorization: str) -> int:
        """200, 401 (no or a wrong token) or 403 (a right token from a wrong place)."""
        if self.token:
            given = authorization.encode("latin-1", "replace")
            if not hmac.compare_digest(given, b"Bearer " + self.token.encode("ascii")):
                return 401
        return 200 if not self.networks or self._is_listed(address) else 403

    def _is_listed(self, address: str) -> bool:
        try:
            where = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False
        mapped = getattr(where, "ipv4_mapped", None)
        if mapped is not None:    # ::ffff:10.0.0.7: an IPv4 guest on a socket for both
            where = mapped
        return any(where.version == network.version and where in network for network in self.networks)


def parse_network(text: str) -> object:
    """A CIDR or one address."""
    try:
        return ipaddress.ip_network(text.strip(), strict=False)
    except ValueError:
        raise SwarmError(f"{text[:60]!a} is no network.", "Write it as 192.168.1.0/24 or fd00::/8.",
                         code="access") from None


def check_token(token: str) -> str:
    """`token` when it can be sent in a head and is not too easy to guess."""
    if not _TOKEN.fullmatch(token):
        raise SwarmError(f"The token is not 8 to {LONGEST_TOKEN} printable characters without spaces.",
                         "Make one with: python3 -c 'import secrets; print(secrets.token_urlsafe())'", code="access")
    return token


def read_token(path: str | None, environ: Mapping[str, str] | None = None) -> str:
    """The token of a file, else of the environment (QUARTERDECK_SWARM_TOKEN), else ""."""
    if path:
        try:
            return check_token(read_bounded(Path(path), 4_096).decode("utf-8", "replace").strip())
        except OSError as error:
            raise StoreError(f"The token file {path}: {error.strerror or error}.") from error
    given = (os.environ if environ is None else environ).get(VARIABLE, "").strip()
    return check_token(given) if given else ""


def is_loopback(host: str) -> bool:
    """Whether a seeder bound to `host` is heard on this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def check_exposure(host: str, access: Access, allow_open: bool) -> None:
    """A seeder that anybody may ask stays on loopback unless that is wanted: SwarmError, code open."""
    if access.open and not allow_open and not is_loopback(host):
        raise SwarmError(f"A seeder on {host or 'every address'} without a token or a list of networks "
                         "would give the model to anybody.",
                         "Give --token-file or --allowed-ips, or say --open.", code="open")
