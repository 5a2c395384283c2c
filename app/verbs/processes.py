"""`quarterdeck processes`: every engine's process on every node, whose it is; adopt or end one that is not ours."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from app.as_json import SCHEMA, to_text
from app.engines import engine_maker
from app.exit_codes import ExitCode, NothingThere
from app.face import EngineFace
from app.output import put, table
from app.present.units import UNKNOWN, size
from app.session import run_to_end, watching
from app.verbs.acting import act_on
from app.which_fleet import WhichFleet, which_fleet
from fleet.events import AdoptProcess, Command, EndProcess
from fleet.model import ForeignProcess, Node, Process, Snapshot
from fleet.text import visible, without_secrets

HEADERS = ("NODE", "PID", "WHOSE", "WHAT", "PORT", "MEMORY", "USER", "COMMAND")
NOBODY = "nobody's"          # no pid file of ours speaks of it
SHOWN = 100                  # characters of a command


def run(options: argparse.Namespace) -> int:
    """List, or act on one by its pid; its start time is told along, so that a pid used anew is never meant."""
    if options.action == "list":
        which = which_fleet(options, demo_counts=True)
        return run_to_end(lambda: _list(options, which))
    kind: Callable[[str, int, str], Command] = AdoptProcess if options.action == "adopt" else EndProcess
    return act_on(options, lambda engine: kind(options.node, options.pid, _start_time(engine, options)))


def _start_time(engine: EngineFace, options: argparse.Namespace) -> str:
    node = engine.latest.nodes.get(options.node)
    if node is None:
        raise NothingThere(f"No node is called {options.node}.", "`quarterdeck nodes` lists them.")
    found = next((foreign for foreign in node.foreign if foreign.process.pid == options.pid), None)
    if found is None:
        ours = next((s for s in node.services if s.record.alive and s.record.pid == options.pid), None)
        if ours is not None:
            raise NothingThere(f"pid {options.pid} on {options.node} is our own {ours.record.id}.",
                               f"`quarterdeck stop {options.node} {ours.record.id}` ends it.")
        raise NothingThere(f"No engine's process on {options.node} has pid {options.pid}.",
                           "`quarterdeck processes list` shows them.")
    return found.process.start_time


async def _list(options: argparse.Namespace, which: WhichFleet) -> int:
    async with watching(engine_maker(which, options)) as engine:
        snapshot = engine.latest
    if options.json:
        put(to_text({"schema": SCHEMA, "fleet": snapshot.fleet, "processes": [
            {"node": name, "pid": pid, "service": service, "kind": kind, "port": port, "memory": rss, "user": user,
             "argv": argv, "start_time": start_time}
            for name, pid, service, kind, port, rss, user, argv, start_time in _found(snapshot)]}))
        return ExitCode.OK
    rows = [(name, str(pid), service or NOBODY, kind or UNKNOWN, str(port or UNKNOWN), size(rss) if rss else UNKNOWN,
             visible(user) or UNKNOWN, visible(" ".join(argv))[:SHOWN])
            for name, pid, service, kind, port, rss, user, argv, _ in _found(snapshot)]
    put("\n".join(table(HEADERS, rows, right=frozenset({1, 4, 5})) if rows else ["No engine runs on any node."]))
    return ExitCode.OK


Found = tuple[str, int, str, str, int, int, str, tuple[str, ...], str]


def _found(snapshot: Snapshot) -> list[Found]:
    """Node, pid, service ("" = not ours), kind, port, bytes, user, argv, start time."""
    return [each for node in snapshot.nodes.values() for each in (*_ours(node), *map(_foreign_of(node), node.foreign))]


def _ours(node: Node) -> list[Found]:
    processes = {process.pid: process for process in node.reading.processes} if node.reading else {}
    found = []
    for service in node.services:
        record = service.record
        if record.alive:
            unseen = Process(record.pid, "", "", record.argv)
            process = processes.get(record.pid, unseen)
            found.append((node.name, record.pid, record.id, str(record.kind), record.port, process.rss, process.user,
                          without_secrets(process.argv), process.start_time))
    return found


def _foreign_of(node: Node) -> Callable[[ForeignProcess], Found]:
    def one(foreign: ForeignProcess) -> Found:
        process = foreign.process
        return (node.name, process.pid, "", str(foreign.kind or ""), foreign.port or 0, process.rss, process.user,
                without_secrets(process.argv), process.start_time)
    return one
