"""`quarterdeck manifest create FILE...`: hash a model and write its manifest beside it."""

from __future__ import annotations

import argparse
import os
import threading
import time
from pathlib import Path

from app.as_json import SCHEMA, to_text
from app.exit_codes import ExitCode
from app.output import note, put
from app.present.units import count, size
from app.swarm_moving import file_here, halting, piece_size_of
from app.swarm_view import View
from fleet.node.manifest import Manifest
from fleet.swarm.making import facts_of_file, files_of, make_manifest


def run(options: argparse.Namespace) -> int:
    """Make it and say what it is."""
    piece_size = piece_size_of(options.piece_size)
    files = files_of([file_here(path) for path in options.files])
    begun = time.monotonic()
    with halting() as halt, View(json=False) as view:
        manifest, path = hashed(files, piece_size, halt, None if options.json else view)
        view.close()
        seconds = time.monotonic() - begun
        if options.json:
            put(to_text({"schema": SCHEMA, "path": str(path), "manifest": manifest.id, "name": manifest.name,
                         "size": manifest.total_size, "pieces": manifest.count, "piece_size": manifest.piece_size,
                         "files": [{"name": entry.name, "size": entry.size, "sha256": entry.sha256}
                                   for entry in manifest.files], "metadata": dict(manifest.facts)}))
        else:
            view.say(f"{path}")
            about = [str(manifest.facts[key]) for key in ("architecture", "quantization") if key in manifest.facts]
            view.say("  " + ", ".join((size(manifest.total_size), count(manifest.count, "piece"), *about,
                                       f"{manifest.total_size / max(seconds, 1e-3) / 1e6:.0f} MB/s")))
            for entry in manifest.files:
                view.say(f"  sha256 {entry.sha256}  {entry.name}")
    return ExitCode.OK


def hashed(files: tuple[str, ...], piece_size: int, halt: threading.Event,
           view: View | None) -> tuple[Manifest, Path]:
    """The manifest of one model's files, written beside it, and its path."""
    facts, why = facts_of_file(files[0])
    if why:
        note(f"the manifest says nothing of the model: {why}")
    name, last = os.path.basename(files[0]), 0.0

    def progress(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if view is not None and (now - last > 0.2 or done == total):
            last = now
            view.hashing(name, done, total)

    return make_manifest(files, piece_size=piece_size, facts=facts, progress=progress, stop=halt)
