"""Giving each piece away once: how a source with many guests lets them do the rest among themselves.

A piece that is being sent or was sent to one guest is shown to the others no longer, so they ask for
what nobody has yet and get the rest from each other. When nothing was asked for since a while, what
is still missing somewhere (a guest may have left with a piece) is shown again, to be given once more,
and the source calls itself spare from then on: guests that understand that ask it for nothing that
somebody else has.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from .holdings import Holdings

REST = 3.0      # seconds after the last piece was given, before all are shown again


class Turns:
    """`shown` is what the guests are told. Methods may be called from any thread."""

    def __init__(self, have: Iterable[int], clock: Callable[[], float] = time.monotonic) -> None:
        self._have = set(have)
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting = set(self._have)
        self._sending = 0
        self._last = clock()
        self.over = False      # the first round: everything was given that was asked for
        self.shown = Holdings(self._have)

    def begin(self, index: int) -> bool:
        """A guest asks for a piece: whether it may have it."""
        with self._lock:
            if index not in self._waiting:
                return False
            self._waiting.discard(index)
            self._sending += 1
            self._last = self._clock()
            self.shown.replace(self._waiting)
            return True

    def end(self, index: int, sent: bool) -> None:
        """The sending is over; a piece that did not get there is shown again."""
        with self._lock:
            self._sending -= 1
            self._last = self._clock()
            if not sent:
                self._waiting.add(index)
                self.shown.replace(self._waiting)

    def look(self) -> None:
        """Begin another round when nothing was asked for since a while and something is hidden."""
        with self._lock:
            hidden = len(self._waiting) < len(self._have)
            if hidden and not self._sending and self._clock() - self._last >= REST:
                self.over = True
                self._waiting = set(self._have)
                self._last = self._clock()
                self.shown.replace(self._have)
