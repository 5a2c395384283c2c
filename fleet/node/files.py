"""Files that survive a power cut: written aside, synced, renamed, the folder synced."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from .trouble import StoreError

_FREE_DISK = "Free some space there and start again: what is finished is kept."


def sync_folder(folder: Path) -> None:
    """Make a rename in `folder` last. Folders cannot be synced everywhere (SMB, some FUSE): those are left alone."""
    try:
        handle = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EBADF, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)


def sync_data(handle: int) -> None:
    """The bytes of an open file reach the disk before this returns."""
    if hasattr(os, "fdatasync"):
        os.fdatasync(handle)
    else:   # macOS
        os.fsync(handle)


def replace_file(path: Path, data: bytes) -> None:
    """`path` holds `data` or what it held before, whatever happens in between."""
    aside = path.with_name(f".{path.name}.new")
    try:
        handle = _open_aside(aside)
        try:
            write_all(handle, memoryview(data), 0)
            os.fsync(handle)
        finally:
            os.close(handle)
        os.replace(aside, path)
        sync_folder(path.parent)
    except OSError as error:
        raise store_error(error, path) from error


def _open_aside(aside: Path) -> int:
    """The file beside, empty. A link or FIFO in its place is taken away: neither is followed or waited for."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
    for again in (True, False):
        try:
            handle = os.open(aside, flags, 0o644)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENXIO, errno.EMLINK) or not again:
                raise
        else:
            if stat.S_ISREG(os.fstat(handle).st_mode):
                os.ftruncate(handle, 0)
                return handle
            os.close(handle)
        os.unlink(aside)
    raise OSError(errno.EEXIST, "something else comes back in its place", str(aside))


def write_all(handle: int, view: memoryview, offset: int) -> None:
    """pwrite until everything is written."""
    while view:
        written = os.pwrite(handle, view, offset)
        if written == 0:
            raise OSError(errno.EIO, "the disk takes no bytes")
        view = view[written:]
        offset += written


def read_bounded(path: Path, most: int) -> bytes:
    """The bytes of a regular file of at most `most` bytes; FileNotFoundError when it is not there."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    try:
        info = os.fstat(handle)
        if not stat.S_ISREG(info.st_mode):
            raise StoreError(f"{path} is not a plain file.")
        if info.st_size > most:
            raise StoreError(f"{path} is too big: {info.st_size} bytes, and {most} are allowed.")
        parts, left = [], most + 1
        while left > 0:
            part = os.read(handle, min(left, 1 << 20))
            if not part:
                break
            parts.append(part)
            left -= len(part)
        if left <= 0:
            raise StoreError(f"{path} grows while it is read.")
        return b"".join(parts)
    finally:
        os.close(handle)


def open_data(path: Path, *, write: bool, create: bool = False) -> int:
    """A handle on a regular file; links are not followed when writing."""
    flags = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
    flags |= os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) if write else os.O_RDONLY
    if create:
        flags |= os.O_CREAT
    handle = os.open(path, flags, 0o644)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise StoreError(f"{path} is not a plain file.", "Move it away.")
    return handle


def make_room(handle: int, size: int, path: Path) -> None:
    """Give the file its full size, and its blocks where the system can: a full disk is known at once."""
    have = os.fstat(handle).st_size
    if have == size:
        return    # allocating again would change the mtime, by which a clean stop is known
    if have > size:
        os.ftruncate(handle, size)
        return
    allocate = getattr(os, "posix_fallocate", None)
    if allocate is not None:
        try:
            allocate(handle, 0, size)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENODEV):
                raise
        else:
            return
    free = os.fstatvfs(handle)
    if free.f_bavail * free.f_frsize < size - os.fstat(handle).st_blocks * 512:
        raise OSError(errno.ENOSPC, "no space left", str(path))
    os.ftruncate(handle, size)


def put_in_place(part: Path, final: Path) -> None:
    """`part` becomes `final`; never over another file. Codes: exists, file."""
    try:
        try:
            os.link(part, final)
        except FileExistsError:
            if not os.path.samefile(part, final):
                raise StoreError(f"{final} is there already and is another file.",
                                 "Move it away or pull under another name.", code="exists") from None
        except OSError as error:   # a file system without hard links
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EACCES):
                raise
            if os.path.lexists(final):
                raise StoreError(f"{final} is there already and is another file.",
                                 "Move it away or pull under another name.", code="exists") from None
            os.rename(part, final)
            sync_folder(final.parent)
            return
        sync_folder(final.parent)
        os.unlink(part)
        sync_folder(final.parent)
    except OSError as error:
        raise store_error(error, final) from error


def store_error(error: OSError, path: Path) -> StoreError:
    """An OSError in the words of a person."""
    if error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)):
        return StoreError(f"The disk of {path.parent} is full.", _FREE_DISK, code="full")
    if error.errno == errno.EFBIG:
        return StoreError(f"{path} may not grow further: the limit on the size of files is reached.",
                          "Raise the limit (ulimit -f), or use a file system for big files.", code="full")
    return StoreError(f"{path}: {error.strerror or error}.", "Look at the folder's owner, rights and disk.")
