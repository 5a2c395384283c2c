"""What a puller or seeder told so far, from the lines of its log. Pure; a node may lie, and nothing grows unbounded.

`fleet/node/progress.py` says what the lines are.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass

from fleet.model import Problem
from fleet.text import visible

LONGEST_LINE = 256 * 1024
MOST_FLOWS = 128
MOST_BANS = 64
MOST_SECONDS = 10 * 365 * 86_400.0
MOST_BYTES = 2.0**60
LONGEST_WORDS = 500


@dataclass(frozen=True, slots=True)
class Flow:
    """What one peer gave, by its URL."""

    url: str
    state: str = ""
    rate: float = 0.0
    received: int = 0
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Banned:
    """A peer that sent wrong bytes."""

    url: str
    piece: int
    why: str


class Told:
    """One life of one node's process: `feed` takes its log as it comes, in parts of any length."""

    def __init__(self, pieces: int) -> None:
        self.pieces = pieces
        self.have: set[int] = set()
        self.have_count = 0                  # as last told: more than `have` where the start was not heard
        self.phase = ""
        self.done_bytes = 0
        self.down = self.up = 0.0            # bytes a second
        self.eta: float | None = None
        self.flows: dict[str, Flow] = {}
        self.bans: dict[str, Banned] = {}
        self.url = ""                        # where it serves
        self.sent = 0                        # bytes of pieces that it gave away
        self.received = 0                    # bytes that the finished pull took
        self.finished = False                # it has the whole, verified and in place
        self.problem: Problem | None = None  # why it ended
        self.notes: list[str] = []           # the last few
        self._part = ""

    def feed(self, text: str) -> None:
        """More of the log."""
        *lines, self._part = (self._part + text).split("\n")
        if len(self._part) > LONGEST_LINE:
            self._part = ""
        for line in lines:
            if line.startswith("{") and len(line) <= LONGEST_LINE:
                try:
                    said = json.loads(line)
                except (ValueError, RecursionError):
                    continue                 # cut where the log was
                if isinstance(said, dict):
                    self._take(said)

    def learn(self, have: Iterable[int]) -> None:
        """Pieces that it has by its own note on disk."""
        self.have.update(index for index in have if 0 <= index < self.pieces)

    def _take(self, said: dict) -> None:
        match said.get("event"):
            case "progress":
                self._progress(said)
            case "piece":
                index = _whole(said.get("index"))
                if index is not None and index < self.pieces:
                    self.have.add(index)
                self.have_count = max(len(self.have), min(_whole(said.get("have")) or 0, self.pieces))
            case "serving":
                self.url = _words(said.get("url"))
                self.have_count = min(_whole(said.get("have")) or self.have_count, self.pieces)
            case "sent":
                self.sent = _whole(said.get("bytes")) or 0
                self.up = _number(said.get("up"), MOST_BYTES)
            case "banned":
                url = _words(said.get("url"))
                if len(self.bans) < MOST_BANS:
                    self.bans[url] = Banned(url, _whole(said.get("piece")) or 0, _words(said.get("why")))
            case "note":
                self.notes = [*self.notes[-4:], _words(said.get("what"))]
            case "done":
                self.finished, self.phase, self.eta, self.down = True, "done", None, 0.0
                self.received = _whole(said.get("received")) or 0
            case "error":
                self.problem = Problem(_words(said.get("code"))[:40] or "swarm", _words(said.get("what")),
                                       _words(said.get("remedy")))

    def _progress(self, said: dict) -> None:
        self.phase = _words(said.get("phase"))[:20]
        self.have_count = min(_whole(said.get("have")) or 0, self.pieces)
        self.done_bytes = _whole(said.get("done")) or 0
        self.down, self.up = _number(said.get("down"), MOST_BYTES), _number(said.get("up"), MOST_BYTES)
        eta = said.get("eta")
        self.eta = None if eta is None else _number(eta, MOST_SECONDS)
        peers = said.get("peers")
        for peer in peers[:MOST_FLOWS] if isinstance(peers, list) else ():
            if isinstance(peer, dict):
                url = _words(peer.get("url"))
                if url in self.flows or len(self.flows) < MOST_FLOWS:
                    self.flows[url] = Flow(url, _words(peer.get("state"))[:20], _number(peer.get("rate"), MOST_BYTES),
                                           _whole(peer.get("received")) or 0, _words(peer.get("trouble")))


def bitfield(have: Iterable[int], pieces: int) -> bytes:
    """Piece i is bit 7 - i % 8 of byte i // 8."""
    bits = bytearray(-(-pieces // 8))
    for index in have:
        bits[index >> 3] |= 0x80 >> (index & 7)
    return bytes(bits)


def _words(value: object) -> str:
    return visible(value, limit=LONGEST_WORDS) if isinstance(value, str) else ""


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST_BYTES else None


def _number(value: object, most: float) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        return 0.0
    return min(max(0.0, float(value)), most)
