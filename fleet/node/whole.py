"""The hash of the whole, computed behind the download: it follows the pieces that are done from the start on.

SHA-256 is sequential, so a hash begun after the last piece would add the whole file's hashing time
to the end. Following close behind reads what is still in the page cache and ends with the download.
"""

from __future__ import annotations

import hashlib
import os
import threading
from typing import TYPE_CHECKING

from .trouble import Stopped, StoreError

if TYPE_CHECKING:
    from .store import Store

READ = 1 << 20


class WholeHash:
    """Hash the data files of a store one after another, waiting for pieces that are not there yet."""

    def __init__(self, store: Store, stop: threading.Event | None = None) -> None:
        self.store, self.stop = store, stop or threading.Event()
        self.done = 0                      # bytes hashed
        self.answer: list | None = None
        self.error: StoreError | None = None
        self.thread: threading.Thread | None = None   # that runs follow()

    def run(self) -> list:
        """The hex hashes of those files for which the manifest has one. Errors: Stopped, StoreError."""
        manifest, answer = self.store.manifest, []
        frontier = 0
        buffer = memoryview(bytearray(READ))
        for number, entry in enumerate(manifest.files):
            pieces = -(-entry.size // manifest.piece_size)
            hasher = hashlib.sha256()
            for index in range(frontier, frontier + pieces):
                self._await(index)
                if entry.sha256:
                    self._hash(hasher, buffer, number, manifest.piece(index).at, manifest.piece(index).size)
                self.done += manifest.piece(index).size
            frontier += pieces
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

    def _await(self, index: int) -> None:
        holdings = self.store.holdings
        while index not in holdings:
            if self.stop.is_set():
                raise Stopped("The check of the whole was stopped.")
            version = holdings.version
            if index not in holdings:
                holdings.news(version, 0.5)

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
