"""`quarterdeck swarm seed MODEL...`: models of this machine given away, by a service or in the foreground."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from app.exit_codes import BadUsage, ExitCode
from app.output import note
from app.swarm_moving import Serving, file_here, halting, interfaces_of, serving_of
from app.swarm_view import View
from app.verbs.manifest import hashed
from fleet.node.access import Access, is_loopback
from fleet.node.limits import Throttle
from fleet.node.manifest import PIECE_SIZE, find_manifest
from fleet.node.running import seeding, serve_on
from fleet.node.seeder import Seeder
from fleet.swarm.making import files_of


def run(options: argparse.Namespace) -> int:
    """Make the manifests that are missing, and start the seeder."""
    serving = serving_of(options, alone=False)
    if not serving.port and not options.foreground:
        raise BadUsage("A seeder that goes on needs a port.", "Leave --port out, or say --foreground.")
    paths = [_first(model) for model in options.models]
    if not options.dry_run:
        _make_manifests(paths, options.json)
    if options.foreground:
        return _here(options, paths, serving)
    from app.verbs.acting import act
    from fleet.events import StartSeeder

    return act(options, StartSeeder(tuple(paths), serving.host, serving.port, serving.token, serving.networks,
                                    serving.open, serving.limit, serving.limit_each))


def _first(model: str) -> str:
    """The path by which a model is known: its first shard, and its final name while it is half-fetched."""
    path = os.path.abspath(os.path.expanduser(model))
    if path.endswith(".part") and not path.endswith("/.part"):
        path = path.removesuffix(".part")
    return path if find_manifest(path) is not None else files_of((file_here(path),))[0]


def _make_manifests(paths: list[str], json: bool) -> None:
    with halting() as halt, View(json=False) as view:
        for path in paths:
            if find_manifest(path) is None:
                if not json:
                    note(f"{path} has no manifest yet: hashing it")
                hashed(files_of((path,)), PIECE_SIZE, halt, None if json else view)


def _here(options: argparse.Namespace, paths: list[str], serving: Serving) -> int:
    with ExitStack() as stack:
        view = stack.enter_context(View(json=options.json))
        halt = stack.enter_context(halting())
        seeder = Seeder(serving.host, serving.port, access=Access(serving.token, serving.networks),
                        allow_open=serving.open, throttle=Throttle(serving.limit, serving.limit_each))
        stack.enter_context(seeding(seeder, [Path(path) for path in paths], view, halt))
        announce(options, stack, seeder, [(store.manifest.id, store.manifest.name) for store in seeder.models()])
        for store in seeder.models():
            view.say(f"{seeder.url}/models/{store.manifest.id}  {store.manifest.name}, "
                     f"{len(store.holdings)} of {store.manifest.count} pieces")
        view.say("ctrl+c ends it")
        serve_on(seeder, view, halt)
    return ExitCode.OK


def announce(options: argparse.Namespace, stack: ExitStack, seeder: Seeder,
             models: Iterable[tuple[str, str]]) -> None:
    """Say by mDNS which models (id, name) a seeder of this process gives to others, until `stack` ends."""
    interfaces, _, may = interfaces_of(options)
    if not may or is_loopback(seeder.host):
        return
    from fleet.swarm.nearby import Announcing

    announcing = stack.enter_context(Announcing(seeder.host, interfaces, say=note))
    for manifest, name in models:
        announcing.announce(manifest, name, seeder.port)
