"""A person at the cockpit of a lab fleet: keys in, the screen's text and the engine's state out."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import yaml
from fleets import MODEL, PATIENCE
from textual.pilot import Pilot

from app.cockpit import CockpitApp
from app.screens.confirm import ConfirmScreen
from app.screens.fleet import FleetScreen
from fleet.config.load import load
from fleet.engine import Engine
from fleet.model import Snapshot

WIDE, NARROW = (120, 40), (80, 24)
LOOK = 0.05          # seconds between two looks at the screen


def fleet_file(lab, path: Path, *names: str, head: str = "", workers: tuple[str, ...] | None = None) -> Path:
    """A fleet.yaml of these lab nodes, the demo's model on the head. Trusted keys go into a copy of its own."""
    known_hosts = path.with_name("known_hosts")
    if not known_hosts.exists():
        shutil.copy(lab.known_hosts, known_hosts)
    nodes = {}
    for name in names:
        node = lab.nodes[name]
        nodes[name] = {"address": node["addr"], "port": node["port"], "user": node["user"],
                       "workers": [{"threads": 1}], "head": {"threads": 1}}
        if not node["password"]:
            nodes[name]["identity_file"] = node["key"]
    # By memory: by time so small a model stays on its head, and no worker is started.
    model: dict[str, object] = {"file": lab.model(), "context": 2048, "head": head or names[0], "mode": "memory"}
    if workers is not None:
        model["workers"] = list(workers)
    path.write_text(yaml.safe_dump({
        "fleet": "lab", "refresh": 1, "nodes": nodes, "models": {MODEL: model}, "model": MODEL,
        "model_dirs": [lab.models_inside],
        "discovery": {"mdns": False, "ssh_config": False, "announce": False},
        "ssh": {"known_hosts": str(known_hosts), "agent": False, "user": "fleet", "identity_file": lab.key}}))
    return path


class Seat:
    """The chair in front of it."""

    def __init__(self, app: CockpitApp, engine: Engine, pilot: Pilot[int]) -> None:
        self.app, self.engine, self.pilot = app, engine, pilot

    @property
    def text(self) -> str:
        """The screen, a line a row."""
        strips = self.app.screen._compositor.render_strips()
        return "\n".join("".join(segment.text for segment in strip).rstrip() for strip in strips) + "\n"

    @property
    def told(self) -> list[str]:
        """What the toasts say."""
        return [notice.message for notice in self.app._notifications]

    async def press(self, *keys: str) -> None:
        """Type, and let the screen follow."""
        await self.pilot.press(*keys)

    async def until(self, holds: Callable[[], object]) -> None:
        """Wait until something is so on the screen."""
        try:
            async with asyncio.timeout(PATIENCE):
                while not holds():
                    await self.pilot.pause(LOOK)
        except TimeoutError:
            raise AssertionError(f"never came true; toasts {self.told}; the screen:\n{self.text}") from None

    async def sees(self, *words: str) -> None:
        """Wait until all of these stand on the screen, however they are wrapped."""
        await self.until(lambda: all(word in " ".join(self.text.split()) for word in words))

    async def knows(self, holds: Callable[[Snapshot], object]) -> Snapshot:
        """Wait until the picture that is shown makes something true."""
        await self.until(lambda: self.app.snapshot is not None and holds(self.app.snapshot))
        assert self.app.snapshot is not None
        return self.app.snapshot

    async def ask(self, key: str) -> str:
        """Press a key that asks before it acts; the dialog's text once it can be said yes to. Enter would cancel."""
        await self.press(key)
        await self.until(lambda: isinstance(self.app.screen, ConfirmScreen) and self.app.screen.ready)
        assert self.app.focused is not None and self.app.focused.id == "no"
        await self.pilot.pause()
        return " ".join(self.text.split())

    async def do(self, key: str) -> str:
        """Press it, say yes, and wait until what was begun is over."""
        before = max((o.id for o in self.engine.latest.operations), default=0)
        said = await self.ask(key)
        await self.press("y")
        await self.knows(lambda s: any(o.id > before and o.ended is not None for o in s.operations))
        return said

    async def to_panel(self, name: str) -> None:
        """Tab until that list has the keys."""
        for _ in range(3):
            if self.app.focused is not None and self.app.focused.id == name:
                return
            await self.press("tab")
        raise AssertionError(f"tab does not come to {name}")

    async def to_service(self, node: str, wanted: Callable[[FleetScreen], bool]) -> None:
        """Down the list of services to the one that is meant."""
        await self.to_panel("services")
        await self.press("home")
        screen = self.app.screen
        assert isinstance(screen, FleetScreen)
        for _ in range(20):
            if screen.selected is not None and screen.selected.node == node and wanted(screen):
                return
            await self.press("down")
        raise AssertionError(f"no such row on {node}:\n{self.text}")

    async def to_node(self, name: str) -> None:
        """Down the list of nodes."""
        await self.to_panel("nodes")
        await self.press("home")
        screen = self.app.screen
        assert isinstance(screen, FleetScreen)
        for _ in range(40):
            if screen.selected_node is not None and screen.selected_node.name == name:
                return
            await self.press("down")
        raise AssertionError(f"no such node: {name}\n{self.text}")


def ours(service: str) -> Callable[[FleetScreen], bool]:
    """The row of a service of ours."""
    return lambda screen: screen.selected.service is not None and screen.selected.service.record.id == service


def foreign_at(port: int) -> Callable[[FleetScreen], bool]:
    """The row of a process that is not ours."""
    return lambda screen: screen.selected.foreign is not None and screen.selected.foreign.port == port


@asynccontextmanager
async def seated(path: Path, size: tuple[int, int] = WIDE, *, read_only: bool = False) -> AsyncIterator[Seat]:
    """The cockpit on the real engine of a fleet.yaml."""
    engine = Engine(load(path), config_path=path, interactive=True, discover=False)
    app = CockpitApp(lambda: engine, read_only=read_only)
    async with app.run_test(size=size) as pilot:
        seat = Seat(app, engine, pilot)
        await seat.until(lambda: app.snapshot is not None)
        yield seat
