"""The work of seed, pull and verify, for the command of a node and for whoever else runs them in his own process.

`tell` gets the records of progress.py, from any thread; `halt` ends the work.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Callable

from .client import Connection, parse_peer
from .manifest import Manifest, find_manifest, load_manifest, parse_manifest
from .progress import as_line
from .puller import Outcome, Puller
from .seeder import Seeder
from .store import SEED, Store
from .trouble import ManifestRefused, StoreError

LOOK_EVERY = 1 << 28      # bytes between two records of a check

Tell = Callable[[object], None]


class Told:
    """Writes records to stdout, and hands them to `heard`; a reader that is gone stops the work."""

    def __init__(self, stop: Callable[[], None], heard: Tell | None = None) -> None:
        self._lock, self._stop, self._heard = threading.Lock(), stop, heard

    def __call__(self, record: object) -> None:
        if self._heard is not None:
            self._heard(record)
        try:
            with self._lock:
                sys.stdout.write(as_line(record) + "\n")
                sys.stdout.flush()
        except (BrokenPipeError, ValueError):
            self._stop()


def manifest_of(path: Path) -> Manifest:
    """The manifest that lies beside a model's (first) file. StoreError, code missing: there is none."""
    found = find_manifest(path)
    if found is None:
        raise StoreError(f"{path} has no manifest beside it.", "Make one with `manifest create`.", code="missing")
    manifest = load_manifest(found)
    if path.name not in [entry.name for entry in manifest.files]:
        raise ManifestRefused(f"{found} is the manifest of {manifest.name}.", "Make the manifest again.")
    return manifest


def fetch_manifest(where: str, token: str = "") -> tuple[Manifest, str]:
    """A manifest by its path, or by URL from who serves it, and that peer's URL ("" for a path)."""
    if "://" not in where:
        return load_manifest(where), ""
    base = where[:-len("/manifest")] if where.endswith("/manifest") else where
    connection = Connection(parse_peer(base), token)
    try:
        return parse_manifest(connection.get_manifest()), base
    finally:
        connection.close()


@contextmanager
def seeding(seeder: Seeder, files: Sequence[Path], tell: Tell, halt: threading.Event, *,
            once: bool = False) -> Iterator[None]:
    """Serve models, each with its manifest beside it, for the length of the block; their data is checked first."""
    stores: list[Store] = []
    try:
        for path in files:
            store = Store(manifest_of(path), path.resolve().parent, mode=SEED)
            stores.append(store)
            store.open(checking(tell, path.name), halt)
            seeder.add(store, once=once)
        seeder.start()
        for store in stores:
            tell(_serving(seeder, store))
        yield
    finally:
        seeder.stop()
        for store in stores:
            store.close()


@contextmanager
def pulling(puller: Puller, seeder: Seeder, tell: Tell, halt: threading.Event) -> Iterator[None]:
    """Serve what a pull has, and stop the pull when told to, for the length of the block."""
    seeder.start()
    manifest, done = puller.manifest, threading.Event()
    tell({"event": "serving", "url": seeder.url, "port": seeder.port, "name": manifest.name, "manifest": manifest.id})

    def watch() -> None:
        while not done.is_set():
            if halt.wait(0.2):
                puller.stop()
                return

    threading.Thread(target=watch, name="halt", daemon=True).start()
    try:
        yield
    finally:
        done.set()
        seeder.stop()
        puller.store.close()


def pull(puller: Puller, tell: Tell) -> Outcome:
    """Run a pull to its end and tell of it."""
    outcome = puller.run()
    tell({"event": "done", "paths": [str(path) for path in outcome.paths], "received": outcome.received,
          "seconds": round(outcome.seconds, 3), "banned": outcome.banned})
    return outcome


def check(manifest: Manifest, folder: Path, tell: Tell, halt: threading.Event) -> None:
    """Hash everything. StoreError, code wrong: pieces are missing or wrong; a record says which."""
    store = Store(manifest, folder, mode=SEED)
    store.open(checking(tell, manifest.name), halt, trust=False)
    have, complete = store.holdings.snapshot(), store.complete
    store.close()
    wrong = sorted(set(range(manifest.count)) - set(have))
    if complete:
        tell({"event": "done", "paths": [str(path) for path in store.finals], "received": 0, "seconds": 0.0})
        return
    tell({"event": "wrong", "pieces": wrong[:1000], "count": len(wrong)})
    raise StoreError(f"{manifest.name}: {len(wrong)} of {manifest.count} pieces are missing or wrong.",
                     "Give --peer URL to repair it.", code="wrong")


def serve_on(seeder: Seeder, tell: Tell, halt: threading.Event, linger: float = 0.0) -> None:
    """Serve until told to stop, or until nobody took a byte for `linger` seconds (0: never)."""
    sent, moving = 0, False
    looked = moved = time.monotonic()
    while not halt.wait(1.0):
        now, total = time.monotonic(), seeder.total_sent()
        if total != sent or moving:
            tell({"event": "sent", "bytes": total, "up": round((total - sent) / (now - looked), 1)})
        moving = total != sent
        if moving:
            moved = now
        elif linger and now - moved > linger:
            tell({"event": "note", "what": f"Nobody has asked for {linger:.0f} s."})
            return
        sent, looked = total, now


def checking(tell: Tell, name: str) -> Callable[[int, int], None]:
    """Tells how far the check of a model is."""
    last = [0]

    def progress(done: int, total: int) -> None:
        if done - last[0] >= LOOK_EVERY or done == total:
            last[0] = done
            tell({"event": "progress", "phase": "checking", "name": name, "done": done, "bytes": total})

    return progress


def _serving(seeder: Seeder, store: Store) -> dict:
    return {"event": "serving", "url": seeder.url, "port": seeder.port, "name": store.manifest.name,
            "manifest": store.manifest.id, "have": len(store.holdings), "pieces": store.manifest.count}
