"""Pictures of the cockpit from a real run of the demo: SVG, and PNG where rsvg-convert is installed."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from app.exit_codes import ExitCode
from app.face import MakeEngine
from app.open_cockpit import in_the_background
from app.output import note
from fleet.errors import FleetError
from fleet.events import BringUp, TearDown
from fleet.model import DeploymentState, OperationState, Snapshot

if TYPE_CHECKING:
    from textual.pilot import Pilot

    from app.cockpit import CockpitApp

SIZES = ((120, 40), (80, 24))     # columns, rows
BRING_UP_TIMEOUT = 300.0          # seconds; the load itself takes 2 on two cores
SETTLE = 1.0                      # seconds for what a key press asked for to be read and painted
PNG_ZOOM = 1.0
FONT = "'Fira Code', 'DejaVu Sans Mono', Menlo, monospace"


@dataclass(frozen=True, slots=True)
class Scene:
    """One picture: its name, the keys that lead to it, the keys that lead back."""

    name: str
    keys: tuple[str, ...] = ()
    back: tuple[str, ...] = ()


SCENES = (
    Scene("fleet"),
    Scene("node", ("enter",), ("escape",)),
    Scene("plan", ("d",), ("escape",)),
    Scene("logs", ("tab", "l"), ("escape", "shift+tab")),
    Scene("events", ("e",), ("escape",)),
    Scene("help", ("question_mark",), ("escape",)),
    Scene("split", ("2",), ("1",)),
    Scene("models", ("3",), ("1",)),
)


def take_screenshots(make_engine: MakeEngine, model: str, folder: Path) -> int:
    """Bring the demo up, write every scene in every size into `folder`, take the demo down again."""
    folder.mkdir(parents=True, exist_ok=True)
    asyncio.run(_take(make_engine, model, folder))
    return ExitCode.OK


async def _take(make_engine: MakeEngine, model: str, folder: Path) -> None:
    for number, (columns, rows) in enumerate(SIZES):
        last = number == len(SIZES) - 1
        await _one_size(make_engine, model, folder, (columns, rows), first=number == 0, last=last)


async def _one_size(make_engine: MakeEngine, model: str, folder: Path, size: tuple[int, int], *, first: bool,
                    last: bool) -> None:
    from app.cockpit import CockpitApp

    app = CockpitApp(in_the_background(make_engine))
    async with app.run_test(size=size) as pilot:
        await _until(app, lambda s: any(node.reading for node in s.nodes.values()))
        assert app.engine is not None
        if first:
            app.engine.submit(BringUp(model))
            await _until(app, lambda s: any(o.state is OperationState.RUNNING and any(
                step.progress for step in o.steps) for o in s.operations), or_serving=True)
            save(app, folder, f"bring-up-{size[0]}x{size[1]}")
        await _until(app, lambda s: s.deployment.state is DeploymentState.SERVING)
        await pilot.pause(SETTLE * 10 if first else SETTLE * 3)  # the list of steps goes away, figures come in
        for scene in SCENES:
            await _press(pilot, scene.keys)
            save(app, folder, f"{scene.name}-{size[0]}x{size[1]}")
            await _press(pilot, scene.back)
        if last:
            number = app.engine.submit(TearDown())
            await _until(app, lambda s: any(o.id == number and o.ended for o in s.operations))


async def _press(pilot: Pilot[int], keys: tuple[str, ...]) -> None:
    for key in keys:
        await pilot.press(key)
        await pilot.pause(SETTLE)


async def _until(app: CockpitApp, true: Callable[[Snapshot], bool], *, or_serving: bool = False) -> None:
    async with asyncio.timeout(BRING_UP_TIMEOUT):
        while app.snapshot is None or app.engine is None or not true(app.snapshot):
            if app.failure is not None:
                raise app.failure
            if app.snapshot is not None:
                bad = next((o for o in app.snapshot.operations if o.problem), None)
                if bad is not None and bad.problem is not None:
                    raise FleetError(bad.problem.what, bad.problem.remedy)
                if or_serving and app.snapshot.deployment.state is DeploymentState.SERVING:
                    return
            await asyncio.sleep(0.05)


def save(app: CockpitApp, folder: Path, name: str) -> None:
    """Write what the screen shows as NAME.svg, and as NAME.png where there is rsvg-convert."""
    path = folder / f"{name}.svg"
    path.write_text(portable(app.export_screenshot(title="Quarterdeck")), encoding="utf-8")
    note(f"wrote {path}")
    if (convert := shutil.which("rsvg-convert")) is not None:
        subprocess.run([convert, "--zoom", str(PNG_ZOOM), "-o", str(path.with_suffix(".png")), str(path)], check=True,
                       timeout=60, stdin=subprocess.DEVNULL)


def portable(svg: str) -> str:
    """The picture for every viewer: no fonts from the web, and spaces kept by those that ignore CSS."""
    svg = re.sub(r"@font-face\s*\{[^}]*\}", "", svg)
    svg = svg.replace("<svg ", '<svg xml:space="preserve" ', 1)
    # A cell is 12.2 wide; rsvg takes no textLength, so DejaVu Sans Mono (0.602 em) has to fill it by itself.
    svg = svg.replace("font-size: 20px", "font-size: 20.266px")
    return re.sub(r"font-family:\s*Fira Code[^;]*;", f"font-family: {FONT};", svg)
