"""What a pull, check or seeder tells while it works: records, and one JSON object a line.

    {"event": "progress", "phase": "pulling", "name": ..., "manifest": ID, "pieces": 640, "have": 12,
     "bytes": 42949672960, "done": 805306368, "down": 118000000.0, "up": 0.0, "eta": 357.1,
     "peers": [{"url": ..., "state": "up", "have": 640, "rate": ..., "received": ..., "trouble": ""}]}
    {"event": "piece", "index": 5, "peers": ["http://..."], "have": 13}
    {"event": "peer", "url": ..., "state": "joined" | "away" | "useless", "why": ...}
    {"event": "banned", "url": ..., "piece": 5, "why": ...}
    {"event": "note", "what": ...}
    {"event": "serving", "url": ..., "port": 9080, "name": ..., "manifest": ID}
    {"event": "sent", "bytes": BYTES, "up": 118000000.0}        (by who only serves, when it was more)
    {"event": "done", "paths": [...], "received": BYTES, "seconds": ...}
    {"event": "error", "code": ..., "what": ..., "remedy": ..., "have": 12, "pieces": 640}

Phases: checking, pulling, verifying, done, stopped. Rates are bytes a second, times seconds.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

CHECKING, PULLING, VERIFYING, DONE, STOPPED = "checking", "pulling", "verifying", "done", "stopped"


@dataclass(frozen=True)
class PeerLine:
    """One peer in a Progress."""

    url: str
    state: str
    have: int
    rate: float
    received: int
    trouble: str


@dataclass(frozen=True)
class Progress:
    """Where a pull is. `done` counts verified bytes and those of pieces in the making; `eta` None when unknown."""

    phase: str
    name: str
    manifest: str
    pieces: int
    have: int
    bytes: int
    done: int
    down: float = 0.0
    up: float = 0.0
    eta: float | None = None
    peers: tuple[PeerLine, ...] = ()
    event: str = "progress"


@dataclass(frozen=True)
class PieceDone:
    """A piece was verified; `peers` sent it."""

    index: int
    peers: tuple[str, ...]
    have: int
    event: str = "piece"


@dataclass(frozen=True)
class PeerChange:
    """A peer joined, went away or turned out useless."""

    url: str
    state: str
    why: str = ""
    event: str = "peer"


@dataclass(frozen=True)
class Banned:
    """A peer sent wrong bytes and is not asked again."""

    url: str
    piece: int
    why: str
    event: str = "banned"


@dataclass(frozen=True)
class Note:
    """Something worth knowing that changes nothing."""

    what: str
    event: str = "note"


def as_line(record: object) -> str:
    """A record as one line of JSON, without its newline."""
    return json.dumps(record if isinstance(record, dict) else asdict(record), ensure_ascii=True,
                      separators=(",", ":"))
