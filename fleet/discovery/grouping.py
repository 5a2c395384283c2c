"""Which sightings are of one machine: shared keys, joined. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from fleet.discovery.addresses import kind_of, parse_ip, rank
from fleet.discovery.sightings import SSH_PORT, Sighting, Source
from fleet.model import Address, Interface, LinkKind

Endpoint = tuple[str, str, int]       # hops, host in lower case, port; or a whole sighting: source, key, -1
Key = tuple[object, ...]

THIS_MACHINE: Key = ("this machine",)

# Whose name a node bears, and whose user and key files count.
_PRECEDENCE = {source: place for place, source in enumerate(
    (Source.CONFIG, Source.LOCAL, Source.SSH_CONFIG, Source.MANUAL, Source.MDNS))}


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a connection to one endpoint proved; "" = not known yet."""

    at: float                          # last proved
    fingerprint: str
    machine_id: str
    hostname: str
    since: float                       # first proved

    @property
    def proof(self) -> tuple[str, str, str]:
        """What it proves, whenever that was."""
        return self.fingerprint, self.machine_id, self.hostname

    def is_part_of(self, other: Evidence) -> bool:
        """Whether the other one proves all that this one does."""
        return all(not mine or mine == theirs for mine, theirs in zip(self.proof, other.proof, strict=True))

    def and_then(self, other: Evidence) -> Evidence:
        """Both taken together; another key or another machine id is another machine, and the later one counts."""
        first, last = sorted((self, other), key=lambda e: (e.at, e.fingerprint, e.machine_id, e.hostname))
        for before, now in ((first.fingerprint, last.fingerprint), (first.machine_id, last.machine_id)):
            if before and now and before != now:
                return last
        return Evidence(last.at, last.fingerprint or first.fingerprint, last.machine_id or first.machine_id,
                        last.hostname or first.hostname, min(first.since, last.since))


@dataclass(frozen=True, slots=True, eq=False)
class OwnMachine:
    """What tells that a sighting is of the machine that we run on."""

    networks: tuple[Interface, ...]
    addresses: tuple[Address, ...]         # without loopback and container bridges
    hosts: frozenset[str]
    machine_id: str
    hostname: str

    @classmethod
    def of(cls, networks: Sequence[Interface], machine_id: str, hostname: str) -> OwnMachine:
        """From this machine's interfaces."""
        addresses = []
        for interface in networks:
            for text in interface.addresses:
                host = text.partition("/")[0]
                kind = kind_of(interface.name, host)
                if kind not in (LinkKind.CONTAINER, LinkKind.LOOPBACK):
                    addresses.append(Address(host, kind=interface.kind if kind is LinkKind.UNKNOWN else kind,
                                             source=Source.LOCAL))
        return cls(tuple(networks), tuple(addresses), frozenset(a.host.lower() for a in addresses), machine_id,
                   short(hostname))


@lru_cache(maxsize=4096)
def ranked(addresses: tuple[Address, ...], own: OwnMachine, local: bool) -> tuple[Address, ...]:
    """`rank` as this machine sees it, remembered: the same addresses are judged at every turn."""
    return rank(addresses, own_networks=own.networks, local=local)


def short(hostname: str) -> str:
    """A host name as machines tell it, made comparable: "Atlas.local" is "atlas"."""
    return hostname.strip().lower().partition(".")[0]


def endpoint(sighting: Sighting, address: Address) -> Endpoint:
    """Where evidence for one address of a sighting is kept."""
    return sighting.jump or sighting.through, address.host.lower(), address.port


def whole(sighting: Sighting) -> Endpoint:
    """Where evidence for a sighting as such is kept."""
    return (*sighting.id, -1)


def endpoints(sighting: Sighting) -> tuple[Endpoint, ...]:
    """All places that can hold evidence for a sighting."""
    return (whole(sighting), *(endpoint(sighting, address) for address in sighting.addresses))


def precedence(sighting: Sighting) -> tuple[object, ...]:
    """Sorts the sighting that counts most first; an address typed by hand is the poorest name."""
    typed_ip = sighting.source is Source.MANUAL and parse_ip(sighting.addresses[0].host) is not None
    return (_PRECEDENCE[sighting.source] + 2 * typed_ip, len(sighting.name), sighting.name, sighting.id)


@dataclass(frozen=True, slots=True)
class Group:
    """One machine: its sightings, the one that counts most first."""

    sightings: tuple[Sighting, ...]
    local: bool                        # it is the one that we run on


def groups(sightings: Collection[Sighting], lost: Mapping[tuple[str, str], float],
           evidence: Mapping[Endpoint, Evidence], own: OwnMachine) -> list[Group]:
    """The machines; those that count most first. `lost` tells when mDNS lost a sighting.

    A sighting of mDNS alone that has no usable address is no machine.
    """
    aliases = {s.name.lower() for s in sightings if s.source is Source.SSH_CONFIG}
    given = {place for s in sightings if s.source is not Source.MDNS for place in endpoints(s)}
    proofs = _proofs(evidence, own, given)
    root: dict[Key, Key] = {}

    def find(key: Key) -> Key:
        while root.setdefault(key, key) != key:
            root[key] = root[root[key]]
            key = root[key]
        return key

    for sighting in sightings:
        mine = find(("sighting", *sighting.id))
        for key in _keys(sighting, lost.get(sighting.id), aliases, evidence, proofs, own):
            root[find(key)] = mine
            mine = find(mine)
    members: defaultdict[Key, list[Sighting]] = defaultdict(list)
    for sighting in sorted(sightings, key=precedence):
        members[find(("sighting", *sighting.id))].append(sighting)
    ours = find(THIS_MACHINE)
    return [Group(tuple(group), key == ours) for key, group in members.items() if any(
        s.source is not Source.MDNS or ranked(s.addresses, own, False) for s in group)]


def _keys(sighting: Sighting, lost: float | None, aliases: Collection[str], evidence: Mapping[Endpoint, Evidence],
          proofs: Mapping[Endpoint, tuple[Key, ...]], own: OwnMachine) -> list[Key]:
    """All that this sighting shares with others of the same machine.

    The address of a machine that is lost may be another's by now: it shares what was proved there
    before, not the address.
    """
    keys: list[Key] = [*proofs.get(whole(sighting), ())]
    if sighting.local:
        keys.append(THIS_MACHINE)
    by_mdns = sighting.source is Source.MDNS
    usable = ranked(sighting.addresses, own, not by_mdns)
    for address in usable:
        place = endpoint(sighting, address)
        if lost is not None:
            if place in evidence and evidence[place].since <= lost:
                keys.extend(proofs[place])
            continue
        keys.append(("at", *place))
        keys.extend(proofs.get(place, ()))
        if not (sighting.jump or sighting.through):
            keys.extend(_local_keys(address, by_mdns, own))
            if not by_mdns:
                keys.extend(_name_keys(address.host, aliases, own))
    if by_mdns and sighting.host:
        keys.append(("name", sighting.host.lower().rstrip(".").removesuffix(".local")))
    if sighting.source is Source.SSH_CONFIG:
        keys.append(("alias", sighting.name.lower()))
    return keys


def _local_keys(address: Address, by_mdns: bool, own: OwnMachine) -> list[Key]:
    """Loopback and our own addresses are this machine.

    On another port than sshd's they can be forwarded from a virtual machine or a container, which
    is a machine of its own; an mDNS answer with our address is ours whatever the port.
    """
    host = address.host.lower()
    ip = parse_ip(host)
    ours = host in own.hosts or (not by_mdns and (host == "localhost" or (ip is not None and ip.is_loopback)))
    return [THIS_MACHINE] if ours and (by_mdns or address.port == SSH_PORT) else []


def _name_keys(host: str, aliases: Collection[str], own: OwnMachine) -> list[Key]:
    """A bare name is an alias of ssh_config if there is one, else this machine's or an mDNS host name."""
    name = host.lower().rstrip(".")
    if parse_ip(name) is not None:
        return []
    if name in aliases:
        return [("alias", name)]
    bare = name.removesuffix(".local")
    if "." in bare:
        return []
    return [THIS_MACHINE] if own.hostname and bare == own.hostname else [("name", bare)]


def _proofs(evidence: Mapping[Endpoint, Evidence], own: OwnMachine,
            given: Collection[Endpoint]) -> dict[Endpoint, tuple[Key, ...]]:
    """What each endpoint's evidence proves, shared by all who have the same.

    A host key is proved, a machine id and a host name are only said: where places that say the same have unlike host
    keys, and were given by a person or a file, one of them says it to pass for the other. They stay as many machines
    as they have keys.
    """
    hostnames: defaultdict[str, set[str]] = defaultdict(set)
    if own.machine_id and own.hostname:
        hostnames[own.machine_id].add(own.hostname)
    for said in evidence.values():
        if said.machine_id and said.hostname:
            hostnames[said.machine_id].add(said.hostname)

    keys_of: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for place, said in evidence.items():
        if place in given and said.machine_id and said.fingerprint:
            keys_of[said.machine_id, said.hostname].add(said.fingerprint)

    def machine(said: Evidence) -> Key:
        if len(keys_of[said.machine_id, said.hostname]) > 1 and said.fingerprint:
            return ("machine", said.machine_id, said.hostname, said.fingerprint)
        cloned = len(hostnames[said.machine_id]) > 1
        if said.machine_id == own.machine_id and (not cloned or said.hostname == own.hostname):
            return THIS_MACHINE
        return ("machine", said.machine_id, said.hostname) if cloned else ("machine", said.machine_id)

    owners: defaultdict[str, set[Key]] = defaultdict(set)
    for said in evidence.values():
        if said.fingerprint and said.machine_id:
            owners[said.fingerprint].add(machine(said))
    proofs: dict[Endpoint, tuple[Key, ...]] = {}
    for place, said in evidence.items():
        keys: list[Key] = [machine(said)] if said.machine_id else []
        if said.fingerprint and len(owners[said.fingerprint]) <= 1:
            keys.append(("host key", said.fingerprint))
        proofs[place] = tuple(keys)
    return proofs
