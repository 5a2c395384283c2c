"""`quarterdeck swarm verify FILE`: hash all of a model, and mend what is wrong from peers."""

from __future__ import annotations

import argparse
import os
from contextlib import ExitStack
from pathlib import Path

from app.exit_codes import ExitCode
from app.swarm_moving import check_counts, file_here, halting
from app.swarm_view import View
from app.verbs.swarm_pull import fetch
from fleet.node.manifest import find_manifest
from fleet.node.running import check, manifest_of
from fleet.node.store import REPAIR


def run(options: argparse.Namespace) -> int:
    """Hash it; with --peer or --tracker mend it."""
    check_counts(options)
    path = Path(os.path.abspath(os.path.expanduser(options.file)))
    with ExitStack() as stack:
        view = stack.enter_context(View(json=options.json))
        halt = stack.enter_context(halting())
        manifest = manifest_of(path if find_manifest(path) is not None else Path(file_here(str(path))))
        if options.peer or options.tracker:
            return fetch(options, manifest, path.parent, lambda: options.peer, stack, view, halt, REPAIR)
        check(manifest, path.parent, view, halt)
        view.close()
        view.say(f"{path}: all {manifest.count} pieces and the whole are right")
    return ExitCode.OK
