"""`quarterdeck swarm distribute MODEL --to NODE,NODE|all`: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys

from app.as_json import SCHEMA, to_text
from app.engines import engine_maker
from app.exit_codes import BadUsage
from app.face import EngineFace
from app.follow import ending, exit_code, plan_lines, problem_lines
from app.output import note, put
from app.session import run_to_end, watching
from app.swarm_bars import Bars
from app.which_fleet import WhichFleet, which_fleet
from fleet.events import Distribute
from fleet.model import Operation, OperationState, Swarm
from fleet.node import parse_rate


def run(options: argparse.Namespace) -> int:
    """Distribute it, or print the plan."""
    if options.read_only and not options.dry_run:
        raise BadUsage("--read-only and `swarm distribute` do not go together.", "Leave one of them out.")
    try:
        limit = parse_rate(options.limit) if options.limit else 0.0
    except ValueError:
        raise BadUsage(f"{options.limit!r} is no rate.", "Write it as 50M or 800k: bytes a second.") from None
    to = tuple(name.strip() for name in options.to.split(",") if name.strip())
    which = which_fleet(options)
    return run_to_end(lambda: _distribute(options, which, to, limit))


async def _distribute(options: argparse.Namespace, which: WhichFleet, to: tuple[str, ...], limit: float) -> int:
    async with watching(engine_maker(which, options, record=not options.dry_run)) as engine:
        command = Distribute(_model(engine, options.model), to, tuple(options.sha256), limit)
        if options.dry_run:
            operation = await engine.plan(command)
            if options.json:
                put(to_text({"schema": SCHEMA, "operation": operation}))
            elif operation.state is OperationState.REFUSED:
                _say_why(operation)
            else:
                put("\n".join(plan_lines(operation)))
            return exit_code(operation)
        operation = await _follow(engine, engine.submit(command), options.json)
        if options.json:
            put(to_text({"schema": SCHEMA, "operation": operation, "swarm": _swarm(engine, operation.id)}))
    if operation.state is not OperationState.DONE:
        _say_why(operation)
    elif not options.json:
        put(ending(operation))
    return exit_code(operation)


def _model(engine: EngineFace, model: str) -> str:
    """A file of this machine is meant before anything else that has this name."""
    here = next((node.name for node in engine.latest.nodes.values() if node.local), None)
    return f"{here}:{os.path.abspath(model)}" if here and os.path.isfile(model) else model


async def _follow(engine: EngineFace, number: int, json: bool) -> Operation:
    """Show it until it has ended. Interrupted: it is stopped, and what came is kept."""
    with Bars(sys.stderr if json else sys.stdout) as bars:
        try:
            return await _until_ended(engine, number, bars)
        except asyncio.CancelledError:
            note("interrupted: stopping the pulls; what came is kept")
            engine.cancel(number)
            await _until_ended(engine, number, bars)
            raise


async def _until_ended(engine: EngineFace, number: int, bars: Bars) -> Operation:
    while True:
        version = engine.version
        operation = next((o for o in engine.latest.operations if o.id == number), None)
        if operation is not None:
            bars.show(operation, _swarm(engine, number))
            if operation.state not in (OperationState.PLANNED, OperationState.RUNNING):
                return operation
        await engine.changed(version)


def _swarm(engine: EngineFace, number: int) -> Swarm | None:
    return next((swarm for swarm in engine.latest.swarms if swarm.operation == number), None)


def _say_why(operation: Operation) -> None:
    lines = [ending(operation), *problem_lines(operation)]
    print(f"quarterdeck: {lines[0]}", *lines[1:], sep="\n", file=sys.stderr, flush=True)
