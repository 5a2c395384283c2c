"""`quarterdeck flight`: what the flight recorder kept on this machine."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from app.as_json import SCHEMA, to_text
from app.engines import recordings
from app.exit_codes import BadUsage, ExitCode
from app.output import put, table
from app.present.units import size
from fleet.telemetry.recorder import check_folder, segments
from fleet.telemetry.recording import export
from fleet.text import visible


def run(options: argparse.Namespace) -> int:
    """List the runs, newest last, or export the newest."""
    folder = recordings()
    if options.action == "list":
        if options.file:
            raise BadUsage("`flight list` takes no file.", "`quarterdeck flight export FILE` writes one.")
        return _list(options, folder)
    if not options.file:
        raise BadUsage("`flight export` needs the name of a file to write.",
                       "quarterdeck flight export report.flight.gz")
    check_folder(folder)
    kept = [path for paths in list(runs(folder).values())[-options.runs:] for path in paths]
    target = Path(options.file)
    lines = export(kept, target)
    put(to_text({"schema": SCHEMA, "file": str(target), "lines": lines}) if options.json else
        f"{visible(str(target))}: {lines} lines; play it with `quarterdeck replay {visible(str(target))}`")
    return ExitCode.OK


def runs(folder: Path) -> dict[str, list[Path]]:
    """Segments by the run that wrote them, the run that wrote last as the last one."""
    found: dict[str, list[Path]] = {}
    for path in segments(folder):
        name = path.name.rpartition("-")[0]
        found[name] = [*found.pop(name, []), path]
    return found


def _list(options: argparse.Namespace, folder: Path) -> int:
    rows = [(name, paths[-1].stat().st_mtime, sum(path.stat().st_size for path in paths), [str(p) for p in paths])
            for name, paths in runs(folder).items()]
    if options.json:
        put(to_text({"schema": SCHEMA, "folder": str(folder), "runs": [
            {"name": name, "last_epoch": last, "bytes": count, "files": files} for name, last, count, files in rows]}))
    elif not rows:
        put("Nothing was recorded yet: a cockpit, --no-ui and the verbs that act record while they run.")
    else:
        cells = [(visible(name), time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(last)), size(count))
                 for name, last, count, _ in rows]
        put("\n".join(table(("run", "last", "size"), cells)))
    return ExitCode.OK
