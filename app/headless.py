"""`quarterdeck --no-ui`: the engine without a cockpit. Prints what happens, and keeps a model up if told to."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from app.as_json import SCHEMA, plain, to_line, to_text
from app.changes import changes
from app.engines import engine_maker, inside_folder
from app.exit_codes import ExitCode
from app.face import EngineFace, MakeEngine
from app.follow import exit_code
from app.keep_up import ALIVE, Wish, after_failed_try, decide, under_way
from app.output import note, put
from app.session import run_to_end, watching
from app.verbs.nodes import node_lines
from app.verbs.status import head_judged, status_lines
from app.which_fleet import which_fleet
from fleet.errors import PortTaken
from fleet.events import BringUp
from fleet.model import Operation, OperationState, Snapshot
from fleet.text import visible

JUDGING = 10.0   # seconds that a deployment may take to be seen serving after its bring-up was done


@dataclass(frozen=True, slots=True)
class Headless:
    """What a headless run is to do."""

    json: bool = False
    up: str | None = None                                   # model to keep up; "" = the fleet's own; None = none
    until_up: bool = False                                  # end when it serves
    on_serving: Callable[[Snapshot], None] | None = None    # told once each time it starts to serve
    leave_when_down: bool = False                           # end when somebody took it down
    announce: bool = False


def run(options: argparse.Namespace) -> int:
    """Run until SIGTERM or SIGINT, or print one snapshot with --once."""
    which = which_fleet(options)
    if options.once and options.up is None:
        return run_to_end(lambda: _once(engine_maker(which, options), json=options.json))
    work = Headless(json=options.json, up=options.up, until_up=options.once,
                    announce=which.config.discovery.announce and which.config.discovery.mdns)
    return run_headless(engine_maker(which, options, discover=True, record=True,
                                     tend=not options.read_only,
                                     recover=options.up is None and not options.read_only), work)


def run_headless(make_engine: MakeEngine, work: Headless) -> int:
    """Run the engine without a cockpit; being told to end is its ordinary end, unless a bring-up was undone."""
    undone: list[Operation] = []
    code = run_to_end(lambda: _run(make_engine, work, undone))
    return ExitCode.OK if code == ExitCode.INTERRUPTED and not work.until_up and not undone else code


async def _once(make_engine: MakeEngine, *, json: bool) -> int:
    async with watching(make_engine) as engine:
        await head_judged(engine)
        snapshot, now = engine.latest, engine.clock()
    if json:
        put(to_text(snapshot_json(snapshot, now)))
    else:
        put("\n".join([*node_lines(snapshot), "", *status_lines(snapshot, time.time())]))
    return ExitCode.OK


def snapshot_json(snapshot: Snapshot, now: float) -> dict[str, object]:
    """The whole Snapshot as data."""
    whole = plain(snapshot)
    assert isinstance(whole, dict)
    return {"schema": SCHEMA, "clock": now, **whole}


async def _run(make_engine: MakeEngine, work: Headless, undone: list[Operation]) -> int:
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(watching(make_engine, settle=None))
        if work.announce:
            from app.announcing import announced

            await stack.enter_async_context(announced(engine))
        await _serve_inside(engine, stack)
        printer = _Printer(work)
        async with asyncio.TaskGroup() as group:
            asyncio.get_running_loop().add_signal_handler(
                signal.SIGHUP, lambda: group.create_task(_reload(engine)))
            printing = group.create_task(printer.run(engine))
            try:
                code = ExitCode.OK if work.up is None else await _keep_up(engine, work, work.up, undone)
                if work.up is None:
                    await printing
            finally:
                printing.cancel()
                printer.show(engine.latest)
    return code


async def _serve_inside(engine: EngineFace, stack: AsyncExitStack) -> None:
    """Run the proxy that fleet.yaml wants in this process. One that serves at its address already is used instead."""
    config = engine.config
    if not config.proxy.enabled:
        return
    from fleet.proxies.hands import InsideHand
    from fleet.proxies.inside import proxy_inside

    folder = inside_folder()
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True, mode=0o700)
    try:
        proxy = await stack.enter_async_context(proxy_inside(config.proxy, os.environ, folder, config.fleet))
    except PortTaken as error:
        note(f"{error.what} If that is a proxy of this fleet, it goes on serving.")
        return
    engine.run_inside(InsideHand(proxy.proxy), proxy.url)
    note(f"the proxy serves at {proxy.url}")


class _Printer:
    """Prints what is new, in the order in which it happened."""

    def __init__(self, work: Headless) -> None:
        self._work = work
        self._seen = Snapshot()
        self._serving = False

    async def run(self, engine: EngineFace) -> None:
        """Print until cancelled."""
        while True:
            version = engine.version
            self.show(engine.latest)
            await engine.changed(version)

    def show(self, latest: Snapshot) -> None:
        """Print what is new in `latest`."""
        for change in changes(self._seen, latest):
            if self._work.json:
                put(to_line({"time": time.time(), "event": change.event, **change.data}))
            elif change.text:
                put(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {change.text}")
        self._seen = latest
        proven = latest.deployment.state in ALIVE and not under_way(latest)  # a bring-up still verifies after the load
        if proven is not self._serving and (proven or latest.deployment.state not in ALIVE):
            self._serving = proven
            if self._serving and self._work.on_serving is not None:
                self._work.on_serving(latest)


async def _keep_up(engine: EngineFace, work: Headless, model: str, undone: list[Operation]) -> int:
    """Bring the model up, and again whenever a part of it has died. A bring-up that is cut off goes to `undone`."""
    wish, wait = Wish(model), None
    await engine.settled(20.0)
    while True:
        version = engine.version
        decision = decide(wish, engine.latest, engine.clock())
        wish, wait = decision.wish, decision.wait
        if decision.say:
            note(decision.say)
        if decision.bring_up:
            operation = await _outcome(engine, engine.submit(BringUp(model, spare=True)), undone)
            if operation.state is OperationState.DONE:
                await _seen_alive(engine)
            else:
                wish = after_failed_try(wish)
                _say_why(operation)
            if work.until_up:
                return exit_code(operation)
            continue
        if work.until_up and engine.latest.deployment.state in ALIVE:
            return ExitCode.OK
        if wish.given_up and work.leave_when_down:
            return ExitCode.OK
        await _changed(engine, version, wait)


async def _outcome(engine: EngineFace, operation_id: int, undone: list[Operation]) -> Operation:
    """The operation when it is over. Told to end meanwhile: it is undone first."""
    try:
        return await engine.outcome(operation_id)
    except asyncio.CancelledError:
        note("told to end: undoing what was begun")
        engine.cancel(operation_id)
        operation = await engine.outcome(operation_id)
        if operation.state is OperationState.CANCELLED:
            undone.append(operation)
        raise


def _say_why(operation: Operation) -> None:
    if operation.problem is not None:
        note(f"{visible(operation.problem.what, keep=chr(10))} {visible(operation.problem.remedy)}".rstrip())


async def _seen_alive(engine: EngineFace) -> None:
    try:
        async with asyncio.timeout(JUDGING):
            while engine.latest.deployment.state not in ALIVE:
                await engine.changed(engine.version)
    except TimeoutError:
        return


async def _changed(engine: EngineFace, version: int, wait: float | None) -> None:
    try:
        async with asyncio.timeout(wait):
            await engine.changed(version)
    except TimeoutError:
        return


async def _reload(engine: EngineFace) -> None:
    """Read fleet.yaml again. Of a broken one the engine's notices tell, and the old one stays in force."""
    problems = await engine.reload()
    note("fleet.yaml is broken: the old one stays in force" if problems else "fleet.yaml read again")
