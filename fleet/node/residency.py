"""What of a model's experts is in memory, again and again, at a cost that stays small.

    residency FILE... --layout JSON|@FILE [--pid N] [--every SECONDS] [--count N]

Every sample is one line of 1 to 2 KB:

    {"event": "residency", "at": 1761.5, "method": "cachestat", "every": 2.0, "cpu_ms": 17.1, "delta": false,
     "cells": "eJx...", "experts": 0.546, "shared": 0.98, "process": {...}, "group": {...}}

`cells` is base64 of zlib of a byte for each layer and expert: 0 never loaded, 1 evicted, 2 evicted not long ago, 3 to
15 in memory (15 wholly); with `delta` exclusive-or'd with those of the line before. `experts` and `shared` are the
parts in memory, null where unknown. Residency is a state: it is no hit rate.

cachestat(2) is asked where the kernel has it (6.5), mincore(2) elsewhere. To somebody who neither owns a file nor may
write it, mincore says that all of it is there, and newer kernels refuse cachestat: then `method` is "unknown", `why`
says so, and nothing is claimed. A slice of an expert is asked about whole in small models, in its middle in large ones;
with very many experts every sample looks at a part of them. The time between two samples grows until they take 2 % of
a core.
"""

from __future__ import annotations

import argparse
import base64
import ctypes
import errno
import json
import os
import sys
import threading
import time
import zlib
from pathlib import Path
from typing import Callable

from .figures import group_figures, process_figures
from .files import read_bounded
from .trouble import StoreError

CACHESTAT = 451                    # the same on every architecture
CALLS = 6_000                      # questions of one sample at the most: 20 to 30 ms
WHOLE = 8 << 30                    # bytes of experts up to which slices are asked about whole
MIDDLE = 24                        # pages of a slice that are asked about in larger models
SHARE = 0.02                       # of a core that all this may take
KEYFRAME = 15                      # samples until one stands by itself again
MOST_CELLS = 512 * 4096
MOST_LAYOUT = 4 << 20              # bytes of JSON
NEVER, EVICTED, RECENT, SOME, ALL = 0, 1, 2, 3, 15
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Layout:
    """The slices of every expert, checked: (file, offset, length) by cell, layer after layer."""

    def __init__(self, text: str, sizes: list[int]) -> None:
        try:
            told = json.loads(text)
            self.experts = int(told["experts"])
            by_layer: dict[int, list[list[tuple[int, int, int]]]] = {}
            for number, parts in told["layers"]:
                cells = by_layer.setdefault(int(number), [[] for _ in range(self.experts)])
                for file, offset, each in parts:
                    for expert in range(self.experts):
                        cells[expert].append((file, offset + expert * each, each))
            for number, parts in told.get("apart", []):
                cells = by_layer.setdefault(int(number), [[] for _ in range(self.experts)])
                for file, offsets, each in parts:
                    for expert, offset in enumerate(offsets[:self.experts]):
                        cells[expert].append((file, offset, each))
            self.layers = sorted(by_layer)
            self.cells = [slices for number in self.layers for slices in by_layer[number]]
            self.shared = [(int(file), int(offset), int(length)) for file, offset, length in told["shared"]]
            every = [piece for slices in self.cells for piece in slices] + self.shared
            sound = 0 < len(self.cells) <= MOST_CELLS and all(
                offset >= 0 and length > 0 and offset + length <= sizes[file] for file, offset, length in every)
        except (ValueError, TypeError, KeyError, IndexError) as error:
            raise StoreError(f"The layout is none: {error}.", "Give what layout.py makes.", code="layout") from None
        if not sound:
            raise StoreError("The layout does not fit the files.", "Is it of another model?", code="layout")
        self.bytes = sum(length for slices in self.cells for _, _, length in slices)


class _Range(ctypes.Structure):
    _fields_ = [("offset", ctypes.c_uint64), ("length", ctypes.c_uint64)]


class _Cachestat(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("cached", "dirty", "writeback", "evicted", "recent")]


class Pages:
    """Asks about ranges of files: pages in memory, evicted, evicted not long ago. `method` says how, or "unknown"."""

    def __init__(self, paths: list[str], *, cachestat: bool = True) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.syscall.restype = ctypes.c_long
        self._libc.mmap.restype = ctypes.c_void_p
        self._libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int,
                                    ctypes.c_long]
        self._libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
        self._fds = [os.open(path, os.O_RDONLY) for path in paths]
        self._starts: list[int] = []
        self._number, self._flags = ctypes.c_long(CACHESTAT), ctypes.c_uint(0)
        self._handles = [ctypes.c_int(fd) for fd in self._fds]
        self._range, self._stat = _Range(0, _PAGE), _Cachestat()
        self.why = ""
        self.method = self._choose(paths, cachestat)

    def _choose(self, paths: list[str], cachestat: bool) -> str:
        refused = 0
        for handle in self._handles if cachestat else []:
            if self._ask(handle) != 0:
                refused = ctypes.get_errno()
                break
        if cachestat and not refused:
            return "cachestat"
        others = [path for path in paths if not _told_the_truth(path)]
        if refused == errno.EPERM or others:
            path = (others or paths)[0]
            self.why = (f"{path} belongs to somebody else and cannot be written: the kernel does not tell what of it "
                        "is in memory")
            return "unknown"
        for fd in self._fds:
            start = self._libc.mmap(None, max(1, os.fstat(fd).st_size), 0, 1, fd, 0)    # PROT_NONE: touches nothing
            if start in (None, ctypes.c_void_p(-1).value):
                self.why = f"a file cannot be mapped: {os.strerror(ctypes.get_errno())}"
                return "unknown"
            self._starts.append(start)
        self._vector = ctypes.create_string_buffer(4096)
        return "mincore"

    def _ask(self, handle: ctypes.c_int) -> int:
        return self._libc.syscall(self._number, handle, ctypes.byref(self._range), ctypes.byref(self._stat),
                                  self._flags)

    def look(self, file: int, offset: int, length: int) -> tuple[int, int, int]:
        """Pages of a range that are in memory, that were evicted, that were evicted not long ago."""
        if self.method == "cachestat":
            self._range.offset, self._range.length = offset, length
            if self._ask(self._handles[file]):
                raise OSError(ctypes.get_errno(), "cachestat")
            return self._stat.cached, self._stat.evicted, self._stat.recent
        first, last = offset // _PAGE, -(-(offset + length) // _PAGE)
        found = 0
        for at in range(first, last, 4096):
            count = min(4096, last - at)
            if self._libc.mincore(self._starts[file] + at * _PAGE, count * _PAGE, self._vector):
                raise OSError(ctypes.get_errno(), "mincore")
            found += self._vector.raw[:count].translate(_RESIDENT).count(1)
        return found, 0, 0

    def close(self) -> None:
        """Let go of the files."""
        for fd in self._fds:
            os.close(fd)
        self._fds = []


_RESIDENT = bytes(value & 1 for value in range(256))


def _told_the_truth(path: str) -> bool:
    about = os.stat(path)
    return os.geteuid() in (0, about.st_uid) or os.access(path, os.W_OK)


def every_for(wanted: float, cpu: float) -> float:
    """Seconds between two samples that each take so many seconds of a core."""
    return max(wanted, cpu / SHARE)


class Watch:
    """Samples one model."""

    def __init__(self, layout: Layout, pages: Pages) -> None:
        self._layout, self._pages = layout, pages
        self._states = bytearray(len(layout.cells))
        self._sent: bytes | None = None
        self._count = 0
        self._turn = 0
        self._seen = bytearray(len(layout.cells))
        self._plan = self._questions()

    def _questions(self) -> list[list[tuple[int, int, int, int]]]:
        """By turn: (cell, file, offset, length). More than one turn: each sample looks at a part."""
        whole = self._layout.bytes <= WHOLE
        every: list[list[tuple[int, int, int, int]]] = []
        for cell, slices in enumerate(self._layout.cells):
            if whole:
                asked = [(cell, file, offset, length) for file, offset, length in slices]
            else:          # experts come and go whole, or nearly: one matrix of each stands for all
                asked = [(cell, *_middle(*slices[cell % len(slices)]))] if slices else []
            every.append(asked)
        turns = -(-sum(map(len, every)) // CALLS) or 1
        cells = -(-len(every) // turns)              # as many in every turn
        return [[one for asked in every[first:first + cells] for one in asked]
                for first in range(0, len(every), cells)]

    def sample(self) -> dict:
        """One look, as the line that is told; without times and processes."""
        pages = self._pages
        if pages.method == "unknown":
            return {"method": "unknown", "why": pages.why, "experts": None, "shared": None}
        questions = self._plan[self._turn % len(self._plan)]
        self._turn += 1
        self._judge(questions)
        states = bytes(self._states)
        delta = self._sent is not None and self._count % KEYFRAME != 0
        told = _changes(states, self._sent) if delta and self._sent is not None else states
        self._sent, self._count = states, self._count + 1
        have = sum(states.count(state) * (state - SOME + 1) for state in range(SOME, ALL + 1))
        return {"method": pages.method, "delta": delta, "layers": len(self._layout.layers),
                "cells": base64.b64encode(zlib.compress(told, 6)).decode(),
                "experts": round(have / (len(states) * (ALL - SOME + 1)), 4), "shared": self._shared()}

    def _judge(self, questions: list[tuple[int, int, int, int]]) -> None:
        at = 0
        while at < len(questions):
            cell, have, gone, recent, want = questions[at][0], 0, 0, 0, 0
            while at < len(questions) and questions[at][0] == cell:
                _, file, offset, length = questions[at]
                cached, evicted, lately = self._pages.look(file, offset, length)
                have, gone, recent = have + cached, gone + evicted, recent + lately
                want += -(-(offset + length) // _PAGE) - offset // _PAGE
                at += 1
            if have:
                self._seen[cell] = 1
                self._states[cell] = SOME + min(ALL - SOME, (ALL - SOME) * have // want)
            elif recent * 2 > want:
                self._states[cell] = RECENT
            else:
                self._states[cell] = EVICTED if gone or self._seen[cell] else NEVER

    def _shared(self) -> float | None:
        have = want = 0
        for file, offset, length in self._layout.shared[:512]:
            have += self._pages.look(file, offset, length)[0]
            want += -(-(offset + length) // _PAGE) - offset // _PAGE
        return round(min(1.0, have / want), 4) if want else None


def _changes(now: bytes, before: bytes) -> bytes:
    return (int.from_bytes(now, "little") ^ int.from_bytes(before, "little")).to_bytes(len(now), "little")


def _middle(file: int, offset: int, length: int) -> tuple[int, int, int]:
    wide = MIDDLE * _PAGE
    return (file, offset, length) if length <= wide else (file, offset + (length - wide) // 2, wide)


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """The words of the verb `residency`."""
    verb.add_argument("files", nargs="+", metavar="FILE", help="the files of a model, in order")
    verb.add_argument("--layout", required=True, metavar="JSON|@FILE", help="where its experts lie")
    verb.add_argument("--pid", type=int, default=0, help="the server, for its figures and those of its group")
    verb.add_argument("--every", type=float, default=2.0, metavar="SECONDS", help="more where it would cost too much")
    verb.add_argument("--count", type=int, default=0, metavar="N", help="end after so many samples")
    verb.add_argument("--until-eof", action="store_true", help="stop when stdin ends")
    verb.set_defaults(run=run)


def run(options: argparse.Namespace, tell: Callable[[object], None], halt: threading.Event) -> int:
    """Sample until told to stop; the exit status."""
    text = options.layout
    if text.startswith("@"):
        text = read_bounded(Path(text[1:]), MOST_LAYOUT).decode("utf-8", "replace")
    if options.until_eof:
        threading.Thread(target=_until_eof, args=(halt,), name="stdin", daemon=True).start()
    pages = Pages(options.files)
    try:
        watch = Watch(Layout(text, [os.stat(path).st_size for path in options.files]), pages)
        taken, cost = 0, 0.0
        while not halt.is_set():
            begun = time.process_time()
            record = {"event": "residency", "at": round(time.time(), 3), **watch.sample()}
            if options.pid:
                record["process"], record["group"] = process_figures(options.pid), group_figures(options.pid)
            spent = time.process_time() - begun
            cost = spent if not taken else 0.7 * cost + 0.3 * spent
            pause = every_for(max(0.05, options.every), cost)
            tell({**record, "cpu_ms": round(1000 * spent, 1), "every": round(pause, 2)})
            taken += 1
            if taken == options.count:
                break
            halt.wait(pause)
        return 0
    finally:
        pages.close()


def _until_eof(halt: threading.Event) -> None:
    while sys.stdin.readline(4096):
        pass
    halt.set()
