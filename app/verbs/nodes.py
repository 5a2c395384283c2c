"""`quarterdeck nodes`: the machines of the fleet and those found around it."""

from __future__ import annotations

import argparse

from app.as_json import SCHEMA, to_text
from app.checks import is_useless_stranger, stranger_checks
from app.engines import engine_maker
from app.exit_codes import ExitCode
from app.output import put, table
from app.present.units import UNKNOWN, size
from app.session import run_to_end, watching
from app.which_fleet import WhichFleet, which_fleet
from fleet.model import DeviceKind, Node, Snapshot
from fleet.runtimes.binaries import build_label
from fleet.text import visible

HEADERS = ("NODE", "STATE", "SYSTEM", "CORES", "MEMORY", "DEVICES", "LLAMA.CPP", "ADDRESS", "FOUND BY")


def run(options: argparse.Namespace) -> int:
    """Look around, read what can be read, print it."""
    which = which_fleet(options)
    return run_to_end(lambda: _nodes(options, which))


async def _nodes(options: argparse.Namespace, which: WhichFleet) -> int:
    async with watching(engine_maker(which, options, discover=True)) as engine:
        snapshot, now = engine.latest, engine.clock()
    if options.json:
        put(to_text({"schema": SCHEMA, "clock": now, "fleet": snapshot.fleet, "config": snapshot.config_path,
                     "discovery": snapshot.discovery, "nodes": list(snapshot.nodes.values())}))
        return ExitCode.OK
    put("\n".join(node_lines(snapshot)))
    return ExitCode.OK


def node_lines(snapshot: Snapshot) -> list[str]:
    """The table, and below it what is wrong with whom."""
    nodes = list(snapshot.nodes.values())
    lines = table(HEADERS, [node_row(node) for node in nodes], right=frozenset({3, 4}))
    problems = [(node.name, problem) for node in nodes if not is_useless_stranger(node)
                for problem in ((node.problem,) if node.problem else ()) + (
                    node.reading.problems if node.reading else ())]
    told = [(name, problem.what, problem.remedy) for name, problem in problems]
    told += [(check.area, check.what, check.remedy) for check in stranger_checks(snapshot)]
    told += [("looking around", problem.what, problem.remedy) for problem in snapshot.discovery]
    if told:
        lines.append("")
    for name, what, remedy in told:
        lines.append(f"{visible(name)}: {visible(what)}")
        if remedy:
            lines.append(f"  {visible(remedy)}")
    return lines


def node_row(node: Node) -> tuple[str, ...]:
    """One node as cells."""
    reading = node.reading
    where = node.address.host if node.address else next((a.host for a in node.addresses), "")
    if reading is None:
        return (node.name, node.state.value, "", "", "", "", "", where, ", ".join(node.sources))
    devices = ", ".join(f"{d.name} {size(d.memory_total)}" for d in reading.devices if d.kind is not DeviceKind.CPU)
    builds = sorted({f"{binary.program} {binary.version}" if binary.version else build_label(binary)
                     for binary in reading.binaries if binary.program in ("llama-server", "ggml-rpc-server", "vllm")})
    return (node.name, node.state.value, f"{reading.os} {reading.arch}", str(reading.cpu.threads or UNKNOWN),
            size(reading.memory.total), devices or "CPU", ", ".join(builds) or "none", where, ", ".join(node.sources))
