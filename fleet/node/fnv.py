"""FNV-1a of 64 bits, the hash that llama.cpp names a cached tensor by, at the speed of a compiler's loop.

Each byte waits for the one before it, so nothing of it can be done side by side, and Python's own loop makes 8 MB/s.
The loop in C makes 900 MB/s a core (2026-12, one core of a shared EPYC), as llama.cpp's own does. It is compiled on the
node, which takes 50 ms, or comes along as a library that another machine of the same kind compiled. No library of
llama.cpp exports its own (seen in b10068 and read in b11434).
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Callable

from .trouble import Stopped, StoreError

OFFSET, PRIME = 0xCBF29CE484222325, 0x100000001B3
SOURCE = """\
#include <stddef.h>
#include <stdint.h>

uint64_t quarterdeck_fnv1a(uint64_t hash, const unsigned char *data, size_t size) {
    for (size_t at = 0; at < size; at++) {
        hash ^= data[at];
        hash *= UINT64_C(0x100000001b3);
    }
    return hash;
}
"""
NO_HASHER = "no-hasher"
PIECE = 4 << 20                # bytes that are read at once
_COMPILERS = ("cc", "gcc", "clang")
_BUILD_TIMEOUT = 30.0          # seconds
_PROOF = (b"foobar", 0x85944171F73967E8)      # of the hash's own published test values

Feed = Callable[[int, bytes], int]            # the hash so far and more bytes -> the hash


def slow(hash_so_far: int, data: bytes) -> int:
    """The same in Python alone."""
    for byte in data:
        hash_so_far = (hash_so_far ^ byte) * PRIME & 0xFFFFFFFFFFFFFFFF
    return hash_so_far


def fast(library: str = "") -> Feed:
    """The compiled loop: from `library` where that is given and fits, else compiled now.

    Raises:
        StoreError: code no-hasher: there is no compiler, or what it makes cannot be loaded.
    """
    why = []
    if library:
        try:
            return load(library)
        except OSError as error:
            why.append(f"{library} does not fit: {error}")
    with tempfile.TemporaryDirectory(prefix="quarterdeck-") as folder:
        try:
            return load(build(Path(folder)))           # its file may go once it is loaded
        except (OSError, StoreError) as error:
            why.append(str(error))
    raise StoreError(f"Tensors cannot be hashed here: {'; '.join(why)[:400]}.".replace("..", "."),
                     "Install gcc or clang.", code=NO_HASHER)


def build(folder: Path) -> str:
    """Compile the library into a folder; its path.

    Raises:
        StoreError: code no-hasher.
    """
    compiler = next((found for name in _COMPILERS if (found := shutil.which(name))), None)
    if compiler is None:
        raise StoreError("there is no C compiler (cc, gcc or clang)", code=NO_HASHER)
    source, target = folder / "fnv.c", folder / "fnv.so"
    source.write_text(SOURCE, encoding="ascii")
    try:
        done = subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", str(target), str(source)],
                              stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                              timeout=_BUILD_TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        raise StoreError(f"{compiler} did not end within {_BUILD_TIMEOUT:.0f} s", code=NO_HASHER) from None
    if done.returncode != 0:
        said = " ".join(done.stderr.decode("utf-8", "replace").split())[:200]
        raise StoreError(f"{compiler} does not compile: {said}", code=NO_HASHER)
    return str(target)


def load(path: str) -> Feed:
    """A compiled library's function, proven on a known value. OSError: it cannot be used here."""
    try:
        function = ctypes.CDLL(path).quarterdeck_fnv1a
    except AttributeError:
        raise OSError(f"{path} is another library") from None
    function.restype = ctypes.c_uint64
    function.argtypes = (ctypes.c_uint64, ctypes.c_char_p, ctypes.c_size_t)

    def feed(hash_so_far: int, data: bytes) -> int:
        return function(hash_so_far, data, len(data))        # without the interpreter's lock

    if feed(OFFSET, _PROOF[0]) != _PROOF[1]:
        raise OSError(f"{path} gives wrong hashes")
    return feed


def of_range(feed: Feed, fd: int, offset: int, length: int, halt: threading.Event,
             copy: int | None = None) -> tuple[int, int]:
    """The hash of a part of a file, and how many bytes of it there are; `copy` = a file that gets them, too.

    Raises:
        Stopped: `halt` was set.
    """
    found, done = OFFSET, 0
    while done < length:
        if halt.is_set():
            raise Stopped("Stopped.", "The same command goes on where it was.")
        data = os.pread(fd, min(PIECE, length - done), offset + done)
        if not data:
            break
        found = feed(found, data)
        if copy is not None:
            view = memoryview(data)
            while view:
                view = view[os.write(copy, view):]
        done += len(data)
    return found, done
