"""`quarterdeck replay`: a recording, played in the cockpit or printed line by line."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable
from pathlib import Path

from app.as_json import to_line
from app.changes import changes
from app.engines import recordings
from app.exit_codes import ExitCode
from app.open_cockpit import no_cockpit, open_cockpit
from app.output import note, put
from app.verbs.flight import runs
from fleet.model import Snapshot
from fleet.telemetry.codec import Recorded, RecordingBroken
from fleet.telemetry.recorder import check_folder
from fleet.telemetry.recording import Recording, snapshots


def run(options: argparse.Namespace) -> int:
    """Play it; without a screen, or with --no-ui or --json, print what happened."""
    if options.file:
        paths: tuple[Path, ...] = (Path(options.file),)
    else:
        check_folder(recordings())
        paths = tuple(list(runs(recordings()).values())[-1])
    recording = Recording(paths)
    recorded = list(recording)
    if not recorded:
        raise RecordingBroken(f"{paths[0]} holds nothing that can be played.", "Name a recording, or an exported one.")
    if recording.damaged:
        note(f"{recording.damaged} line{'s' if recording.damaged != 1 else ''} of the recording cannot be read; "
             "they are left out")
    why = "" if options.no_ui or options.json else no_cockpit()
    if options.no_ui or options.json or why:
        if why:
            note(f"{why}: printing what happened, as with --no-ui")
        _print(recorded, json=options.json)
        return ExitCode.OK
    from app.replay_engine import ReplayEngine

    return open_cockpit(lambda: lambda: ReplayEngine(recorded, speed=options.speed), options)


def _print(recorded: Iterable[Recorded], *, json: bool) -> None:
    seen: Snapshot | None = None
    for at_epoch, snapshot in snapshots(recorded):
        for change in changes(seen, snapshot) if seen is not None else ():
            if json:
                put(to_line({"time": at_epoch, "event": change.event, **change.data}))
            elif change.text:
                put(f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(at_epoch))} {change.text}")
        seen = snapshot
