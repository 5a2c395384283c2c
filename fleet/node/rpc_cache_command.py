"""The node's verb `rpc-cache`: show, check, prune and fill the caches of tensors of a machine's workers.

    rpc-cache show|check|prune|seed [--worker NAME=VALUE[,NAME=VALUE]]... [FILE... --tensors JSON]

Every `--worker` is the environment that a worker has beyond this one's; workers with the same folder are one. Lines:

    {"event": "progress", "done": 1, "bytes": 2}
    {"event": "gone", "folder": "...", "name": "0123456789abcdef", "size": 3, "why": "..."}
    {"event": "cache", "folder": "...", "files": 1, "bytes": 2, "unproven": 0, "others": 0, "free": 3, ...}

The last kind comes once a folder when it is done, with what was done: `checked`, `bad`, `removed`, `left` of check;
`pruned`, `pruned_bytes` of prune; `added`, `added_bytes`, `there`, `there_bytes`, `mended` of seed.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Callable

from . import fnv
from .rpc_cache import Cache, check, environment_of, folder_of, look, prune
from .rpc_seed import Seeding, tensors_of
from .trouble import StoreError

TELL_EVERY = 0.3               # seconds between two lines of progress
MOST_TOLD = 1_000              # lines about files that went

Tell = Callable[[object], None]


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """The words of the verb."""
    verb.add_argument("action", choices=("show", "check", "prune", "seed"))
    verb.add_argument("files", nargs="*", metavar="FILE", help="seed: the files of a model, in order")
    verb.add_argument("--tensors", default="[]", metavar="JSON", help="seed: [[file, offset, bytes], ...]")
    verb.add_argument("--worker", action="append", default=[], metavar="NAME=VALUE,...",
                      help="a worker's environment, as JSON: an object")
    verb.add_argument("--limit", type=int, default=0, metavar="BYTES", help="prune: so much may stay; seed: no more")
    verb.add_argument("--library", default="", metavar="FILE", help="a compiled hash, where there is no compiler")
    verb.add_argument("--new", action="store_true", help="check: only what was not found right before")
    verb.add_argument("--seconds", type=float, default=0.0, help="check: begin no further file after so long")
    verb.add_argument("--keep", action="store_true", help="take nothing away, only tell")
    verb.set_defaults(run=run)


def run(options: argparse.Namespace, tell: Tell, halt: threading.Event) -> int:
    """Do it for every folder; the exit status."""
    actions = {"show": _show, "check": _check, "prune": _prune, "seed": _seed}
    for folder in folders(options.worker):
        cache = look(folder)
        actions[options.action](options, cache, tell, halt)
    return 0


def folders(workers: list) -> list:
    """The folders of workers with such environments, each once. StoreError: one cannot be known."""
    found: dict = {}
    for text in workers or ["{}"]:
        try:
            told = json.loads(text)
            changes = {str(key): str(value) for key, value in told.items()}
        except (ValueError, AttributeError, RecursionError):
            raise StoreError("A worker's environment is no JSON object.", code="usage") from None
        folder = folder_of(environment_of(changes))
        found[os.path.realpath(folder)] = folder
    return list(found.values())


def _tell(tell: Tell, cache: Cache, **more: object) -> None:
    tell({"event": "cache", "folder": str(cache.folder), "files": len(cache.files), "bytes": cache.bytes,
          "unproven": cache.unproven, "others": cache.others, "free": _free(cache.folder), **more})


def _free(folder: Path) -> int:
    """Bytes free on the disk of a folder that need not be there yet."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    about = os.statvfs(folder)
    return about.f_bavail * about.f_frsize


def _progress(tell: Tell) -> Callable[[int, int], None]:
    last = [0.0]

    def progress(done: int, total: int) -> None:
        now = time.monotonic()
        if now - last[0] >= TELL_EVERY or done == total:
            last[0] = now
            tell({"event": "progress", "done": done, "bytes": total})

    return progress


def _show(options: argparse.Namespace, cache: Cache, tell: Tell, halt: threading.Event) -> None:
    _tell(tell, cache)


def _check(options: argparse.Namespace, cache: Cache, tell: Tell, halt: threading.Event) -> None:
    wanted = [file for file in cache.files if not (options.new and file.sound)]
    feed = fnv.fast(options.library) if wanted else fnv.slow
    found = check(cache, feed, halt, again=not options.new, keep=options.keep, seconds=options.seconds,
                  tell=_progress(tell))
    for name, size, why in found.bad[:MOST_TOLD]:
        tell({"event": "gone", "folder": str(cache.folder), "name": name, "size": size, "why": why})
    _tell(tell, cache, checked=found.files, checked_bytes=found.bytes, bad=len(found.bad), removed=found.removed,
          left=found.left)


def _prune(options: argparse.Namespace, cache: Cache, tell: Tell, halt: threading.Event) -> None:
    gone = prune(cache, options.limit, dry=options.keep)
    for file in gone[:MOST_TOLD]:
        tell({"event": "gone", "folder": str(cache.folder), "name": file.name, "size": file.size,
              "why": f"last used {time.strftime('%Y-%m-%d %H:%M', time.localtime(file.used))}"})
    _tell(tell, cache, pruned=len(gone), pruned_bytes=sum(file.size for file in gone))


def _seed(options: argparse.Namespace, cache: Cache, tell: Tell, halt: threading.Event) -> None:
    try:
        sizes = [os.stat(path).st_size for path in options.files]
        listed = json.loads(options.tensors)
    except (ValueError, RecursionError):
        raise StoreError("The list of tensors is no JSON.", code="usage") from None
    tensors = tensors_of(listed, sizes)
    needed = sum(tensor.bytes for tensor in tensors)
    if options.limit and needed > options.limit:
        raise StoreError(f"The model's large tensors take {needed} bytes, and the cache may hold {options.limit}.",
                         "Raise rpc_cache_limit, or name the layers that this worker gets (--layers).",
                         code="limit")
    begun = time.monotonic()
    feed = fnv.fast(options.library) if tensors else fnv.slow
    seeded = Seeding(cache.folder, options.files, feed, halt, _progress(tell)).run(tensors)
    after = look(cache.folder)
    gone = prune(after, options.limit) if options.limit else []
    _tell(tell, after, **asdict(seeded), pruned=len(gone), pruned_bytes=sum(file.size for file in gone),
          seconds=round(time.monotonic() - begun, 3))
