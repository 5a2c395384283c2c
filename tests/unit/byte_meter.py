"""Run in a pseudo terminal by test_terminal_bytes.py: the real driver, a fleet that changes frame by frame.

Writes what was written to the terminal, in bytes, as JSON to the file named by its argument.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

from app.terminal import prepare_environment

os.environ.update(prepare_environment(os.environ).environment)

import example_fleets as fleets
from scripted_engine import ScriptedEngine

from app.cockpit import CockpitApp
from app.driver import MeteredDriver, backlog_of
from app.messages import SnapshotChanged
from fleet.model import Snapshot

FRAMES = 10


def busier(snapshot: Snapshot, frame: int, every: int = 1) -> Snapshot:
    """Every node was read again, and every `every`th uses half a GiB more."""
    nodes = {}
    for index, (name, node) in enumerate(snapshot.nodes.items()):
        reading = node.reading
        if reading is not None:
            node = replace(node, read_at=fleets.NOW + frame)
        if reading is not None and index % every == 0:
            devices = tuple(replace(device, memory_free=(device.memory_free or 0) - fleets.GIB // 2)
                            for device in reading.devices)
            node = replace(node, reading=replace(reading, devices=devices))
        nodes[name] = node
    return replace(snapshot, nodes=nodes)


class MeasuredApp(CockpitApp):
    """Feeds itself, so that a frame is a frame and no clock has a say."""

    def __init__(self, report: str) -> None:
        super().__init__(lambda: ScriptedEngine(fleets.thirty(), fleets.CONFIG), rate=0.001)
        self.report = report

    def on_snapshot_changed(self, event: SnapshotChanged) -> None:
        """The engine's first one begins the measuring; the bridge sends no second one at this rate."""
        first = self.snapshot is None
        event.prevent_default()                # the class below would be called once more
        CockpitApp.on_snapshot_changed(self, event)
        if first:
            self.run_worker(self.measure(), group="measure")

    async def settle(self) -> int:
        """Bytes written once nothing is left to write."""
        driver = self._driver
        assert isinstance(driver, MeteredDriver)
        before = -1
        while before != driver.bytes_out or backlog_of(driver):
            before = driver.bytes_out
            await asyncio.sleep(0.2)
        return driver.bytes_out

    async def measure(self) -> None:
        out: dict[str, object] = {"first": await self.settle()}
        start = await self.settle()
        for frame in range(FRAMES):
            self.post_message(SnapshotChanged(replace(self.snapshot), fleets.NOW + frame * 0.1))
            await self.settle()
        out["idle"] = await self.settle() - start
        for name, every in (("all", 1), ("one", 30)):
            snapshot, counts = fleets.thirty(), []
            self.post_message(SnapshotChanged(snapshot, fleets.NOW))
            for frame in range(FRAMES):
                start = await self.settle()
                snapshot = busier(snapshot, frame, every)
                self.post_message(SnapshotChanged(snapshot, fleets.NOW + frame))
                counts.append(await self.settle() - start)
            out[name] = counts
        start = await self.settle()
        await self.run_action("screen.filter")
        await self.settle()
        start = await self.settle()
        await asyncio.sleep(1.2)               # two blinks of a cursor that blinks
        out["filter open"] = await self.settle() - start
        Path(self.report).write_text(json.dumps(out), encoding="utf-8")  # noqa: ASYNC240 (the end)
        self.exit(0)


if __name__ == "__main__":
    MeasuredApp(sys.argv[1]).run(mouse=False)
