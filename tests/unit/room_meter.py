"""Run in a pseudo terminal by test_room_bytes.py: one screen of the cockpit after the other, each with much to do.

Writes what each frame cost, in bytes, as JSON to the file named by its argument.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import example_fleets as fleets
import example_proxies as proxies
import example_swarms as swarms
from byte_meter import MeasuredApp, busier
from scripted_engine import ScriptedEngine

from app.messages import SnapshotChanged
from fleet.model import Snapshot
from fleet.planning.described import described

FRAMES = 6


def fleet_frame(frame: int) -> Snapshot:
    """What the Split and the Models screen have to do with: memory, speed and what devices hold, all on the move."""
    snapshot = busier(fleets.normal(), frame)
    atlas = snapshot.nodes["atlas"]
    services = tuple(replace(service, tokens_per_second=17.0 + frame) for service in atlas.services)
    placement = snapshot.deployment.placement
    real = tuple(replace(share, model_bytes=(share.model_bytes or 0) + frame * fleets.GIB // 8,
                         kv_bytes=(share.kv_bytes or 0) + frame * fleets.GIB // 9) for share in placement.real)
    return replace(snapshot, nodes={**snapshot.nodes, "atlas": replace(atlas, services=services)},
                   deployment=replace(snapshot.deployment, placement=replace(placement, real=real)))


FEEDS: tuple[tuple[str, Callable[[int], Snapshot]], ...] = (
    ("split", fleet_frame), ("models", fleet_frame), ("proxy", proxies.crowded), ("swarm", swarms.crowd))


class RoomApp(MeasuredApp):
    """Goes from room to room."""

    async def measure(self) -> None:
        out: dict[str, object] = {}
        assert isinstance(self.engine, ScriptedEngine)
        self.engine.model_headers = {"/models/Qwen3-32B-Q4_K_M.gguf": described("""
nodes: {a: {ram: 8GiB}}
models: {big: {layers: 64, width: 5120, vocabulary: 152064, heads: 40, kv_heads: 8, size: 18.6GiB}}
""").headers["big"]}
        for room, feed in FEEDS:
            await self.frame(feed(0), 0)
            self.action_room(room)
            await self.settle()
            await self.frame(feed(0), 0)
            out[room] = [await self.frame(feed(frame), frame) for frame in range(1, FRAMES + 1)]
            start, shown = await self.settle(), feed(FRAMES)
            for _ in range(3):
                await self.frame(replace(shown), FRAMES)
            out[f"{room} idle"] = await self.settle() - start
        self.action_room("fleet")
        await self.settle()
        hidden = []
        for feed in (proxies.crowded, swarms.crowd):
            await self.frame(feed(0), 0)
            hidden += [await self.frame(feed(frame), 0) for frame in range(1, 4)]
        out["hidden"] = hidden
        Path(self.report).write_text(json.dumps(out), encoding="utf-8")  # noqa: ASYNC240 (the end)
        self.exit(0)

    async def frame(self, snapshot: Snapshot, frame: int) -> int:
        """Bytes that showing it takes."""
        start = await self.settle()
        self.post_message(SnapshotChanged(snapshot, fleets.NOW + frame * 0.5))
        return await self.settle() - start


if __name__ == "__main__":
    RoomApp(sys.argv[1]).run(mouse=False)
