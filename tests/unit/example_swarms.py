"""Swarms to look at: one on its way, one in trouble, one that is done, one of thirty machines."""

from __future__ import annotations

import random
from dataclasses import replace

import example_fleets as fleets
from example_fleets import GIB, NOW

from fleet.model import (
    Ban,
    Operation,
    OperationState,
    PeerState,
    Problem,
    Snapshot,
    StepRecord,
    StepState,
    Swarm,
    SwarmFlow,
    SwarmPeer,
)

SIZE = int(18.6 * GIB)
PIECE = 4 * 1024 * 1024
PIECES = -(-SIZE // PIECE)
NAMES = ("bolt", "cedar", "dove", "elm", "fjord")
MB = 1_000_000.0


def bitfield(share: float, seed: int, pieces: int = PIECES, *, runs: int = 40) -> bytes:
    """About `share` of the pieces, in runs as they come of rarest first among equals."""
    random_ = random.Random(seed)
    have = bytearray((pieces + 7) // 8)
    wanted = share * pieces
    found = 0
    while found < wanted:
        start = random_.randrange(pieces)
        for piece in range(start, min(start + runs, pieces)):
            if not have[piece // 8] & 128 >> piece % 8 and random_.random() < 0.9:
                have[piece // 8] |= 128 >> piece % 8
                found += 1
    return bytes(have)


def full(pieces: int = PIECES) -> bytes:
    """All of them, and nothing behind the end."""
    return bytes([255] * (pieces // 8) + ([256 - (1 << 8 - pieces % 8)] if pieces % 8 else []))


def source(**more: object) -> SwarmPeer:
    values: dict[str, object] = {"have": full(), "have_count": PIECES, "done_bytes": SIZE, "up": 117 * MB,
                                 "source": True}
    return SwarmPeer("atlas", PeerState.SEEDING, **{**values, **more})  # type: ignore[arg-type]


def peer(number: int, share: float, state: PeerState = PeerState.PULLING, **more: object) -> SwarmPeer:
    name = NAMES[number] if number < len(NAMES) else f"node{number:02d}"
    have = full() if share >= 1 else bitfield(share, number)
    got = sum(byte.bit_count() for byte in have)
    others = [NAMES[other] for other in range(4) if other != number]
    flows = (SwarmFlow("atlas", int(SIZE * share * 0.3), (41 - number * 7) * MB if share < 1 else 0.0),
             *(SwarmFlow(other, int(SIZE * share * (0.35 - place * 0.1)),
                         (38 - place * 12 - number) * MB if share < 1 and place < 2 else 0.0)
               for place, other in enumerate(others)))
    values: dict[str, object] = {
        "have": have, "have_count": got, "done_bytes": min(got * PIECE, SIZE), "flows": flows,
        "down": sum(flow.rate for flow in flows), "up": (52 - number * 9) * MB if state is PeerState.PULLING else 0.0,
        "eta": (1 - share) * 260 + 20 if share < 1 else None}
    return SwarmPeer(name, state, **{**values, **more})  # type: ignore[arg-type]


def swarm(*peers: SwarmPeer, **more: object) -> Swarm:
    values: dict[str, object] = {"started": NOW - 190, "read_at": NOW - 0.4, "operation": 9,
                                 "sent_by_source": int(SIZE * 0.74)}
    return Swarm("5f1c", "Qwen3-32B-Q4_K_M.gguf", SIZE, PIECES, PIECE, peers,
                 **{**values, **more})  # type: ignore[arg-type]


def with_swarms(*swarms: Swarm) -> Snapshot:
    """A fleet that distributes."""
    running = Operation(9, "distribute", "Distribute Qwen3-32B-Q4_K_M.gguf", OperationState.RUNNING, (
        StepRecord("Send pieces", "atlas", StepState.RUNNING, started=NOW - 190, progress=0.6),), NOW - 200)
    return replace(fleets.normal(), swarms=swarms, operations=(running,))


def normal() -> Snapshot:
    """Five machines, the source about three quarters through."""
    return with_swarms(swarm(
        source(), peer(0, 0.81), peer(1, 0.64), peer(2, 0.47), peer(3, 1.0, PeerState.SEEDING, up=88 * MB),
        peer(4, 0.2, PeerState.CHECKING, down=0.0, up=0.0, eta=None, flows=())))


def empty() -> Snapshot:
    """Nothing is distributed."""
    return fleets.normal()


def failing() -> Snapshot:
    """One machine sends wrong bytes, one has a full disk, one waits; a piece is nowhere whole but at the source."""
    banned = SwarmFlow("dove", 612_000_000, 0.0, "banned", "piece 97 is not what it should be")
    bolt, cedar = peer(0, 0.7), peer(1, 0.55)
    bolt = replace(bolt, flows=(*(flow for flow in bolt.flows if flow.source != "dove"), banned))
    elm = peer(3, 0.31, PeerState.FAILED, down=0.0, up=0.0, eta=None, problem=Problem(
        "disk-full", "The disk of elm is full: 812 MiB are free, 12.9 GiB are missing.",
        "Make room below /models on elm, then distribute it again; what is there is kept."))
    return with_swarms(swarm(
        source(), bolt, cedar, peer(2, 0.62, up=0.0), elm, peer(4, 0.0, PeerState.WAITING, down=0.0, up=0.0, eta=None,
                                                               flows=()),
        bans=(Ban("bolt", "dove", 97, "hash"), Ban("cedar", "dove", 1033, "hash"), Ban("bolt", "dove", 412, "hash")),
        sent_by_source=int(SIZE * 1.46)))


def stale() -> Snapshot:
    """Nobody has told anything for a minute and a half."""
    snapshot = normal()
    return replace(snapshot, swarms=(replace(snapshot.swarms[0], read_at=NOW - 95),))


def done() -> Snapshot:
    """Over; another one was stopped before that."""
    whole = [peer(number, 1.0, PeerState.DONE) for number in range(3)]
    first = replace(swarm(source(up=0.0), peer(0, 0.4, PeerState.STOPPED, down=0.0, up=0.0, eta=None)), id="0a",
                    name="gemma-3-27b-it-Q4_K_M.gguf", ended=NOW - 4000, operation=3)
    last = swarm(source(up=0.0), *whole, ended=NOW - 70, operation=8, sent_by_source=int(SIZE * 1.04))
    return replace(with_swarms(first, last), operations=())


def crowd(frame: int = 0, machines: int = 30, pieces: int = 5000) -> Snapshot:
    """Thirty machines and 5,000 pieces; every frame each machine gets twenty-five more somewhere."""
    peers = []
    for number in range(machines):
        random_ = random.Random(number)
        order = list(range(pieces))
        random_.shuffle(order)
        got = (number * 37 + frame * 25) % pieces
        have = bytearray((pieces + 7) // 8)
        for piece in order[:got]:
            have[piece // 8] |= 128 >> piece % 8
        peers.append(SwarmPeer(
            f"node{number:02d}", PeerState.PULLING, bytes(have), got, got * PIECE,
            (60 + (frame * 7 + number) % 40) * MB, (30 + (frame * 11 + number) % 50) * MB, 400.0 - frame, (
                SwarmFlow("atlas", got * PIECE // 3, (20 + (frame + number) % 9) * MB),
                SwarmFlow(f"node{(number + 1) % machines:02d}", got * PIECE // 3, (frame % 7 + number) * MB))))
    first = SwarmPeer("atlas", PeerState.SEEDING, full(pieces), pieces, pieces * PIECE, 0.0,
                      (100 + frame % 17) * MB, source=True)
    return with_swarms(replace(swarm(first, *peers, read_at=NOW + frame * 0.5), pieces=pieces, size=pieces * PIECE,
                               sent_by_source=frame * 400_000_000))
