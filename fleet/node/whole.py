"""The hash of the whole, computed behind the download: it follows the pieces that are done from the start on.

SHA-256 is sequential, so a hash begun after the last piece would add the whole file's hashing time
to the end. Following close behind reads what is still in the page cache and ends with the download.
Pieces that arrive in order close ahead of it need no hash of their own: the manifest says what the
whole's must be at the end of each (`upto`). Measured on two cores: 0.67 CPU seconds a gigabyte less.
"""

from __future__ import annotations

import hashlib
import os
import threading
from typing import TYPE_CHECKING, Callable

from .trouble import Stopped, StoreError

if TYPE_CHECKING:
    from .store import Store

READ = 1 << 20
PATIENCE = 0.3           # seconds without the next piece, before others that wait are verified on their own


class WholeHash:
    """Hash the data files of a store one after another, waiting for pieces that are not there yet."""

    def __init__(self, store: Store, stop: threading.Event | None = None,
                 judge: Callable[[int, bool], None] = lambda index, right: None) -> None:
        self.store, self.stop = store, stop or threading.Event()
        self.judge = judge                 # told whether an unverified piece is right
        self.next = 0                      # the piece that comes next
        self.done = 0                      # bytes hashed
        self.answer: list | None = None
        self.error: StoreError | None = None
        self.thread: threading.Thread | None = None   # that runs follow()

    def run(self) -> list:
        """The hex hashes of those files for which the manifest has one. Errors: Stopped, StoreError."""
        manifest, answer = self.store.manifest, []
        buffer = memoryview(bytearray(READ))
        for number, entry in enumerate(manifest.files):
            hasher, last = hashlib.sha256(), self.next + -(-entry.size // manifest.piece_size)
            while self.next < last:
                piece = manifest.piece(self.next)
                arrived = self._await(self.next)
                before = hasher.copy()
                if entry.sha256 or arrived:
                    self._hash(hasher, buffer, number, piece.at, piece.size)
                if arrived:
                    right = hasher.digest() == manifest.prefix(self.next)
                    self.judge(self.next, right)
                    if not right:
                        hasher = before
                        continue
                self.done += piece.size
                self.next += 1
            if entry.sha256:
                answer.append(hasher.hexdigest())
        self.answer = answer
        return answer

    def follow(self) -> None:
        """run() as the body of a thread: the outcome is in `answer` or `error`."""
        try:
            self.run()
        except Stopped:
            return
        except OSError as error:
            self.error = StoreError(f"{self.store.folder}: {error.strerror or error}.")
        except StoreError as error:
            self.error = error

    def _await(self, index: int) -> bool:
        """Wait for a piece; True when it is written but not verified."""
        holdings = self.store.holdings
        while True:
            if self.stop.is_set():
                raise Stopped("The check of the whole was stopped.")
            if holdings.take_arrived(index, PATIENCE):
                return True
            if index in holdings:
                return False
            other = holdings.take_any_arrived()   # this one takes long: do not let the others wait for it
            if other >= 0:
                piece = self.store.manifest.piece(other)
                self.judge(other, self.store.digest(piece) == piece.sha256)

    def _hash(self, hasher: object, buffer: memoryview, number: int, at: int, size: int) -> None:
        handle, end = self.store.handle(number), at + size
        while at < end:
            if self.stop.is_set():
                raise Stopped("The check of the whole was stopped.")
            view = buffer[:min(len(buffer), end - at)]
            if hasattr(os, "preadv"):
                got = os.preadv(handle, [view], at)
            else:
                data = os.pread(handle, len(view), at)
                got = len(data)
                view[:got] = data
            if got == 0:
                raise StoreError("The file became shorter while it was checked.", code="changed")
            hasher.update(view[:got])
            at += got
