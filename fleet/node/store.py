"""A model on disk, whole or in the making: its data files, its manifest and the note of what is finished.

While pieces are missing the data lies in NAME.part at full size. The order that makes a kill or a
power cut harmless: bytes are written, hashed, synced, and only then noted as finished; the name
changes only after every piece and the whole were verified.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Callable

from . import bitfield as notes
from .files import make_room, open_data, put_in_place, store_error, sync_data
from .holdings import Holdings
from .manifest import Manifest, Piece
from .trouble import Stopped, StoreError

READ = 1 << 20
FLUSH = 32 << 20         # bytes written since the last sync
PULL, SEED, REPAIR = "pull", "seed", "repair"
CheckProgress = Callable[[int, int], None]


class Store:
    """The files of one manifest in one folder.

    mode PULL: what is missing will be written; SEED: nothing is written but the note; REPAIR: as
    PULL, and a finished file with wrong pieces goes back to NAME.part. One process at a time may
    write (StoreError, code busy).
    """

    def __init__(self, manifest: Manifest, folder: Path, *, mode: str = PULL) -> None:
        self.manifest, self.folder, self.mode = manifest, Path(folder), mode
        self.holdings = Holdings()
        self.finals = [self.folder / entry.name for entry in manifest.files]
        self.parts = [self.folder / (entry.name + ".part") for entry in manifest.files]
        self.note = self.folder / (manifest.name + notes.SUFFIX)
        self.complete = False             # verified and under its final name
        self.rebuilt = ""                 # why the note was not trusted, "" when it was
        self.failure: StoreError | None = None
        self.failed = threading.Event()
        self._handles: list = []
        self._paths: list = []            # where each data file lies now
        self._saved: set = set()          # synced, so the note may name them
        self._unsynced: list = []
        self._wake = threading.Condition()
        self._saving = threading.Lock()   # one writer of the note at a time
        self._syncing = False
        self._written = self._flushed = 0  # bytes, roughly: threads add to it without a lock
        self._closed = False
        self._seen: list = []             # (device, inode, size, mtime_ns) of complete files
        self._syncer: threading.Thread | None = None

    # Opening

    def open(self, progress: CheckProgress | None = None, stop: threading.Event | None = None,
             *, trust: bool = True) -> None:
        """Find what is there and check what has to be; `trust=False` hashes everything."""
        try:
            self._open(progress, stop, trust)
        except OSError as error:
            self.close()
            raise store_error(error, self.finals[0]) from error
        except BaseException:
            self.close()
            raise

    def _open(self, progress: CheckProgress | None, stop: threading.Event | None, trust: bool) -> None:
        if not self.folder.is_dir():
            raise StoreError(f"The folder {self.folder} is not there.", "Make it first.")
        writing = self.mode != SEED
        note = notes.load_bitfield(self.note, self.manifest.id, self.manifest.count)
        claims = self._claims(note)
        fresh = [self._open_file(number, writing) for number in range(len(self.finals))]
        at_end = [path == final for path, final in zip(self._paths, self.finals)]
        have, doubtful = set(), []
        for index in range(self.manifest.count):
            piece = self.manifest.piece(index)
            number = piece.file
            if fresh[number] or (claims is not None and index not in claims):
                continue
            if trust and note is not None and self._is_marked(note, number):
                have.add(index)
            else:
                doubtful.append(piece)
        if note is None or not all(self._is_marked(note, number) for number in range(len(fresh))):
            self.rebuilt = self._why(note, fresh)
        have |= self._hashed(doubtful, progress, stop)
        whole = len(have) == self.manifest.count
        for number, final in enumerate(self.finals):
            missing = any(self.manifest.piece(index).file == number
                          for index in range(self.manifest.count) if index not in have) if not whole else False
            if at_end[number] and missing and writing and self._paths[number] == final:
                self._take_back(number, final, any(self.manifest.piece(index).file == number for index in have))
        self.holdings.replace(have)
        self._saved = set(have)
        self.complete = whole and all(at_end)
        if self.complete and not (note is not None and note.complete and not self.rebuilt):
            self.complete = self._whole_is_right(stop)
        self._seen = [self._identity(path) for path in self._paths]
        if writing:
            self.manifest.save(self.folder)
            self.save()
            self._syncer = threading.Thread(target=self._sync_loop, name="store-sync", daemon=True)
            self._syncer.start()
        elif self.complete and self.rebuilt and os.access(self.folder, os.W_OK):
            self.save()

    def _claims(self, note: notes.Bitfield | None) -> set | None:
        if note is not None:
            return set(note.have)
        listed = notes.load_tightwad(self.folder / (self.manifest.name + notes.TIGHTWAD_SUFFIX), self.manifest.count)
        return None if listed is None else set(listed)

    def _open_file(self, number: int, writing: bool) -> bool:
        """Open data file `number`; True when it holds nothing yet."""
        final, part, size = self.finals[number], self.parts[number], self.manifest.files[number].size
        if final.exists() and part.exists() and writing:
            if not os.path.samefile(final, part):
                raise StoreError(f"{final} is there already and is another file.",
                                 "Move it away or pull into another folder.", code="exists")
            part.unlink()   # killed between the two steps of taking the final name
        if os.path.lexists(final) and not final.exists():
            raise StoreError(f"{final} is a link that leads nowhere.", "Take it away, or pull into another folder.",
                             code="exists")
        if final.exists():
            handle = open_data(final, write=False)
            self._handles.append(handle)
            self._paths.append(final)
            if os.fstat(handle).st_size != size:
                if self.mode == PULL:
                    raise StoreError(f"{final} is there already and has another size.",
                                     "Move it away or pull into another folder.", code="exists")
                if writing:
                    self._take_back(number, final, True)
            return False
        if not writing and not part.exists():
            raise StoreError(f"{final} is not there.", "Give the folder that holds the model.", code="missing")
        fresh = not part.exists()
        handle = open_data(part, write=writing, create=writing)
        self._handles.append(handle)
        self._paths.append(part)
        if writing:
            self._lock(handle, part)
            make_room(handle, size, part)
        return fresh

    def _lock(self, handle: int, path: Path) -> None:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreError(f"Another pull is writing {path}.", "Wait for it or stop it.", code="busy") from None

    def _take_back(self, number: int, final: Path, some_right: bool) -> None:
        """A file under its final name that is not the model: Tightwad's half-done ones and what a repair found bad."""
        half_done = (self.folder / (self.manifest.name + notes.TIGHTWAD_SUFFIX)).exists()
        if self.mode == PULL and not half_done and not (some_right and self.note.exists()):
            raise StoreError(f"{final} is there already and is another file.",
                             "Move it away or pull into another folder.", code="exists")
        if final.is_symlink():
            raise StoreError(f"{final} is a link, and what it leads to is not the model.",
                             f"Mend {os.path.realpath(final)}, or take the link away.", code="exists")
        part = self.parts[number]
        os.rename(final, part)
        os.close(self._handles[number])
        self._handles[number] = -1
        self._handles[number] = handle = open_data(part, write=True)
        self._paths[number] = part
        self._lock(handle, part)
        make_room(handle, self.manifest.files[number].size, part)

    def _is_marked(self, note: notes.Bitfield, number: int) -> bool:
        info = os.fstat(self._handles[number])
        return len(note.marks) == len(self.finals) and note.marks[number] == (info.st_size, info.st_mtime_ns)

    def _why(self, note: notes.Bitfield | None, fresh: list) -> str:
        if note is not None:
            return "the data is gone" if all(fresh) else "the data changed after the note was written"
        if all(fresh):
            return ""
        return "the note is torn or another manifest's" if self.note.exists() else "there is no note"

    def _hashed(self, pieces: list, progress: CheckProgress | None, stop: threading.Event | None) -> set:
        """Those of `pieces` whose bytes are on disk and right. Holes are known without reading."""
        good, done, total = set(), 0, sum(piece.size for piece in pieces)
        for piece in pieces:
            if stop is not None and stop.is_set():
                raise Stopped("The check was stopped.")
            if not self._is_hole(piece) and self.digest(piece) == piece.sha256:
                good.add(piece.index)
            done += piece.size
            if progress is not None:
                progress(done, total)
        return good

    def _is_hole(self, piece: Piece) -> bool:
        if not hasattr(os, "SEEK_DATA"):
            return False
        try:
            return os.lseek(self._handles[piece.file], piece.at, os.SEEK_DATA) >= piece.at + piece.size
        except OSError:   # ENXIO: nothing but a hole up to the end; others: not known here, and read
            return os.fstat(self._handles[piece.file]).st_size <= piece.at

    # Pieces

    def handle(self, number: int) -> int:
        """The open file of data file `number`, for pwrite and sendfile; StoreError after close()."""
        handles = self._handles
        if not handles:
            raise StoreError(f"{self.manifest.name} is closed.", code="closed")
        return handles[number]

    def digest(self, piece: Piece, start: int = 0, stop: int | None = None) -> str:
        """SHA-256 of the piece's bytes on disk (of `start` to `stop` within it); "" when they are not all there."""
        end = piece.size if stop is None else stop
        hasher, buffer, at = hashlib.sha256(), memoryview(bytearray(min(READ, max(1, end - start)))), start
        while at < end:
            data = os.pread(self.handle(piece.file), min(len(buffer), end - at), piece.at + at)
            if not data:
                return ""
            hasher.update(data)
            at += len(data)
        return hasher.hexdigest()

    def wrote(self, count: int) -> None:
        """Bytes were written to a data file, so that the disk can be kept busy before a piece is whole."""
        self._written += count

    def finish(self, index: int) -> None:
        """A piece is written and its hash is right: tell peers now, and note it as soon as it is synced."""
        self.holdings.gain(index)
        with self._wake:
            self._unsynced.append(index)
            self._wake.notify_all()

    def drop(self, wrong: Iterable[int]) -> None:
        """Pieces turned out to be wrong: they are missing again."""
        gone = set(wrong)
        self.settle()
        self.holdings.replace(index for index in self.holdings.snapshot() if index not in gone)
        with self._wake:
            self._saved -= gone
        self.save()

    def _sync_loop(self) -> None:
        # One sync covers every piece that was finished before it began: a slow disk gets fewer, bigger ones.
        # It also runs while pieces are in the making, so that little is left to write when the last one ends.
        while True:
            with self._wake:
                while not self._unsynced and not self._closed and self._written - self._flushed < FLUSH:
                    self._wake.wait(0.1)
                if self._closed and not self._unsynced:
                    return
                lot, self._unsynced, self._syncing, self._flushed = self._unsynced, [], True, self._written
            try:
                for handle in self._handles:
                    sync_data(handle)
                if lot:
                    with self._wake:
                        self._saved.update(lot)
                    self.save()
            except OSError as error:
                self.fail(store_error(error, self._paths[0]))
            except StoreError as error:
                self.fail(error)
            finally:
                with self._wake:
                    self._syncing = False
                    self._wake.notify_all()

    def fail(self, error: StoreError) -> None:
        """The disk does not do its part: the pull has to end."""
        if self.failure is None:
            self.failure = error
        self.failed.set()

    def save(self) -> None:
        """Write the note."""
        with self._saving:
            with self._wake:
                have = frozenset(self._saved)
            marks = []
            for handle in self._handles:
                info = os.fstat(handle)
                marks.append((info.st_size, info.st_mtime_ns))
            notes.Bitfield(self.manifest.id, self.manifest.count, have, tuple(marks), self.complete).save(self.note)

    def settle(self) -> None:
        """Wait until every finished piece is synced and noted."""
        with self._wake:
            while (self._unsynced or self._syncing) and self._syncer is not None and self._syncer.is_alive():
                self._wake.wait(0.5)
        if self.failure is not None:
            raise self.failure

    # The end

    def wrong_pieces(self, progress: CheckProgress | None = None, stop: threading.Event | None = None) -> list:
        """Hash all that is said to be here; the numbers of what is not right."""
        have = [self.manifest.piece(index) for index in self.holdings.snapshot()]
        good = self._hashed(have, progress, stop)
        return [piece.index for piece in have if piece.index not in good]

    def _whole_is_right(self, stop: threading.Event | None) -> bool:
        from .whole import WholeHash
        return WholeHash(self, stop).run() == [entry.sha256 for entry in self.manifest.files if entry.sha256]

    def put_in_place(self) -> list:
        """Everything was verified: the data files take their final names. Their paths."""
        self.settle()
        for number, (part, final) in enumerate(zip(self.parts, self.finals)):
            if self._paths[number] == part:
                os.fsync(self._handles[number])
                self._still_there(number)
                put_in_place(part, final)
                self._paths[number] = final
        self.complete = True
        self._seen = [self._identity(path) for path in self._paths]
        self.save()
        return list(self.finals)

    def _still_there(self, number: int) -> None:
        """The name still leads to the file that was verified."""
        path = self._paths[number]
        mine, named = os.fstat(self._handles[number]), os.stat(path)
        if (mine.st_dev, mine.st_ino) != (named.st_dev, named.st_ino) or \
                mine.st_size != self.manifest.files[number].size:
            raise StoreError(f"{path} was changed by somebody else.", "Start again.", code="changed")

    def changed(self) -> str:
        """What happened to the data behind our back: "" (nothing), or gone, truncated, changed."""
        for number, path in enumerate(self._paths):
            now = self._identity(path)
            if now is None:
                return f"{path.name} is gone"
            if now[2] != self.manifest.files[number].size:
                return f"{path.name} has another size"
            seen = self._seen[number]
            writing = self.mode != SEED and not self.complete
            if seen is not None and now[:2] != seen[:2] and not self._is_ours(number, now):
                return f"{path.name} is another file"
            if not writing and path == self.finals[number] and seen is not None and now[3] != seen[3]:
                return f"{path.name} was written to"
        return ""

    def _is_ours(self, number: int, now: tuple) -> bool:
        info = os.fstat(self._handles[number])
        return (info.st_dev, info.st_ino) == now[:2]

    def _identity(self, path: Path) -> tuple | None:
        try:
            info = os.stat(path)
        except OSError:
            return None
        return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns

    def close(self) -> None:
        """Sync and note what is finished, and let the files go."""
        with self._wake:
            self._closed = True
            self._wake.notify_all()
        if self._syncer is not None:
            self._syncer.join()
            self._syncer = None
            if self.failure is None:
                try:
                    self.save()   # with the marks as they stay
                except (OSError, StoreError) as error:
                    self.failure = error if isinstance(error, StoreError) else store_error(error, self.note)
        self.holdings.wake()
        for handle in self._handles:
            if handle >= 0:
                os.close(handle)
        self._handles = []


def mark_source(manifest: Manifest, folder: Path) -> None:
    """Save manifest and note beside a model from which the manifest was made a moment ago."""
    marks = []
    for entry in manifest.files:
        info = os.stat(Path(folder) / entry.name)
        if info.st_size != entry.size:
            raise StoreError(f"{entry.name} changed after it was hashed.", "Make the manifest again.", code="changed")
        marks.append((info.st_size, info.st_mtime_ns))
    manifest.save(Path(folder))
    note = notes.Bitfield(manifest.id, manifest.count, frozenset(range(manifest.count)), tuple(marks), True)
    note.save(Path(folder) / (manifest.name + notes.SUFFIX))
