"""Opens the cockpit; where there is no screen for it, runs without one and says so."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from importlib import import_module

from app.crash import record_crash
from app.exit_codes import ExitCode
from app.face import EngineFace, MakeEngine
from app.output import note
from app.session import SETTLE_TIMEOUT
from app.terminal import TerminalChoice, prepare_environment
from fleet.errors import FleetError


def run(options: argparse.Namespace) -> int:
    """The cockpit on the fleet of `options`, or the headless run where no cockpit can be."""
    if why := no_cockpit():
        from app import headless

        note(f"{why}: running without the cockpit, as with --no-ui")
        return headless.run(options)
    def maker() -> MakeEngine:
        from app.engines import engine_maker
        from app.which_fleet import which_fleet

        return engine_maker(which_fleet(options), options, discover=True, interactive=True, record=True,
                            tend=not options.read_only, recover=not options.read_only)

    return open_cockpit(maker, options)


def no_cockpit() -> str:
    """Why no cockpit can be shown here; "" when one can."""
    return _choice(None).reason


def open_cockpit(maker: Callable[[], MakeEngine], options: argparse.Namespace) -> int:
    """Show the cockpit until the person leaves it. Services on the nodes go on.

    `maker` is asked for the engine's maker once the first frame stands; a `FleetError` of it (fleet.yaml is
    broken) ends the cockpit and is raised.
    """
    choice = _choice(options.rate)
    os.environ.update(choice.environment)  # Textual reads it once, when it is imported
    from app.cockpit import CockpitApp

    async def make() -> EngineFace:
        try:
            make_engine = await asyncio.to_thread(maker)
        except FleetError as error:
            refused.append(error)
            app.exit(return_code=ExitCode.FAILED)
            raise
        return await in_the_background(make_engine)()

    refused: list[FleetError] = []
    app = CockpitApp(make, read_only=options.read_only, rate=choice.rate, ansi=choice.ansi, theme=choice.theme,
                     graphs=choice.graphs)
    app.run(mouse=choice.mouse)
    if refused:
        raise refused[0]
    if app.return_code and app.failure is not None:
        raise app.failure
    if app.return_code and app._exception is not None:  # Textual has shown it; this keeps it
        return record_crash(app._exception, "cockpit")
    return app.return_code or ExitCode.OK


def in_the_background(make_engine: MakeEngine) -> Callable[[], Awaitable[EngineFace]]:
    """The same maker for the cockpit: the engine's imports (0.4 s of processor) do not hold up the screen."""
    async def make() -> EngineFace:
        await asyncio.to_thread(import_module, "fleet.engine")
        return make_engine()

    return make


def bringing_up(make_engine: MakeEngine, model: str) -> MakeEngine:
    """A maker of engines that bring `model` up once they have read their nodes."""
    return lambda: _BringsUp(make_engine(), model)


class _BringsUp:
    """An engine that has one thing to do when it starts."""

    def __init__(self, engine: EngineFace, model: str) -> None:
        self._engine = engine
        self._model = model

    def __getattr__(self, name: str) -> object:
        return getattr(self._engine, name)

    async def run(self) -> None:
        from fleet.events import BringUp

        async with asyncio.TaskGroup() as group:
            group.create_task(self._engine.run())
            await self._engine.settled(SETTLE_TIMEOUT)
            self._engine.submit(BringUp(self._model))


def _choice(rate: float | None) -> TerminalChoice:
    return prepare_environment(os.environ, stdin_tty=sys.stdin.isatty(), stdout_tty=sys.stdout.isatty(), rate=rate)
