"""`quarterdeck swarm pull URL|MANIFEST|NAME [FOLDER]`: fetch a model from many peers, and go on where it was."""

from __future__ import annotations

import argparse
import os
import re
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path

from app.exit_codes import BadUsage, ExitCode, NothingThere
from app.known_pulls import KnownPulls
from app.output import note
from app.present.units import duration, size
from app.swarm_moving import check_counts, halting, interfaces_of, rate_of, serving_of
from app.swarm_view import View
from app.verbs.swarm_seed import announce
from fleet.errors import FleetError
from fleet.node.access import Access
from fleet.node.limits import Throttle
from fleet.node.manifest import Manifest
from fleet.node.puller import Puller
from fleet.node.running import fetch_manifest, pull, pulling, serve_on
from fleet.node.seeder import Seeder
from fleet.node.store import PULL, REPAIR
from fleet.node.trouble import Stopped, SwarmError
from fleet.swarm.faults import SwarmFault, fault_of
from fleet.swarm.nearby import Nearby
from fleet.text import visible

HEAR_WITHIN = 12.0      # seconds in which a seeder nearby has to be heard of
HEAR_MORE = 1.5         # seconds for further ones, once there is one
_ID = re.compile(r"[0-9a-f]{64}")


def run(options: argparse.Namespace) -> int:
    """Fetch it."""
    where, folder = options.manifest or options.what, options.folder
    if options.manifest and not folder:
        folder = options.what
    if not where:
        raise BadUsage("What is to be pulled is not said.", "Name a seeder's URL, a manifest, or a model nearby.")
    check_counts(options)
    serving = serving_of(options, alone=True)
    with ExitStack() as stack:
        view = stack.enter_context(View(json=options.json))
        halt = stack.enter_context(halting())
        manifest, peers = _found(options, where, serving.token, stack, view, halt)
        _compare(manifest, options.sha256)
        return fetch(options, manifest, _folder(folder, manifest), peers, stack, view, halt, PULL)


def fetch(options: argparse.Namespace, manifest: Manifest, folder: Path, peers: Callable[[], Iterable[str]],
          stack: ExitStack, view: View, halt: threading.Event, mode: str) -> int:
    """Pull or repair until it is whole, and say so; what is left when it is stopped goes on with the next."""
    serving = serving_of(options, alone=True)
    seeder = Seeder(serving.host, serving.port, access=Access(serving.token, serving.networks),
                    allow_open=serving.open, throttle=Throttle(serving.limit, serving.limit_each))
    puller = Puller(manifest, folder, peers, parallel=options.parallel, token=serving.token, seeder=seeder,
                    trackers=options.tracker, tell=view, patience=options.patience or None, mode=mode,
                    throttle=Throttle(rate_of(options.limit_down), rate_of(options.limit_down_peer)),
                    trust=mode != REPAIR)
    known = KnownPulls()
    try:
        with pulling(puller, seeder, view, halt), known.entered(manifest, folder, seeder.url):
            announce(options, stack, seeder, ((manifest.id, manifest.name),))
            outcome = pull(puller, view)
            view.close()
            rate = f", {size(int(outcome.received / outcome.seconds))}/s" if outcome.seconds > 0.5 else ""
            for path in outcome.paths:
                view.say(f"{path}: whole and verified")
            view.say(f"{size(outcome.received)} received in {duration(outcome.seconds)}{rate}")
            if getattr(options, "keep_seeding", False):
                view.say(f"giving it away at {seeder.url}; ctrl+c ends it")
                serve_on(seeder, view, halt)
    except SwarmError as error:
        view.close()
        _say_what_is_kept(puller, isinstance(error, Stopped))
        raise
    return ExitCode.OK


def _say_what_is_kept(puller: Puller, stopped: bool) -> None:
    have, count, name = len(puller.store.holdings), puller.manifest.count, puller.manifest.name
    if have and not puller.store.complete:
        note(f"{have} of {count} pieces of {name} are kept in {puller.store.folder}; the same command goes on from "
             "there")
    elif stopped and not puller.store.complete:
        note(f"no piece of {name} was whole yet; the same command begins anew")


def _found(options: argparse.Namespace, where: str, token: str, stack: ExitStack, view: View,
           halt: threading.Event) -> tuple[Manifest, Callable[[], Iterable[str]]]:
    """The manifest, and who has pieces: asked again and again while it is pulled."""
    given = list(options.peer)
    if "://" in where:
        manifest, base = fetch_manifest(where, token)
        peers = list(dict.fromkeys([*given, base]))
        return manifest, lambda: peers
    if os.path.lexists(os.path.expanduser(where)) or "/" in where or where.endswith((".manifest", ".json")):
        manifest, _ = fetch_manifest(os.path.expanduser(where))
        return manifest, nearby_too(options, manifest, given, token, stack)
    if token:
        raise BadUsage("A token is shown to nobody who only announces himself.",
                       "Name the seeder: quarterdeck swarm pull http://HOST:9080.")
    nearby = _listen(options, stack)
    if nearby is None:
        raise NothingThere(f"There is no file {where}, and discovery.mdns is off.",
                           "Name a seeder: http://HOST:9080.")
    view.say(f"looking for {where} nearby")
    manifest = _announced(nearby, where, token, halt)
    return manifest, lambda: [*given, *nearby.peers_of(manifest.id)]


def nearby_too(options: argparse.Namespace, manifest: Manifest, given: list[str], token: str,
               stack: ExitStack) -> Callable[[], Iterable[str]]:
    """The peers that were named; those nearby where none was, unless a token would be shown to them."""
    nearby = None if given or options.tracker or token else _listen(options, stack)
    return lambda: given if nearby is None else nearby.peers_of(manifest.id)


def _listen(options: argparse.Namespace, stack: ExitStack) -> Nearby | None:
    interfaces, may, _ = interfaces_of(options)
    return stack.enter_context(Nearby(interfaces, local=any(name in ("lo", "127.0.0.1") for name in interfaces))) \
        if may else None


def _announced(nearby: Nearby, wanted: str, token: str, halt: threading.Event) -> Manifest:
    """The manifest of the one model of that name (or id) that is announced, from whoever gives it as announced."""
    until, settled = time.monotonic() + HEAR_WITHIN, 0.0
    found: list = []
    while not halt.is_set() and time.monotonic() < (settled or until):
        nearby.wait(0.2)
        found = [seeder for seeder in nearby.seeders() if wanted in (seeder.manifest, seeder.name)]
        if found and not settled:
            settled = time.monotonic() + HEAR_MORE
    if halt.is_set():
        raise KeyboardInterrupt
    if not found:
        others = ", ".join(sorted({visible(seeder.name, limit=80) for seeder in nearby.seeders()})[:8])
        raise NothingThere(
            f"No seeder nearby gives {visible(wanted, limit=80)} away. {nearby.problem}".rstrip(),
            f"Announced are: {others}." if others else "Name one: quarterdeck swarm pull http://HOST:9080.")
    ids = sorted({seeder.manifest for seeder in found})
    if len(ids) > 1:
        raise BadUsage(f"{len(ids)} different models nearby are called {visible(wanted, limit=80)}.",
                       f"Name one by its id: {', '.join(ids[:4])}.")
    failure: FleetError | None = None
    for seeder in found[:16]:
        try:
            manifest, _ = fetch_manifest(seeder.url, token)
        except SwarmError as error:
            failure = fault_of(error)
            continue
        if manifest.id == seeder.manifest and wanted in (manifest.id, manifest.name):
            return manifest
        failure = SwarmFault(f"{seeder.url} gives another manifest than it announced.",
                             "Name a seeder that you trust: quarterdeck swarm pull http://HOST:9080.", code="manifest")
    assert failure is not None
    raise failure


def _folder(wanted: str, manifest: Manifest) -> Path:
    """Where it goes. A path that ends in the model's own name means the folder before it, as Tightwad's does."""
    path = Path(os.path.expanduser(wanted or "."))
    return path.parent if not path.is_dir() and path.name == manifest.name else path


def _compare(manifest: Manifest, digests: list[str]) -> None:
    if not digests:
        return
    said = [digest.strip().lower() for digest in digests]
    if any(not _ID.fullmatch(digest) for digest in said):
        raise BadUsage("--sha256 takes 64 hexadecimal digits.", "Copy them from the hub's page of the file.")
    if any(not entry.sha256 for entry in manifest.files):
        raise SwarmFault(f"The manifest of {manifest.name} does not say the hash of the whole, as Tightwad's never do.",
                         "Leave --sha256 out and compare afterwards, or pull from one of Quarterdeck's seeders.",
                         code="sha256")
    if sorted(said) != sorted(entry.sha256 for entry in manifest.files):
        raise SwarmFault(f"The manifest of {manifest.name} is not of the file with that SHA-256.",
                         "Somebody gives away another file under this name: use another seeder.", code="sha256")
