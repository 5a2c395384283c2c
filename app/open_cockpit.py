"""Opens the cockpit; where there is no screen for it, runs without one and says so."""

from __future__ import annotations

import argparse
import os
import sys

from app.exit_codes import ExitCode
from app.face import EngineFace, MakeEngine
from app.output import note
from app.terminal import prepare_environment
from app.which_fleet import which_fleet
from fleet.events import BringUp


def run(options: argparse.Namespace) -> int:
    """The cockpit on the fleet of `options`, or the headless run where no cockpit can be."""
    if why := no_cockpit():
        from app import headless

        note(f"{why}: running without the cockpit, as with --no-ui")
        return headless.run(options)
    from app.engines import engine_maker

    which = which_fleet(options)
    return open_cockpit(engine_maker(which, options, discover=True, interactive=True), options)


def no_cockpit() -> str:
    """Why no cockpit can be shown here; "" when one can."""
    return _choice(None).reason


def open_cockpit(make_engine: MakeEngine, options: argparse.Namespace) -> int:
    """Show the cockpit until the person leaves it. Services on the nodes go on."""
    choice = _choice(options.rate)
    os.environ.update(choice.environment)  # Textual reads it once, when it is imported
    from app.cockpit import CockpitApp

    app = CockpitApp(make_engine, read_only=options.read_only, rate=choice.rate)
    app.run(mouse=choice.mouse)
    return app.return_code or ExitCode.OK


def bringing_up(make_engine: MakeEngine, model: str) -> MakeEngine:
    """An engine maker whose engines bring `model` up once they have read their nodes."""
    def make() -> EngineFace:
        import asyncio

        engine = make_engine()
        watch = engine.run

        async def run() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(watch())
                await engine.settled(20.0)
                engine.submit(BringUp(model))

        engine.run = run  # type: ignore[method-assign]  # the same engine, with one thing to do at its start
        return engine

    return make


def _choice(rate: float | None):
    return prepare_environment(os.environ, stdin_tty=sys.stdin.isatty(), stdout_tty=sys.stdout.isatty(), rate=rate)
