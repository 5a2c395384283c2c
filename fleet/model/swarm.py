"""Models on their way from machine to machine, as last told by their seeders and pullers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from fleet.model.words import Problem


class PeerState(StrEnum):
    """Where a machine stands in a swarm."""

    WAITING = "waiting"                   # not begun
    CHECKING = "checking"                 # hashes what is there
    PULLING = "pulling"
    VERIFYING = "verifying"
    DONE = "done"                         # whole and verified
    SEEDING = "seeding"                   # whole, and gives to others
    SENDING = "sending"                   # written to by SFTP: no python3 there
    STOPPED = "stopped"                   # by somebody; resumable
    FAILED = "failed"                     # resumable; `problem` says why


@dataclass(frozen=True, slots=True)
class SwarmFlow:
    """Bytes that one machine got from another."""

    source: str                           # node or URL
    received: int = 0                     # bytes so far
    rate: float = 0.0                     # bytes a second
    state: str = "up"                     # "up", "away", "useless", "banned"
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class SwarmPeer:
    """One machine of a swarm and the pieces that it has."""

    node: str
    state: PeerState
    have: bytes = b""                     # bitfield: piece i is bit 7 - i % 8 of byte i // 8
    have_count: int = 0
    done_bytes: int = 0                   # verified, and those of pieces in the making
    down: float = 0.0                     # bytes a second
    up: float = 0.0
    eta: float | None = None              # seconds
    flows: tuple[SwarmFlow, ...] = ()
    source: bool = False                  # where the model came from
    problem: Problem | None = None


@dataclass(frozen=True, slots=True)
class Ban:
    """A peer that sent wrong bytes."""

    node: str                             # who noticed
    source: str                           # who sent them: node or URL
    piece: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class Swarm:
    """One model being distributed, or seeded."""

    id: str                               # of its manifest
    name: str                             # file name of the model
    size: int                             # bytes
    pieces: int
    piece_size: int
    peers: tuple[SwarmPeer, ...] = ()
    bans: tuple[Ban, ...] = ()
    started: float = 0.0                  # engine clock
    read_at: float = 0.0
    ended: float | None = None
    operation: int | None = None          # that runs it
    sent_by_source: int = 0               # bytes
