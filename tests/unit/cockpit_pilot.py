"""Runs the cockpit on a scripted engine and reads its screen as text.

Goldens lie in tests/data/screens; QUARTERDECK_GOLDENS=write writes them anew (then read the diff).
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from example_fleets import CONFIG
from scripted_engine import ScriptedEngine
from textual.app import App
from textual.pilot import Pilot

from app.cockpit import CockpitApp
from fleet.model import Snapshot

WIDE, NARROW = (120, 40), (80, 24)
GOLDENS = Path(__file__).parent.parent / "data" / "screens"
LOG = ("build: 10068 (571d0d5)", "0.00.120.400 I srv    load_model: loading model", "0.03.646.170 W load: slow disk",
       "0.09.000.001 E ggml: something failed", "a [red]bracket[/red] and an \x1b[31mescape\x1b[0m")


@asynccontextmanager
async def cockpit(snapshot: Snapshot, size: tuple[int, int] = WIDE, *, log: tuple[str, ...] = LOG,
                  **options: object) -> AsyncIterator[tuple[ScriptedEngine, CockpitApp, Pilot[int]]]:
    """The cockpit with its first snapshot on the screen."""
    os.environ["TZ"] = "UTC"
    time.tzset()
    engine = ScriptedEngine(snapshot, CONFIG, log=log)
    app = CockpitApp(lambda: engine, rate=1000.0, **options)  # type: ignore[arg-type]
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: app.snapshot is not None)
        await pilot.pause()
        yield engine, app, pilot


async def until(pilot: Pilot[int], condition: Callable[[], bool]) -> None:
    """Let the app work until something is so; the test's own time limit is the only one."""
    while not condition():
        await pilot.pause()
    await pilot.pause()


async def show(pilot: Pilot[int], engine: ScriptedEngine, app: CockpitApp, snapshot: Snapshot) -> None:
    """Have the engine say something new and wait until it is on the screen."""
    engine.become(snapshot)
    await until(pilot, lambda: app.snapshot is snapshot)


def text_of(app: App[object]) -> str:
    """The screen, a line a row, without trailing spaces."""
    strips = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip).rstrip() for strip in strips) + "\n"


def told(app: App[object]) -> list[str]:
    """What the toasts say."""
    return [notice.message for notice in app._notifications]


def check_golden(app: App[object], name: str) -> None:
    """Compare the screen with the golden of that name."""
    path = GOLDENS / f"{name}.txt"
    shown = text_of(app)
    if os.environ.get("QUARTERDECK_GOLDENS") == "write":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(shown, encoding="utf-8")
    assert shown == path.read_text(encoding="utf-8"), f"{path.name} differs; QUARTERDECK_GOLDENS=write writes it anew"
