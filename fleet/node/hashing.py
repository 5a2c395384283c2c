"""Making a manifest: every byte read once, hashed twice (its piece and the whole), on two cores at once.

The whole file's SHA-256 is sequential, so its core sets the pace; a second thread hashes the pieces
and a third reads, all on the same buffers (hashlib and readinto let go of Python's lock). A hash of
the whole that has just passed the first piece is that piece's hash, so the first is not hashed twice;
taken at the end of every piece it is the manifest's `upto`.
"""

from __future__ import annotations

import hashlib
import os
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Callable

from .files import open_data, store_error
from .manifest import (
    BIGGEST_PIECE,
    MOST_FILES,
    MOST_PIECES,
    PIECE_SIZE,
    SMALLEST_PIECE,
    FileEntry,
    Manifest,
    clean_facts,
    plain_name,
)
from .trouble import ManifestRefused, Stopped, StoreError

BUFFER = 1 << 20    # bytes: bigger ones leave the cache between the two hashes
BUFFERS = 8


def create_manifest(paths: str | Path | Sequence[str | Path], *, piece_size: int = PIECE_SIZE,
                    model: str = "", facts: Mapping | None = None,
                    progress: Callable[[int, int], None] | None = None,
                    stop: threading.Event | None = None) -> Manifest:
    """Hash a model (one file, or its shards in order) in one pass.

    `progress(done, total)` in bytes is called from the reading thread, `stop` ends the work early
    (Stopped). Errors: ManifestRefused for a name, size or count that no manifest may have, StoreError
    for a file that cannot be read or changes meanwhile (code changed).
    """
    several = [Path(paths)] if isinstance(paths, (str, Path)) else [Path(path) for path in paths]
    if not several or len(several) > MOST_FILES:
        raise ManifestRefused(f"A manifest is of 1 to {MOST_FILES} files.")
    if not SMALLEST_PIECE <= piece_size <= BIGGEST_PIECE:
        raise ManifestRefused(f"The piece size is not within {SMALLEST_PIECE} and {BIGGEST_PIECE} bytes.")
    for path in several:
        plain_name(path.name)
    checked = clean_facts(facts or {})
    sizes = [_size(path) for path in several]
    if sum(-(-size // piece_size) for size in sizes) > MOST_PIECES:
        raise ManifestRefused(f"There would be more than {MOST_PIECES} pieces.", "Use a bigger piece size.")
    entries, digests, upto, offset, total = [], bytearray(), bytearray(), 0, sum(sizes)
    for path, size in zip(several, sizes):
        def tell(done: int, before: int = offset) -> None:
            if progress is not None:
                progress(before + done, total)

        whole, pieces, prefixes = _hash_file(path, size, piece_size, tell, stop)
        upto += prefixes
        entries.append(FileEntry(path.name, offset, size, whole))
        digests += pieces
        offset += size
    named = model or several[0].name.rsplit(".gguf", 1)[0]
    made = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return Manifest(named[:256], tuple(entries), piece_size, bytes(digests), checked, made, bytes(upto))


def _size(path: Path) -> int:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise store_error(error, path) from error
    if size == 0:
        raise ManifestRefused(f"{path} is empty.", "Fetch the model again.")
    return size


def _hash_file(path: Path, size: int, piece_size: int, tell: Callable[[int], None],
               stop: threading.Event | None) -> tuple:
    """(hex SHA-256 of the whole, 32 bytes for each piece, 32 for all up to its end) of one file of `size` bytes."""
    try:
        handle = open_data(path, write=False)
    except OSError as error:
        raise store_error(error, path) from error
    try:
        before = os.fstat(handle)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        run = _Pass(handle, size, piece_size, tell, stop)
        answer = run.go()
        after = os.fstat(handle)
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns) or after.st_size != size:
            raise StoreError(f"{path} changed while it was read.", "Wait until it is complete.", code="changed")
        return answer
    except OSError as error:
        raise store_error(error, path) from error
    finally:
        os.close(handle)


class _Pass:
    """One reader and two hashers over a ring of buffers; a buffer is free when both hashers left it."""

    def __init__(self, handle: int, size: int, piece_size: int, tell: Callable[[int], None],
                 stop: threading.Event | None) -> None:
        self.handle, self.size, self.piece_size, self.tell, self.stop = handle, size, piece_size, tell, stop
        self.free: queue.SimpleQueue = queue.SimpleQueue()
        self.to_whole: queue.SimpleQueue = queue.SimpleQueue()
        self.to_pieces: queue.SimpleQueue = queue.SimpleQueue()
        self.whole = hashlib.sha256()
        self.upto = bytearray()         # the whole's hash at the end of each piece
        self.rest = bytearray()         # those of pieces 1 and up
        for _ in range(min(BUFFERS, 1 + size // BUFFER)):
            buffer = bytearray(min(BUFFER, size))
            self.free.put(buffer)

    def go(self) -> tuple:
        threads = [threading.Thread(target=self._hash_whole, daemon=True, name="hash-whole"),
                   threading.Thread(target=self._hash_pieces, daemon=True, name="hash-pieces")]
        for thread in threads:
            thread.start()
        try:
            self._read()
        finally:
            self.to_whole.put(None)
            self.to_pieces.put(None)
            for thread in threads:
                thread.join()
        return self.whole.hexdigest(), bytes(self.upto[:32] + self.rest), bytes(self.upto)

    def _read(self) -> None:
        done = 0
        while done < self.size:
            if self.stop is not None and self.stop.is_set():
                raise Stopped("The hashing was stopped.")
            buffer = self.free.get()
            # No buffer crosses the end of a piece, so a hasher never has to cut one.
            most = min(len(buffer), self.size - done, self.piece_size - done % self.piece_size)
            view = memoryview(buffer)[:most]
            got = os.preadv(self.handle, [view], done) if hasattr(os, "preadv") else _pread_into(
                self.handle, view, done)
            if got == 0:
                raise StoreError("The file became shorter while it was read.", "Wait until it is complete.",
                                 code="changed")
            one_hasher = done + got <= self.piece_size
            marks = [] if one_hasher else [True]
            lot = (buffer, view[:got], done + got, marks)
            self.to_whole.put(lot)
            if not one_hasher:
                self.to_pieces.put(lot)
            done += got
            self.tell(done)

    def _leave(self, buffer: bytearray, marks: list) -> None:
        try:
            marks.pop()          # atomic: the other hasher is still on it
        except IndexError:
            self.free.put(buffer)

    def _hash_whole(self) -> None:
        while True:
            lot = self.to_whole.get()
            if lot is None:
                return
            buffer, view, end, marks = lot
            self.whole.update(view)
            if end % self.piece_size == 0 or end == self.size:
                self.upto += self.whole.digest()
            self._leave(buffer, marks)

    def _hash_pieces(self) -> None:
        piece = hashlib.sha256()
        while True:
            lot = self.to_pieces.get()
            if lot is None:
                return
            buffer, view, end, marks = lot
            piece.update(view)
            if end % self.piece_size == 0 or end == self.size:
                self.rest += piece.digest()
                piece = hashlib.sha256()
            self._leave(buffer, marks)


def _pread_into(handle: int, view: memoryview, offset: int) -> int:
    data = os.pread(handle, len(view), offset)
    view[:len(data)] = data
    return len(data)
