"""One machine is one node, under however many names and addresses it is seen.

Pure; the clock comes with every call. The nodes are worked out anew from all sightings and all
evidence whenever one of them changes, so the order in which they came cannot matter. Fleets are
small: thirty machines take two milliseconds.

Two sightings are one machine when they share a host key, a machine id, an address with its port
(behind the same hops), or an mDNS host name. Cloned images share keys and ids: a key that belongs
to several machine ids, and a machine id that answers under several host names, prove nothing. Nor
does an id that two named machines with unlike host keys both claim: a node says it of itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from fleet.discovery import grouping
from fleet.discovery.grouping import Endpoint, Evidence, Group, ranked
from fleet.discovery.naming import assign_names
from fleet.discovery.sightings import Sighting, Source
from fleet.events import NodeForgotten, NodeFound
from fleet.model import Address, Interface

GOODBYE_KEPT = 60.0          # seconds that a machine which said goodbye stays in sight
SILENCE_KEPT = 600.0         # seconds that one which fell silent stays, if we never got in
MDNS_SIGHTINGS_KEPT = 512   # of the network's: a flood is not the home's machines

Events = tuple[NodeFound | NodeForgotten, ...]


@dataclass(frozen=True, slots=True)
class KnownNode:
    """A machine, all sightings of it taken together."""

    name: str
    addresses: tuple[Address, ...]         # ranked
    sources: tuple[str, ...]
    aliases: tuple[str, ...]
    local: bool
    configured: bool                       # in fleet.yaml or typed by hand
    user: str                              # "" = nobody said
    identity_files: tuple[str, ...]
    jump: str
    through: str                           # ProxyCommand of ssh_config; "" = none
    heard_at: float                        # last sighting
    gone_since: float | None               # known of by mDNS alone, and mDNS has lost it
    said_goodbye: bool                     # it said so itself (else it fell silent)
    sightings: frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class _Loss:
    at: float
    goodbye: bool


class Registry:
    """All machines known of, by sightings and by what they proved to be.

    Every call that can change the nodes returns the events for it: NodeFound for each that is new or
    known differently (also when one that was gone is back), NodeForgotten for each that is no longer
    a node of its own, `into` being the one it turned out to be. NodeFound of `into` comes first.
    """

    def __init__(self, *, own_networks: Sequence[Interface] = (), machine_id: str = "", hostname: str = "") -> None:
        self.nodes: Mapping[str, KnownNode] = {}
        self._own = grouping.OwnMachine.of(own_networks, machine_id, hostname)
        self._sightings: dict[tuple[str, str], Sighting] = {}
        self._lost: dict[tuple[str, str], _Loss] = {}
        self._reached: dict[tuple[str, str], float] = {}
        self._evidence: dict[Endpoint, Evidence] = {}

    # ---- what is seen

    def saw(self, *sightings: Sighting) -> Events:
        """A source has seen these; an older sighting of the same id changes nothing."""
        for sighting in sightings:
            self._take(sighting)
        return self._settle(max((s.at for s in sightings), default=0.0))

    def lost(self, source: Source, key: str, at: float, *, goodbye: bool) -> Events:
        """mDNS has lost a machine: it said goodbye, or its records ran out."""
        known = self._lost.get((str(source), key))
        if known is None or (at, goodbye) > (known.at, known.goodbye):
            self._lost[str(source), key] = _Loss(at, goodbye)
        return self._settle(at)

    def replace(self, source: Source, sightings: Iterable[Sighting], at: float) -> Events:
        """All that a source says now (a file read again): what it no longer says is dropped at once."""
        for sighting_id in [known for known in self._sightings if known[0] == source]:
            self._drop(sighting_id)
        for sighting in sightings:
            self._take(sighting)
        return self._settle(at)

    def withdraw(self, source: Source, key: str, at: float) -> Events:
        """A source takes back one sighting."""
        self._drop((str(source), key))
        return self._settle(at)

    def own_networks_changed(self, own_networks: Sequence[Interface], at: float) -> Events:
        """This machine's interfaces are others now: addresses are judged and ranked anew."""
        if tuple(own_networks) == self._own.networks:
            return ()
        self._own = grouping.OwnMachine.of(own_networks, self._own.machine_id, self._own.hostname)
        return self._settle(at)

    # ---- what a connection proved

    def identify(self, name: str, at: float, *, address: Address | None = None, fingerprint: str = "",
                 machine_id: str = "", hostname: str = "") -> Events:
        """What answered at `address` of node `name` has this host key, machine id and host name.

        Without an address (or with one that no sighting has) it holds for the whole node. Call it
        with all that is known: after the handshake with the key, after a probe with the rest.
        """
        node = self.nodes.get(name)
        if node is None:
            return ()
        if node.local and machine_id and not self._own.machine_id:
            self._own = replace(self._own, machine_id=machine_id)
        changed = contradicted = False
        said = Evidence(at, fingerprint, machine_id, grouping.short(hostname), at)
        places = self._endpoints(node, address)
        for place in places:
            known = self._evidence.get(place)
            now = said if known is None else known.and_then(said)
            changed = changed or known is None or now.proof != known.proof
            contradicted = contradicted or (known is not None and not known.is_part_of(now))
            self._evidence[place] = now
        if not changed or not (contradicted or self._is_shared(said, places)):
            return ()
        return self._settle(at)

    def reached(self, name: str, at: float) -> None:
        """We are in: whatever mDNS says, this is no ghost."""
        node = self.nodes.get(name)
        for sighting_id in node.sightings if node is not None else ():
            self._reached[sighting_id] = max(at, self._reached.get(sighting_id, at))

    # ---- ghosts

    def prune(self, at: float) -> Events:
        """Drop what mDNS has lost: 60 s after a goodbye, 10 min after silence if we never got in.

        What fleet.yaml, ssh_config or the user named stays.
        """
        dropped = False
        for sighting_id, loss in list(self._lost.items()):
            sighting = self._sightings.get(sighting_id)
            if sighting is None or sighting.at > loss.at:
                del self._lost[sighting_id]
                continue
            reached = self._reached.get(sighting_id)
            since = max(loss.at, reached if reached is not None else loss.at)
            if (at - since >= GOODBYE_KEPT) if loss.goodbye else (reached is None and at - since >= SILENCE_KEPT):
                self._drop(sighting_id)
                dropped = True
        return self._settle(at) if dropped else ()

    # ---- inside

    def _is_shared(self, said: Evidence, places: Collection[Endpoint]) -> bool:
        """Whether it may join nodes: this machine, what is lost or the evidence of other places has to do with it.

        Of nearly every node it is all new, and to settle for each of a hundred would take a second.
        """
        if self._lost or (said.machine_id and said.machine_id == self._own.machine_id):
            return True
        own = set(places)
        return any(place not in own and ((said.fingerprint and said.fingerprint == other.fingerprint)
                                         or (said.machine_id and said.machine_id == other.machine_id))
                   for place, other in self._evidence.items())

    def _take(self, sighting: Sighting) -> None:
        known = self._sightings.get(sighting.id)
        if known is None and sighting.source is Source.MDNS and sum(
                1 for source, _ in self._sightings if source == Source.MDNS) >= MDNS_SIGHTINGS_KEPT:
            return
        if known is None or (sighting.at, repr(sighting)) >= (known.at, repr(known)):
            self._sightings[sighting.id] = sighting

    def _drop(self, sighting_id: tuple[str, str]) -> None:
        self._sightings.pop(sighting_id, None)
        self._lost.pop(sighting_id, None)
        self._reached.pop(sighting_id, None)

    def _endpoints(self, node: KnownNode, address: Address | None) -> list[Endpoint]:
        members = [self._sightings[sighting_id] for sighting_id in sorted(node.sightings)]
        if address is not None:
            exact = {grouping.endpoint(member, seen) for member in members for seen in member.addresses
                     if (seen.host.lower(), seen.port) == (address.host.lower(), address.port)}
            if exact:
                return sorted(exact)
        return [grouping.whole(member) for member in members]

    def _loss(self, sighting: Sighting) -> _Loss | None:
        loss = self._lost.get(sighting.id)
        return loss if loss is not None and loss.at >= sighting.at else None

    def _settle(self, at: float) -> Events:
        """Work out the nodes anew and tell what is different."""
        endpoints = {place for s in self._sightings.values() for place in grouping.endpoints(s)}
        self._evidence = {place: said for place, said in self._evidence.items() if place in endpoints}
        lost = {s.id: loss.at for s in self._sightings.values() if (loss := self._loss(s)) is not None}
        groups = grouping.groups(self._sightings.values(), lost, self._evidence, self._own)
        nodes = {name: self._known(name, names, group)
                 for (name, names), group in zip(assign_names(groups), groups, strict=True)}
        before, self.nodes = self.nodes, dict(sorted(nodes.items()))
        events: list[NodeFound | NodeForgotten] = []
        for name, node in self.nodes.items():
            old = before.get(name)
            back = old is not None and old.gone_since is not None and node.gone_since is None
            if old is None or back or _shown(old) != _shown(node):
                events.append(NodeFound(at, name, node.addresses, node.sources, node.aliases, node.local,
                                        node.configured))
        events += [NodeForgotten(at, name, _successor(old, self.nodes)) for name, old in before.items()
                   if name not in self.nodes]
        return tuple(events)

    def _known(self, name: str, names: Sequence[str], machine: Group) -> KnownNode:
        group, local = machine.sightings, machine.local
        losses = [loss for s in group if (loss := self._loss(s)) is not None]
        gone = len(losses) == len(group)
        first = next((s for s in group if s.source is not Source.LOCAL and s.addresses), group[0])
        if local:
            addresses = ranked(self._own.addresses, self._own, False)
        else:
            heard = [s for s in group if s.jump == first.jump and (gone or self._loss(s) is None)]
            usable = (address for s in heard for address in ranked(s.addresses, self._own, s.source is not Source.MDNS))
            addresses = ranked(tuple(usable), self._own, True)
        return KnownNode(
            name=name,
            addresses=addresses,
            sources=tuple(dict.fromkeys(str(s.source) for s in group)),
            aliases=tuple(alias for alias in names if alias != name),
            local=local,
            configured=any(s.source in (Source.CONFIG, Source.MANUAL) for s in group),
            user=next((s.user for s in group if s.user), ""),
            identity_files=next((s.identity_files for s in group if s.identity_files), ()),
            jump="" if local else first.jump,
            through="" if local else next((s.through for s in group if s.through), ""),
            heard_at=max(s.at for s in group),
            gone_since=max(loss.at for loss in losses) if gone else None,
            said_goodbye=gone and max((loss.at, loss.goodbye) for loss in losses)[1],
            sightings=frozenset(s.id for s in group),
        )


def _shown(node: KnownNode) -> tuple[object, ...]:
    return node.addresses, node.sources, node.aliases, node.local, node.configured


def _successor(old: KnownNode, nodes: Mapping[str, KnownNode]) -> str:
    """The node that most of the old one's sightings belong to now; "" when they are gone."""
    shared = [(len(old.sightings & node.sightings), name) for name, node in nodes.items()
              if old.sightings & node.sightings]
    return max(shared, key=lambda pair: (pair[0], pair[1]))[1] if shared else ""
