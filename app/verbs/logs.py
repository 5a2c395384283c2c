"""`quarterdeck logs [NODE] SERVICE`: the last lines of a service's log, and with -f those that come."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from contextlib import aclosing

from app.engines import engine_maker
from app.exit_codes import ExitCode, NothingThere
from app.output import put
from app.session import run_to_end, watching
from app.which_fleet import WhichFleet, which_fleet
from fleet.model import Snapshot
from fleet.text import visible


def run(options: argparse.Namespace) -> int:
    """Print the log."""
    which = which_fleet(options, demo_counts=True)
    return run_to_end(lambda: _logs(options, which))


async def _logs(options: argparse.Namespace, which: WhichFleet) -> int:
    async with watching(engine_maker(which, options)) as engine:
        node = node_with(engine.latest, options.node, options.service)
        lines = engine.log_lines(node, options.service, tail=options.lines, follow=options.follow)
        async with aclosing(lines):
            async for line in lines:
                put(visible(line, keep="\t"))
    return ExitCode.OK


def node_with(snapshot: Snapshot, node: str | None, service: str) -> str:
    """The node that has the service.

    Raises:
        NothingThere: none has, or several have and none was named.
    """
    having = [name for name, known in snapshot.nodes.items()
              if any(s.record.id == service for s in known.services) and node in (None, name)]
    if len(having) == 1:
        return having[0]
    if having:
        raise NothingThere(f"{service} is on {len(having)} nodes: {', '.join(having)}.",
                           "Say which: quarterdeck logs NODE SERVICE")
    if node is not None and node not in snapshot.nodes:
        raise NothingThere(f"No node is called {node}.", _hint("Nodes", snapshot.nodes))
    if node is None and service in snapshot.nodes:
        raise NothingThere(f"{service} is a node: say which of its services.",
                           _hint("Services", [s.record.id for s in snapshot.nodes[service].services]))
    known_ids = [f"{name} {s.record.id}" for name, item in snapshot.nodes.items() for s in item.services]
    where = f" on {node}" if node else ""
    raise NothingThere(f"No service is called {service}{where}.", _hint("Services", known_ids))


def _hint(what: str, names: Iterable[str]) -> str:
    listed = ", ".join(names)
    return f"{what}: {listed}." if listed else f"There are no {what.lower()}."
