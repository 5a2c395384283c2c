"""Who else has a piece of this model: a small bounded register that any seeder keeps.

A peer announces itself with the port that it serves on; its address is the one that it was seen
from, so nobody can enter anybody else. An entry that is not renewed within TTL seconds is gone.
"""

from __future__ import annotations

import re
import threading
import time
from collections import OrderedDict
from typing import Callable

TTL = 90.0               # seconds
INTERVAL = 30            # seconds between two announcements
MOST_SWARMS = 256
MOST_PEERS = 256         # of one swarm
MOST_OF_ADDRESS = 32     # entries of one address over all swarms: one guest cannot fill the register
MOST_TOLD = 64
_ID = re.compile(r"[0-9a-f]{64}")


class Tracker:
    """The register. Methods may be called from any thread; `clock` is monotonic."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._swarms: OrderedDict = OrderedDict()

    def announce(self, manifest: str, address: str, port: int) -> list:
        """Enter (address, port) unless port is 0; the other peers of that swarm, the freshest first.

        ValueError for an id or a port that is none.
        """
        if not _ID.fullmatch(manifest):
            raise ValueError("manifest is no id")
        if not 0 <= port <= 65_535:
            raise ValueError("port is none")
        now = self._clock()
        with self._lock:
            self._forget(now)
            peers = self._swarms.get(manifest, OrderedDict())
            others = [peer for peer in reversed(peers) if peer != (address, port)]
            if port and (address, port) not in peers and self._entries_of(address) >= MOST_OF_ADDRESS:
                return others[:MOST_TOLD]
            if port:
                self._swarms[manifest] = peers
                self._swarms.move_to_end(manifest)
                peers[(address, port)] = now
                peers.move_to_end((address, port))
                if len(peers) > MOST_PEERS:
                    peers.popitem(last=False)
                if len(self._swarms) > MOST_SWARMS:
                    self._swarms.popitem(last=False)
            return others[:MOST_TOLD]

    def _entries_of(self, address: str) -> int:
        return sum(1 for peers in self._swarms.values() for entry in peers if entry[0] == address)

    def _forget(self, now: float) -> None:
        for manifest in list(self._swarms):
            peers = self._swarms[manifest]
            for entry in [entry for entry, seen in peers.items() if now - seen > TTL]:
                del peers[entry]
            if not peers:
                del self._swarms[manifest]


def peer_url(address: str, port: int, manifest: str) -> str:
    """Where a peer of the register serves that model."""
    host = f"[{address}]" if ":" in address else address
    return f"http://{host}:{port}/models/{manifest}"
