"""`quarterdeck init`: a first fleet.yaml from what can be found. Asks nothing, overwrites nothing."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from pathlib import Path

from app.engines import engine_maker
from app.exit_codes import BadUsage, ExitCode
from app.output import note
from app.session import run_to_end, watching
from app.which_fleet import WhichFleet
from fleet.config.load import ConfigErrors, find
from fleet.config.schema import FleetConfig
from fleet.config.write import render, write_new
from fleet.text import visible


def run(options: argparse.Namespace) -> int:
    """Look around, then write or print the file."""
    target = Path(options.output or options.config or default_path())
    if not options.print_only and target.exists():
        raise BadUsage(f"{target} is there already, and is never overwritten.",
                       "Look at a new one with `quarterdeck init --print`, or name another place with -o.")
    return run_to_end(lambda: _init(options, target))


def default_path() -> Path:
    """The user's own fleet.yaml: found from every folder."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".config") / "quarterdeck" / "fleet.yaml"


async def _init(options: argparse.Namespace, target: Path) -> int:
    config = FleetConfig()
    async with watching(engine_maker(WhichFleet(config), options, discover=True)) as engine:
        nodes = list(engine.latest.nodes.values())
    text = render(options.name or socket.gethostname().partition(".")[0] or "home", nodes, config)
    if options.print_only:
        sys.stdout.write(text)
        return ExitCode.OK
    write_new(target, text)
    note(f"wrote {target}: {len(nodes)} machine{'s' if len(nodes) != 1 else ''}")
    for node in nodes:
        why = f": {visible(node.problem.what)}" if node.problem else ""
        note(f"  {visible(node.name)} is {node.state.value}{why}")
    if hint := passed_over(target):
        note(hint)
    return ExitCode.OK


def passed_over(target: Path) -> str:
    """Why the other verbs will not read `target` from here; "" when they will."""
    try:
        found = find(None, os.environ, Path.cwd())
    except ConfigErrors as error:
        return error.problems[0]
    if found is None:
        return f"it is not looked for there: say --config {target}"
    if not found.exists() or not found.samefile(target):
        return f"{found} comes before it: say --config {target}, or move that one away"
    return ""
