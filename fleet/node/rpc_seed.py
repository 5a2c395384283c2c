"""Filling a worker's cache of tensors from the model's file on the same machine, as the worker itself would.

A tensor is hashed, then written aside under the hash of what is really written, synced and renamed: a worker sees a
whole file or none, whatever ends this.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

from . import fnv
from .files import store_error, sync_data, sync_folder
from .rpc_cache import ASIDE, SPARE, THRESHOLD, Cache, content, identity_of, look, sweep, write_down
from .trouble import StoreError

AT_ONCE = 4                    # tensors hashed side by side; more would wait for the disk


@dataclass
class Tensor:
    """Where one lies."""

    file: int                  # number of the model's file
    offset: int                # bytes from the start of that file
    bytes: int


@dataclass
class Seeded:
    """What became of a model's tensors."""

    added: int = 0
    added_bytes: int = 0
    there: int = 0             # were there already, and right
    there_bytes: int = 0
    mended: int = 0            # of those that were added: in the place of a wrong file


def tensors_of(told: object, sizes: Sequence[int]) -> list[Tensor]:
    """Read `[[file, offset, bytes], ...]`, each inside its file. StoreError: it is something else."""
    found = []
    try:
        for file, offset, length in told:                                      # type: ignore[attr-defined]
            whole = all(type(number) is int and number >= 0 for number in (file, offset, length))
            if not whole or file >= len(sizes) or not THRESHOLD < length <= sizes[file] - offset:
                raise ValueError
            found.append(Tensor(file, offset, length))
    except (TypeError, ValueError):
        raise StoreError("The list of tensors does not fit the model's files.", "Fetch the model again.",
                         code="changed") from None
    return found


class Seeding:
    """One run over one model."""

    def __init__(self, folder: Path, files: Sequence[str], feed: fnv.Feed, halt: threading.Event,
                 tell: Callable[[int, int], None]) -> None:
        self._folder, self._feed, self._halt, self._tell = folder, feed, halt, tell
        self._files, self._lock, self._handles = files, threading.Lock(), []
        self._seeded, self._done, self._total = Seeded(), 0, 0
        self._sound: dict = {}
        self._busy: set = set()
        self._known: dict = {}

    def run(self, tensors: Sequence[Tensor]) -> Seeded:
        """Have every tensor in the cache.

        Raises:
            StoreError: codes full, file. What was finished until then stays.
            Stopped: halted; the same.
        """
        make_folder(self._folder)
        sweep(self._folder)
        cache: Cache = look(self._folder)
        self._known = {file.name: file for file in cache.files}
        self._total = sum(tensor.bytes for tensor in tensors)
        try:
            for path in self._files:
                self._handles.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
            with ThreadPoolExecutor(min(AT_ONCE, os.cpu_count() or 1)) as pool:
                jobs = [pool.submit(self._one, tensor) for tensor in tensors]
                try:
                    for job in jobs:
                        job.result()
                except BaseException:
                    for job in jobs:
                        job.cancel()
                    raise
        finally:
            for handle in self._handles:
                os.close(handle)
            sync_folder(self._folder)
            write_down(self._folder, self._sound)
        return self._seeded

    def _one(self, tensor: Tensor) -> None:
        digest, have = fnv.of_range(self._feed, self._handles[tensor.file], tensor.offset, tensor.bytes, self._halt)
        if have != tensor.bytes:
            raise StoreError(f"{self._files[tensor.file]} became shorter.", "Fetch the model again.", code="changed")
        name = f"{digest:016x}"
        with self._lock:
            if name in self._busy:                        # two tensors of the same bytes are one file
                self._step(tensor, there=True)
                return
            self._busy.add(name)
        there = self._is_right(name, tensor.bytes)
        mended = not there and os.path.lexists(self._folder / name)
        if not there:
            self._write(tensor, name)
        with self._lock:
            self._seeded.mended += mended
            self._step(tensor, there=there)

    def _is_right(self, name: str, size: int) -> bool:
        """Whether the file is there and holds this. It counts as used now: a cap must not take it next."""
        path, known = self._folder / name, self._known.get(name)
        if known is None or known.size != size:
            return False
        if not known.sound:
            found = content(path, self._feed, self._halt)
            if found is None or found[0] != name:
                return False
        os.utime(path, follow_symlinks=False)
        self._sound[name] = identity_of(os.stat(path, follow_symlinks=False))
        return True

    def _write(self, tensor: Tensor, name: str) -> None:
        about = os.statvfs(self._folder)
        if about.f_bavail * about.f_frsize < tensor.bytes + SPARE:
            raise StoreError(f"The disk of {self._folder} is full.",
                             "Free some space there, or make the cache smaller with `quarterdeck cache prune`.",
                             code="full")
        path, aside = self._folder / name, self._folder / f"{ASIDE}{name}.{os.getpid()}"
        mode = stat.S_IMODE(os.stat(self._folder).st_mode) & 0o644 | 0o600
        try:
            handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
            try:
                written, have = fnv.of_range(self._feed, self._handles[tensor.file], tensor.offset, tensor.bytes,
                                             self._halt, handle)
                if f"{written:016x}" != name or have != tensor.bytes:
                    raise StoreError(f"{self._files[tensor.file]} changes while it is read.", "Try again when it is "
                                     "whole.", code="changed")
                sync_data(handle)
            finally:
                os.close(handle)
            os.replace(aside, path)
            self._sound[name] = identity_of(os.stat(path, follow_symlinks=False))
        except OSError as error:
            raise store_error(error, path) from error
        finally:
            if os.path.lexists(aside):
                os.unlink(aside)

    def _step(self, tensor: Tensor, *, there: bool) -> None:
        """One is done; the lock is held."""
        seeded = self._seeded
        if there:
            seeded.there, seeded.there_bytes = seeded.there + 1, seeded.there_bytes + tensor.bytes
        else:
            seeded.added, seeded.added_bytes = seeded.added + 1, seeded.added_bytes + tensor.bytes
        self._done += tensor.bytes
        self._tell(self._done, self._total)


def make_folder(folder: Path) -> None:
    """The worker makes it when it starts; before that it is made for its owner alone."""
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
    except OSError as error:
        raise store_error(error, folder) from error
