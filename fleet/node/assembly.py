"""One piece in the making: who writes which run of its bytes, and who sent what when the hash is wrong.

A segment belongs to one worker, which writes forward from its start. Its end may be moved towards
its position by another worker that takes the rest over from another peer. What a lost peer leaves
undone is a gap for the next. A piece that came in one segment was hashed as it arrived; one that
came in several is hashed by reading it back.
"""

from __future__ import annotations

import hashlib
import threading
import time

from .manifest import Piece


class Segment:
    """Bytes `start` to `stop` of a piece from one peer; those before `position` are claimed."""

    def __init__(self, assembly: Assembly, peer: str, start: int, stop: int) -> None:
        self.assembly, self.peer, self.start, self.stop = assembly, peer, start, stop
        self.position = start
        self.begun = self.last = time.monotonic()
        self.hasher = hashlib.sha256()
        self.over = False
        self.connection: object | None = None   # to end a wait from another thread

    @property
    def left(self) -> int:
        """Bytes that are not claimed yet."""
        return self.stop - self.position

    def rate(self, now: float) -> float:
        """Bytes a second since it began."""
        return (self.position - self.start) / max(0.05, now - self.begun)

    def claim(self, count: int) -> tuple[int, int]:
        """`count` bytes arrived: (where in the piece, how many of them are still this segment's)."""
        with self.assembly.lock:
            mine = max(0, min(count, self.stop - self.position))
            at = self.position
            self.position += mine
            if mine:
                self.last = time.monotonic()
            return at, mine

    def take_over(self, share: int) -> tuple[int, int]:
        """Cut off the last `share` bytes (fewer when it moved on meanwhile): (start, stop), empty when none is left."""
        with self.assembly.lock:
            cut = max(self.position, self.stop - share)
            taken = (cut, self.stop)
            self.stop = cut
            return taken


class Assembly:
    """The segments and gaps of one piece. `sent` remembers (peer, start, stop, digest) of every run."""

    def __init__(self, piece: Piece) -> None:
        self.piece = piece
        self.lock = threading.Lock()
        self.segments: list[Segment] = []
        self.gaps: list[tuple[int, int]] = [(0, piece.size)]
        self.sent: list[tuple[str, int, int, str]] = []
        self.in_turn = False      # not hashed as it arrives: the hash of the whole verifies it in its turn
        self._whole: str | None = None

    @property
    def is_complete(self) -> bool:
        """Every byte is written."""
        return not self.segments and not self.gaps

    @property
    def done(self) -> int:
        """Bytes written (or just being written)."""
        return self.piece.size - sum(stop - start for start, stop in self.gaps) - \
            sum(segment.left for segment in self.segments)

    def begin(self, peer: str, start: int, stop: int) -> Segment:
        """A worker starts on these bytes."""
        segment = Segment(self, peer, start, stop)
        self.segments.append(segment)
        return segment

    def end(self, segment: Segment) -> None:
        """The worker is through with its segment, or lost its peer: the rest is a gap."""
        segment.over = True
        self.segments.remove(segment)
        if segment.position > segment.start:
            digest = "" if self.in_turn else segment.hasher.hexdigest()   # "": nobody can be blamed by it
            self.sent.append((segment.peer, segment.start, segment.position, digest))
            if digest and segment.start == 0 and segment.position == self.piece.size:
                self._whole = digest
        if segment.left > 0:
            self.gaps.append((segment.position, segment.stop))

    def digest(self) -> str | None:
        """The piece's hash when it came in one run, None when it has to be read back."""
        return self._whole

    def senders(self) -> list[str]:
        """Everybody who sent a part of it."""
        return sorted({peer for peer, _, _, _ in self.sent})
