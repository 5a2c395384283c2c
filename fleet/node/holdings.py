"""Which pieces are here, for many threads: a set that can be waited on.

Its version is one number that only grows. Who was told of version N asks for what came since and
gets just the new pieces, or everything when pieces were lost meanwhile.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class News:
    """`new` since the version asked for, or None when all of `have` is to be told again."""

    version: int
    have: tuple
    new: tuple | None


class Holdings:
    """The pieces that are here and right. All methods may be called from any thread."""

    def __init__(self, have: Iterable[int] = ()) -> None:
        self._changed = threading.Condition()
        self._have: set = set(have)
        # A start that differs from run to run: a number from before a restart is never taken for one of now.
        self._base = int.from_bytes(os.urandom(4), "big") << 20
        self._log: list = []
        self._arrived: set = set()

    def __len__(self) -> int:
        return len(self._have)

    def __contains__(self, index: object) -> bool:
        return index in self._have

    @property
    def version(self) -> int:
        """Grows with every change."""
        return self._base + len(self._log)

    def snapshot(self) -> tuple:
        """The pieces in ascending order."""
        with self._changed:
            return tuple(sorted(self._have))

    def gain(self, index: int) -> None:
        """A piece was verified."""
        with self._changed:
            if index not in self._have:
                self._have.add(index)
                self._log.append(index)
                self._changed.notify_all()

    def replace(self, have: Iterable[int]) -> None:
        """Start again with other pieces: whoever waits is told everything."""
        with self._changed:
            self._have = set(have)
            self._base += len(self._log) + 1
            self._log = []
            self._changed.notify_all()

    def news(self, since: int | None = None, wait: float = 0.0) -> News:
        """What changed after version `since`; waits up to `wait` seconds for a change."""
        until = time.monotonic() + wait
        with self._changed:
            while since == self.version:
                left = until - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            if since is not None and self._base <= since <= self.version:
                return News(self.version, (), tuple(self._log[since - self._base:]))
            return News(self.version, tuple(sorted(self._have)), None)

    def arrive(self, index: int) -> None:
        """A piece is written and waits to be verified in its turn by the hash of the whole."""
        with self._changed:
            self._arrived.add(index)
            self._changed.notify_all()

    def take_arrived(self, index: int, wait: float) -> bool:
        """Wait for piece `index`: True when it is written and unverified (it is the caller's now), False when it
        is here and right, or nothing came in `wait` seconds."""
        until = time.monotonic() + wait
        with self._changed:
            while index not in self._have and index not in self._arrived:
                left = until - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(left)
            if index in self._have:
                return False
            self._arrived.discard(index)
            return True

    def take_any_arrived(self) -> int:
        """Some piece that is written and unverified, -1 when there is none."""
        with self._changed:
            return self._arrived.pop() if self._arrived else -1

    def wake(self) -> None:
        """Let go everyone who waits (a shutdown)."""
        with self._changed:
            self._base += len(self._log) + 1
            self._log = []
            self._changed.notify_all()
