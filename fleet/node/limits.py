"""How fast bytes may go: token buckets, for all together and for each peer, both ways.

A bucket may be overdrawn by one reservation; the wait that pays for it is returned, never slept
here. Rates are bytes a second, 0 = no limit, and may change while a transfer runs.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from typing import Callable

MOST_PEERS = 1_024
BURST = 0.25              # seconds' worth that may go at once after a pause
SMALLEST_CHUNK = 16_384   # bytes
BIGGEST_CHUNK = 4 << 20


class TokenBucket:
    """`reserve(n)` books n bytes and says how many seconds to wait before (or after) moving them."""

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate, self._clock = rate, clock
        self._level = rate * BURST
        self._at = clock()

    def set_rate(self, rate: float) -> None:
        """From now on; what was overdrawn at the old rate is forgiven."""
        self._at, self._level, self.rate = self._clock(), rate * BURST, rate

    def reserve(self, count: int) -> float:
        """Seconds until `count` bytes more are within the rate."""
        if self.rate <= 0:
            return 0.0
        now = self._clock()
        self._level = min(self.rate * BURST, self._level + max(0.0, now - self._at) * self.rate)
        self._at = now
        self._level -= count
        return max(0.0, -self._level / self.rate)


class Throttle:
    """One direction: a bucket for the total and one for each peer."""

    def __init__(self, total: float = 0.0, per_peer: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._lock = threading.Lock()
        self._clock = clock
        self._total = TokenBucket(total, clock)
        self._per_peer = per_peer
        self._peers: OrderedDict = OrderedDict()

    def set_rates(self, total: float, per_peer: float) -> None:
        """New limits for both, from now on."""
        with self._lock:
            self._total.set_rate(total)
            self._per_peer = per_peer
            for bucket in self._peers.values():
                bucket.set_rate(per_peer)

    @property
    def limited(self) -> bool:
        """Whether any limit is set."""
        return self._total.rate > 0 or self._per_peer > 0

    def chunk(self) -> int:
        """How many bytes to move at once, so that a limit is felt evenly."""
        rates = [rate for rate in (self._total.rate, self._per_peer) if rate > 0]
        if not rates:
            return BIGGEST_CHUNK
        return int(max(SMALLEST_CHUNK, min(BIGGEST_CHUNK, min(rates) / 8)))

    def reserve(self, peer: str, count: int) -> float:
        """Seconds to wait for `count` bytes from or to `peer`."""
        if not self.limited:
            return 0.0
        with self._lock:
            wait = self._total.reserve(count)
            if self._per_peer > 0:
                bucket = self._peers.get(peer)
                if bucket is None:
                    bucket = self._peers[peer] = TokenBucket(self._per_peer, self._clock)
                    if len(self._peers) > MOST_PEERS:
                        self._peers.popitem(last=False)
                self._peers.move_to_end(peer)
                wait = max(wait, bucket.reserve(count))
            return wait


def parse_rate(text: str) -> float:
    """"50M", "800k", "1.5G", "0": bytes a second (powers of 1000). ValueError when it is none."""
    units = {"k": 1e3, "m": 1e6, "g": 1e9}
    word = text.strip().lower()
    factor = units.get(word[-1:], 1.0)
    number = float(word[:-1] if word[-1:] in units else word)
    if not 0 <= number * factor <= 1e12:
        raise ValueError(f"'{text}' is no rate")
    return number * factor
