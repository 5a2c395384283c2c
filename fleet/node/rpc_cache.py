"""The tensors that `ggml-rpc-server -c` keeps on a worker's disk: where they lie, which are whole, which may go.

The folder is flat: one file a weight tensor of more than 10 MiB, named by the 16 hex digits of the FNV-1a-64 of its
bytes, which are its content; all models share it and nothing ever leaves it. A tensor is sent whole, as it stands in
the GGUF file (seen with b10068, with and without mmap, over one worker and two). The worker serves whatever lies under
a name, unread: what a crash or a full disk cut short becomes a model that answers garbage without a word. Files of a
size other than the tensor's it serves the same way, so the content alone tells.

What was once found right is written down beside the folder with size, times and inode, so that later looks hash only
what is new. A file counts as used when it was read or written last; systems write down the time of reading once a day.
"""

from __future__ import annotations

import json
import os
import re
import stat
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable

from . import fnv
from .files import read_bounded, replace_file
from .trouble import StoreError

THRESHOLD = 10 << 20           # bytes; only a larger tensor is kept
SPARE = 256 << 20              # bytes that are left free on the disk
ABANDONED = 3600.0             # seconds after which a file that was being written is nobody's
ASIDE = ".quarterdeck-"        # how the names begin of files that are being written
MOST_FILES = 1_000_000
_NAME = re.compile(r"[0-9a-f]{16}")
_MOST_BOOK = 256 << 20         # bytes of what is written down
_ENVIRONMENT = ("LLAMA_CACHE", "XDG_CACHE_HOME", "HOME")

Identity = list                # size, mtime, ctime, inode: a file with the same ones is the same file


def folder_of(environment: Mapping[str, str], system: str = sys.platform) -> Path:
    """Where a worker with this environment keeps tensors.

    Raises:
        StoreError: code no-folder: the place is not given, or depends on the worker's working directory.
    """
    if environment.get("LLAMA_CACHE"):
        base = environment["LLAMA_CACHE"]
    elif system == "darwin":
        base = environment.get("HOME", "") + "/Library/Caches/llama.cpp"
    elif "XDG_CACHE_HOME" in environment:
        base = environment["XDG_CACHE_HOME"] + "/llama.cpp"
    else:
        base = environment.get("HOME", "") + "/.cache/llama.cpp"
    if not os.path.isabs(base):
        raise StoreError(f"{base} is no whole path: where a worker keeps tensors depends on where it is started.",
                         "Give LLAMA_CACHE as a whole path, or set HOME.", code="no-folder")
    return Path(base, "rpc")


def environment_of(changes: Mapping[str, str]) -> dict[str, str]:
    """What decides about the folder, of this process's environment and a worker's own on top of it."""
    found = {key: os.environ[key] for key in _ENVIRONMENT if key in os.environ}
    found.update({key: value for key, value in changes.items() if key in _ENVIRONMENT})
    return found


@dataclass
class Kept:
    """One file of the cache."""

    name: str
    size: int                  # bytes
    used: float                # seconds since 1970: read or written last
    identity: Identity
    sound: bool = False        # its content was once hashed, and it has not changed since


@dataclass
class Cache:
    """One folder, as it was when it was read."""

    folder: Path
    files: list[Kept] = field(default_factory=list)
    others: int = 0            # names that are no worker's

    @property
    def bytes(self) -> int:
        """Bytes of all that is kept."""
        return sum(file.size for file in self.files)

    @property
    def unproven(self) -> int:
        """Bytes of files that nobody has hashed yet."""
        return sum(file.size for file in self.files if not file.sound)


def look(folder: Path) -> Cache:
    """What lies there; a folder that is not there is empty. OSError: it cannot be read."""
    cache, book = Cache(folder), _Book(folder)
    try:
        entries = os.scandir(folder)
    except FileNotFoundError:
        return cache
    with entries:
        for entry in entries:
            if len(cache.files) >= MOST_FILES:
                raise StoreError(f"{folder} holds more than {MOST_FILES} files.", "Is that a cache of tensors?")
            try:
                about = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if not _NAME.fullmatch(entry.name) or not stat.S_ISREG(about.st_mode):
                cache.others += not entry.name.startswith(ASIDE)
                continue
            identity = identity_of(about)
            cache.files.append(Kept(entry.name, about.st_size, max(about.st_atime, about.st_mtime), identity,
                                    book.sound.get(entry.name) == identity))
    return cache


def identity_of(about: os.stat_result) -> Identity:
    """What a file has that changes when it is written."""
    return [about.st_size, about.st_mtime_ns, about.st_ctime_ns, about.st_ino]


class _Book:
    """What was found right, beside the folder. One that cannot be read says nothing: all is hashed again."""

    def __init__(self, folder: Path) -> None:
        self._path = folder.parent / f"quarterdeck-{folder.name}-checked.json"
        self.sound: dict[str, Identity] = {}
        try:
            told = json.loads(read_bounded(self._path, _MOST_BOOK))
        except (OSError, ValueError, RecursionError, StoreError):
            told = None
        if isinstance(told, dict) and told.get("format") == 1 and isinstance(told.get("sound"), dict):
            self.sound = told["sound"]

    def write(self) -> None:
        replace_file(self._path, json.dumps({"format": 1, "sound": self.sound}).encode())


def write_down(folder: Path, sound: Mapping[str, Identity]) -> None:
    """Remember what was found right, and forget what is gone. Where that cannot be written, nothing is remembered."""
    if not folder.is_dir():
        return
    book = _Book(folder)
    book.sound.update(sound)
    book.sound = {name: identity for name, identity in book.sound.items() if (folder / name).exists()}
    try:
        book.write()
    except StoreError:
        return                 # a full or read-only disk: the next look hashes again


@dataclass
class Checked:
    """What a check found."""

    files: int = 0             # that were hashed
    bytes: int = 0
    bad: list[tuple[str, int, str]] = field(default_factory=list)     # name, bytes, why
    removed: int = 0
    left: int = 0              # bytes that there was no time for


def check(cache: Cache, feed: fnv.Feed, halt: threading.Event, *, again: bool = True, keep: bool = False,
          seconds: float = 0.0, tell: Callable[[int, int], None] | None = None) -> Checked:
    """Hash what is kept, and take away what is not what its name says.

    Args:
        again: also what was found right before.
        keep: take nothing away.
        seconds: begin with no further file after so long; 0 = no end.
        tell: gets bytes done and bytes in all.

    Raises:
        Stopped: `halt` was set; what was found until then is kept in mind.
    """
    wanted = sorted((file for file in cache.files if again or not file.sound), key=lambda file: -file.used)
    checked, sound, end = Checked(), {}, time.monotonic() + seconds
    total = sum(file.size for file in wanted)
    try:
        for number, file in enumerate(wanted):
            if seconds and time.monotonic() > end:
                checked.left = sum(left.size for left in wanted[number:])
                break
            found = content(cache.folder / file.name, feed, halt)
            if found is None:
                continue                                  # it went away meanwhile
            digest, identity = found
            checked.files, checked.bytes = checked.files + 1, checked.bytes + file.size
            if digest == file.name:
                sound[file.name] = identity
                file.sound = True
            elif identity == file.identity:               # else a worker is writing it right now
                checked.bad.append((file.name, file.size, f"its bytes have the hash {digest}"))
                checked.removed += not keep and _remove(cache.folder / file.name)
            if tell is not None:
                tell(checked.bytes, total)
    finally:
        write_down(cache.folder, sound)
    gone = {name for name, _, _ in checked.bad} if not keep else set()
    cache.files = [file for file in cache.files if file.name not in gone]
    return checked


def content(path: Path, feed: fnv.Feed, halt: threading.Event) -> tuple[str, Identity] | None:
    """The hash of a kept file, and what it was when that began; None: it is not there, or is no plain file."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            return None
        raise
    try:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode):
            return None
        found, _ = fnv.of_range(feed, handle, 0, about.st_size, halt)
        after = os.fstat(handle)
        return f"{found:016x}", identity_of(about) if identity_of(about) == identity_of(after) else []
    finally:
        os.close(handle)


def prune(cache: Cache, limit: int, *, dry: bool = False, keep: frozenset = frozenset()) -> list[Kept]:
    """Take away the least recently used until all together take at most `limit` bytes; what went, or would go.

    Never one that is in `keep`, or that a process of this machine has open.
    """
    held = keep | in_use(cache.folder)
    over, gone = cache.bytes - limit, []
    for file in sorted(cache.files, key=lambda file: (file.used, file.name)):
        if over <= 0:
            break
        if file.name in held or not (dry or _remove(cache.folder / file.name)):
            continue
        gone.append(file)
        over -= file.size
    if not dry:
        names = {file.name for file in gone}
        cache.files = [file for file in cache.files if file.name not in names]
        sweep(cache.folder)
        write_down(cache.folder, {})
    return gone


def in_use(folder: Path) -> frozenset:
    """Names of files there that a process has open, as far as the system tells us (Linux: processes of this user)."""
    where, found = os.path.realpath(folder) + "/", set()
    try:
        processes = [name for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return frozenset()
    for process in processes:
        try:
            handles = os.listdir(f"/proc/{process}/fd")
        except OSError:
            continue                                      # ended, or another user's
        for handle in handles:
            try:
                path = os.readlink(f"/proc/{process}/fd/{handle}")
            except OSError:
                continue
            if path.startswith(where):
                found.add(path[len(where):])
    return frozenset(found)


def sweep(folder: Path) -> None:
    """Take away what a seeding left half-written that was ended long ago."""
    try:
        left = [entry for entry in os.scandir(folder) if entry.name.startswith(ASIDE)]
    except FileNotFoundError:
        return
    for entry in left:
        try:
            if time.time() - entry.stat(follow_symlinks=False).st_mtime > ABANDONED:
                os.unlink(entry.path)
        except FileNotFoundError:
            continue


def _remove(path: Path) -> bool:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True
