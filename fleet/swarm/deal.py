"""One distribution: what goes from where to whom, and everything about it that its steps share."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_interface

from fleet.errors import PlanRefused
from fleet.model import Node
from fleet.node import Manifest
from fleet.planning.addresses import LOOPBACK, has_address, worker_address
from fleet.swarm.push import Ground

SERVICE = "swarm-"                    # and the first digits of the manifest's id: the same on every node
PORTS = range(9100, 9900)
LINGER = 3_600                        # seconds after which what a cockpit left behind ends by itself
PATIENCE = 900                        # seconds without a byte after which a pull gives up
MIB = 1 << 20
SMALLEST, LARGEST = MIB, 64 * MIB     # pieces that we make
PIECES = 128                          # of a small model: enough that the last ones do not matter
SPARE = 64 * MIB                      # bytes that a disk keeps free


@dataclass
class Party:
    """One node that takes part."""

    node: str
    ground: Ground = Ground()
    port: int = 0
    bind: str = ""                    # address that it serves on
    program: str = ""                 # path of the zipapp there
    manifest_path: str = ""
    late: bool = False                # was not to be reached when the plan was made

    @property
    def by_hand(self) -> bool:
        """Whether it runs nothing of ours, and is written to by SFTP."""
        return not self.ground.python


@dataclass
class Deal:
    """A model, its source and its targets. `manifest` and `token` are known once the steps made them."""

    name: str                         # of the model's (first) file
    paths: tuple[str, ...]            # of its files at the source
    sizes: tuple[int, ...]
    source: Party
    targets: tuple[Party, ...]
    sha256: tuple[str, ...] = ()      # of each file, as the hub says
    limit: float = 0.0                # bytes a second that the source sends, 0 = no limit
    operation: int = 0
    manifest: Manifest | None = None
    token: str = field(default="", repr=False)
    allowed: tuple[str, ...] = ()     # addresses that may ask
    started: float = 0.0

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(self.sizes)

    @property
    def folder(self) -> str:
        """Where the model lies at the source."""
        return self.paths[0].rpartition("/")[0]

    @property
    def names(self) -> tuple[str, ...]:
        """Of its files."""
        return tuple(path.rpartition("/")[2] for path in self.paths)

    @property
    def known(self) -> Manifest:
        """The manifest, when it must be known."""
        if self.manifest is None:
            raise PlanRefused(f"{self.name} has no manifest yet.", "Distribute it again.")
        return self.manifest

    @property
    def service(self) -> str:
        """The id of its services, the same on every node."""
        return f"{SERVICE}{self.known.id[:16]}"

    def party(self, node: str) -> Party | None:
        """Who takes part under this name."""
        return next((party for party in (self.source, *self.targets) if party.node == node), None)


def piece_size(size: int) -> int:
    """Bytes of a piece for a model of `size` bytes: a power of two, so that there are 128 or more where that can be."""
    wanted = SMALLEST
    while wanted < LARGEST and wanted * 2 * PIECES <= size:
        wanted *= 2
    return wanted


def missing_bytes(ground: Ground, names: Sequence[str], sizes: Sequence[int]) -> int:
    """Bytes that have to be free on a target's disk: what is there or set aside already counts."""
    total = 0
    for name, size in zip(names, sizes, strict=True):
        there = ground.files.get(f"{ground.folder}/{name}")
        part = ground.files.get(f"{ground.folder}/{name}.part")
        if there is None:
            total += max(0, size - (part.allocated if part else 0))
    return total


def first_port(manifest: str, node: Node) -> int:
    """The port of this manifest's swarm on a node: the same everywhere, unless somebody listens there."""
    taken = {s.local_port for s in (node.reading.sockets if node.reading else ()) if s.listening}
    start = int(manifest[:8], 16) % len(PORTS)
    return next((port for port in (*PORTS[start:], *PORTS[:start]) if port not in taken), PORTS[start])


def dial_address(listener: Node, dialler: Node) -> str:
    """Where `dialler` reaches a seeder on `listener`; "" when they share no network."""
    if listener.reading is None:
        return next((host for address in listener.addresses if (host := _literal(address.host))), "")
    try:
        address = worker_address(listener, dialler)
    except PlanRefused:
        return ""
    return "" if address == LOOPBACK else address


def bind_address(listener: Node, diallers: Iterable[Node]) -> str:
    """The one address that all of them dial; every one where they dial several; loopback where nobody can."""
    wanted = {address for dialler in diallers if (address := dial_address(listener, dialler))}
    if not wanted:
        return LOOPBACK
    return wanted.pop() if len(wanted) == 1 else "0.0.0.0"


def allowed_addresses(nodes: Iterable[Node]) -> tuple[str, ...]:
    """Every address that a member of the fleet may come from.

    Of a node that was never read only those are known that it was configured with. Where that is a name, the networks
    of the others stand for it: the token keeps strangers out all the same.
    """
    nodes, found, networks = list(nodes), {LOOPBACK}, False
    for node in nodes:
        literal = {host for address in node.addresses if (host := _literal(address.host))}
        own = {host for interface in (node.reading.interfaces if node.reading else ()) if interface.up
               for text in interface.addresses if (host := _literal(text.partition("/")[0]))}
        networks = networks or not (literal or own)
        found |= literal | own
    if networks:
        for node in nodes:
            for interface in node.reading.interfaces if node.reading else ():
                found |= {network for text in interface.addresses if interface.up and (network := _network(text))}
    return tuple(sorted(found))


def _literal(host: str) -> str:
    try:
        return str(ip_address(host.partition("%")[0]))
    except ValueError:
        return ""


def _network(text: str) -> str:
    try:
        interface = ip_interface(text if "/" in text else f"{text}/24")
    except ValueError:
        return ""
    return str(interface.network) if interface.network.is_private and not interface.ip.is_loopback else ""


def node_at(url: str, nodes: Mapping[str, Node], deal: Deal, forwards: Mapping[str, str]) -> str:
    """Which member of a swarm a URL leads to; the URL itself when it is none's.

    `forwards`: by authority ("127.0.0.1:40001"), the node that a forwarded port leads to.
    """
    authority = url.removeprefix("http://").partition("/")[0]
    if authority in forwards:
        return forwards[authority]
    host, _, port = authority.rpartition(":")
    for party in (deal.source, *deal.targets):
        if party.node in nodes and has_address(nodes[party.node], host.strip("[]")) and str(party.port) == port:
            return party.node
    same = [party.node for party in (deal.source, *deal.targets)
            if party.node in nodes and has_address(nodes[party.node], host.strip("[]"))]
    return same[0] if len(same) == 1 else url


def digest_of(token: str) -> str:
    """What may be written down of a token, to know it again."""
    return hashlib.sha256(b"quarterdeck swarm " + token.encode()).hexdigest()[:16]


def puller_argv(deal: Deal, party: Party, secret: str, peers: Sequence[str], tracker: str,
                allowed: Sequence[str]) -> tuple[str, ...]:
    """What runs on a target. The token is in the file `secret`."""
    argv = [party.ground.python, party.program, "pull", party.ground.folder, "--manifest", party.manifest_path,
            "--keep-seeding", "--patience", str(PATIENCE), *_serving(party, secret, allowed)]
    for peer in peers:
        argv += ["--peer", peer]
    if tracker:
        argv += ["--tracker", tracker]
    return tuple(argv)


def seeder_argv(deal: Deal, secret: str, allowed: Sequence[str]) -> tuple[str, ...]:
    """What runs at the source."""
    limit = ("--limit-up", str(int(deal.limit))) if deal.limit > 0 else ()
    return (deal.source.ground.python, deal.source.program, "seed", deal.paths[0], "--once",
            *_serving(deal.source, secret, allowed), *limit)


def _serving(party: Party, secret: str, allowed: Sequence[str]) -> list[str]:
    argv = ["--host", party.bind, "--port", str(party.port), "--token-file", secret, "--linger", str(LINGER)]
    for address in allowed:
        argv += ["--allowed-ips", address]
    return argv
