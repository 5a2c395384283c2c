"""What a puller knows of each peer: its pieces, speed, failures, and whether it may be asked."""

from __future__ import annotations

from collections.abc import Iterable

from .client import PeerAddress

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0    # seconds after a failure, doubled with each
SMOOTH = 0.3                              # weight of the newest measurement
DENIED = 5.0                              # seconds in which a piece that was not there is not asked for, doubled too


class Peer:
    """One peer; the puller's lock guards it. Times are monotonic."""

    def __init__(self, address: PeerAddress) -> None:
        self.address = address
        self.url = address.url
        self.have: set[int] = set()
        self.rate = 0.0             # bytes a second of one connection, smoothed
        self.active = 0             # requests in flight
        self.received = 0           # bytes
        self.failures = 0           # in a row
        self.rest_until = 0.0
        self.banned = ""            # why, "" when it is not
        self.useless = ""           # why nothing can be had from it although it did no wrong
        self.ranges = True
        self.said: set[int] = set()  # what its bitfield names, believed or not
        self.spare = False          # it gave everything once: asked for what nobody else has
        self.up = False             # its bitfield is known and current
        self.trouble = ""           # the last failure in words
        self.identity = ""          # what it calls itself
        self._denied: dict[int, tuple] = {}

    def usable(self, now: float) -> bool:
        """Whether it may be asked for a piece now."""
        return self.up and not self.banned and not self.useless and now >= self.rest_until

    def deny(self, index: int, now: float) -> None:
        """Its bitfield names the piece and it answered 404: not asked for it for a while."""
        times = self._denied.get(index, (0.0, 0))[1] + 1
        self._denied[index] = (now + DENIED * 2 ** min(times - 1, 8), times)
        self.have.discard(index)

    def admit(self, said: Iterable[int], now: float) -> list[int]:
        """Of the pieces that it says it has, those to believe now and not known yet."""
        return [index for index in said
                if index not in self.have and not (index in self._denied and now < self._denied[index][0])]

    def failed(self, now: float, why: str, jitter: float) -> None:
        """Leave it alone for a while, longer with every failure in a row; `jitter` is within 0 and 1."""
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(self.failures, 10))
        self.failures += 1
        self.rest_until = now + pause * (0.75 + 0.5 * jitter)
        self.trouble = why

    def gave(self, count: int, seconds: float) -> None:
        """A run of bytes came in."""
        self.failures, self.trouble = 0, ""
        if seconds > 0 and count >= 65_536:
            now = count / seconds
            self.rate = now if self.rate == 0 else (1 - SMOOTH) * self.rate + SMOOTH * now

    @property
    def state(self) -> str:
        """One word for a list: banned, useless, resting, connecting or up."""
        if self.banned:
            return "banned"
        if self.useless:
            return "useless"
        if not self.up:
            return "away"
        return "resting" if self.failures else "up"


def usual_rate(peers: list) -> float | None:
    """The middle of the measured rates, None when none was measured."""
    rates = sorted(peer.rate for peer in peers if peer.rate > 0)
    return rates[len(rates) // 2] if rates else None
