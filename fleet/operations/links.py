"""Measure the links of a head before a bring-up, and when asked; what is known is kept in the Snapshot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fleet.errors import FleetError
from fleet.model import Link, Node
from fleet.nodes.links import measure_ways
from fleet.nodes.transport import Transport
from fleet.operations.arrangement import Seat
from fleet.operations.hands import Hands
from fleet.operations.situation import worse_link
from fleet.planning.addresses import worker_address
from fleet.runtimes.rpc_wire import occupant

FRESH = 60.0          # seconds: a link that was measured so short a time ago is not measured again before a bring-up


async def look_at_links(hands: Hands, head: Node, seats: Sequence[Seat]) -> None:
    """Measure the links to these workers that were not measured just now.

    Left alone are workers that are in use (a burst would disturb what they do, and be disturbed), those of the head's
    own node, and tunnelled ones, whose path begins only when their tunnel does.
    """
    now, snapshot = hands.clock(), hands.snapshot()
    places: dict[str, tuple[Node, str]] = {}
    for seat in seats:
        node = seat.choice.node
        known = snapshot.link(head.name, node.name)
        in_use = occupant(node.reading.sockets if node.reading else (), seat.choice.config.port) is not None
        fresh = known is not None and now - known.measured_at < FRESH
        if not (seat.tunnelled or in_use or fresh or node.name == head.name):
            places[node.name] = node, seat.bind
    await _measure(hands, head, places)


async def measure_links(hands: Hands, head: Node, workers: Sequence[Node]) -> dict[str, str]:
    """Measure the links to these nodes now; gives why one could not be measured, by node.

    Raises:
        PlanRefused: a node has no address that the head could dial.
        NodeError: the head is not connected.
    """
    others = [worker for worker in workers if worker.name != head.name]
    return await _measure(hands, head, {worker.name: (worker, worker_address(worker, head)) for worker in others})


async def _measure(hands: Hands, head: Node, places: Mapping[str, tuple[Node, str]]) -> dict[str, str]:
    missed: dict[str, str] = {}
    targets: dict[str, tuple[Transport, str]] = {}
    for name, (_, address) in places.items():
        try:
            targets[name] = hands.transport(name), address
        except FleetError as error:
            missed[name] = error.what
    if not targets:
        return missed
    ways = await measure_ways(hands.transport(head.name), targets)
    now = hands.clock()
    links = []
    for name, way in ways.items():
        if way.why:
            missed[name] = way.why
            continue
        node, address = places[name]
        links.append(Link(way.round_trip, way.bytes_per_second, worse_link(node, head, address), now,
                          way.bytes_per_second, head.name, name))
    if links:
        hands.keep_links(tuple(links))
    return missed
