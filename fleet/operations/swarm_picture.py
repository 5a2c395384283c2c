"""A distribution as the screens show it: one `Swarm` from what its members told. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fleet.model import Problem
from fleet.model.swarm import Ban, PeerState, Swarm, SwarmFlow, SwarmPeer
from fleet.operations.following import Follower
from fleet.operations.sending import Sending
from fleet.swarm.deal import Deal, Party
from fleet.swarm.told import bitfield


@dataclass(frozen=True, slots=True)
class Standing:
    """One target now. `named` makes a node's name of a peer's URL."""

    party: Party
    follower: Follower
    state: PeerState
    problem: Problem | None
    done_bytes: int
    sending: Sending | None
    named: Callable[[str], str]


def picture(deal: Deal, source: Follower, targets: Sequence[Standing], sent: int, now: float,
            ended: PeerState | None) -> Swarm:
    """The swarm at `now`. `ended`: how it ended, for what was under way."""
    manifest = deal.known
    whole = bitfield(range(manifest.count), manifest.count)
    first = SwarmPeer(deal.source.node, PeerState.SEEDING if ended is None else ended, whole, manifest.count,
                      deal.size, up=source.told.up if ended is None else 0.0, source=True)
    bans = tuple(Ban(standing.party.node, standing.named(ban.url), ban.piece, ban.why)
                 for standing in targets for ban in standing.follower.bans.values())
    return Swarm(manifest.id, deal.name, manifest.total_size, manifest.count, manifest.piece_size,
                 (first, *(_peer(deal, standing, whole, ended) for standing in targets)), bans, deal.started, now,
                 None if ended is None else now, deal.operation or None, sent)


def _peer(deal: Deal, standing: Standing, whole: bytes, ended: PeerState | None) -> SwarmPeer:
    told, state, sending = standing.follower.told, standing.state, standing.sending
    manifest, running = deal.known, ended is None
    if ended is not None and state is PeerState.SEEDING:
        state = PeerState.DONE
    elif ended is not None and state not in (PeerState.DONE, PeerState.FAILED):
        state = PeerState.STOPPED
    if sending is not None:
        have = range(manifest.count) if state is PeerState.DONE else range(sending.pieces)
        return SwarmPeer(standing.party.node, state, bitfield(have, manifest.count), len(have), standing.done_bytes,
                         sending.rate if running else 0.0, problem=standing.problem,
                         flows=(SwarmFlow(sending.giver.node, sending.done, sending.rate if running else 0.0),))
    if told.finished:
        bits, count, done = whole, manifest.count, deal.size
    else:
        bits, count, done = bitfield(told.have, manifest.count), max(told.have_count, len(told.have)), \
            standing.done_bytes
    flows = tuple(SwarmFlow(standing.named(flow.url), flow.received, flow.rate if running and not told.finished
                            else 0.0, flow.state or "up", flow.trouble) for flow in told.flows.values())
    return SwarmPeer(standing.party.node, state, bits, count, done, told.down if running else 0.0,
                     told.up if running else 0.0, told.eta if running else None, flows, problem=standing.problem)
