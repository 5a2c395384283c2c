"""What the verbs that act have in common: plan or do, print the steps, give the exit code."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Awaitable, Callable

from app.as_json import SCHEMA, to_text
from app.engines import engine_maker
from app.face import EngineFace
from app.follow import ending, exit_code, follow, plan_lines, problem_lines
from app.output import put
from app.session import run_to_end, watching
from app.verbs.status import head_judged
from app.which_fleet import WhichFleet, which_fleet
from fleet.events import Command
from fleet.model import Operation, OperationState


def act(options: argparse.Namespace, command: Command) -> int:
    """Do `command` on the fleet that `options` are about, or print the plan with --dry-run."""
    which = which_fleet(options, demo_counts=True)
    return run_to_end(lambda: _act(options, which, command))


def act_on(options: argparse.Namespace, command: Callable[[EngineFace], Command], *,
           ready: Callable[[EngineFace], Awaitable[None]] | None = None) -> int:
    """As `act`, with a command that is made from what the fleet looks like; `ready` waits for more of it."""
    which = which_fleet(options, demo_counts=True)
    return run_to_end(lambda: _act(options, which, command, ready))


async def _act(options: argparse.Namespace, which: WhichFleet, command: Command | Callable[[EngineFace], Command],
               ready: Callable[[EngineFace], Awaitable[None]] | None = None) -> int:
    dry_run = getattr(options, "dry_run", False)
    async with watching(engine_maker(which, options, record=not dry_run, tend=not dry_run)) as engine:
        await head_judged(engine)   # a second `up` must see that it serves already, and not start it anew
        if ready is not None:
            await ready(engine)
        if callable(command):
            command = command(engine)
        operation = await (_planned if dry_run else _done)(engine, options, command)
    return exit_code(operation)


async def _planned(engine: EngineFace, options: argparse.Namespace, command: Command) -> Operation:
    operation = await engine.plan(command)
    if options.json:
        put(to_text({"schema": SCHEMA, "operation": operation}))
    elif operation.state is OperationState.REFUSED:
        _say_why(operation)
    else:
        put("\n".join(plan_lines(operation)))
    return operation


async def _done(engine: EngineFace, options: argparse.Namespace, command: Command) -> Operation:
    def say(line: str) -> None:
        if options.json:
            print(line, file=sys.stderr, flush=True)
        else:
            put(line)

    operation = await follow(engine, engine.submit(command), say, sys.stderr if options.json else sys.stdout)
    if options.json:
        put(to_text({"schema": SCHEMA, "operation": operation}))
    if operation.state is not OperationState.DONE:
        _say_why(operation)
    elif not options.json:
        put(ending(operation))
    return operation


def _say_why(operation: Operation) -> None:
    lines = [ending(operation), *problem_lines(operation)]
    print(f"quarterdeck: {lines[0]}", *lines[1:], sep="\n", file=sys.stderr, flush=True)
