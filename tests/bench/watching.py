"""The engine in a process of its own, as a face runs it, telling what it costs: a line of JSON for each fact.

    python watching.py FLEET_YAML SECONDS
    python watching.py FLEET_YAML 0 --profile PATH

The first line comes when every node is up and read, with the moment on the machine's monotonic clock (what started
this process knows when that was). The second one marks the begin of SECONDS of quiet watching, the last one tells of
them, and of the lateness of the event loop in half as many more.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import resource
import statistics
import sys
import time
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from fleet.config.load import load
from fleet.engine import Engine
from fleet.events import Event, NodeRead
from fleet.model import NodeState

STEP = 0.005     # seconds between two looks at how late the event loop is


class Timed(Engine):
    """An engine that notes what each event costs."""

    costs: list[float]
    reads: list[float]     # CPU seconds on the node, 0 where it did not say

    def emit(self, event: Event) -> None:
        """Take an event in, with all that follows from it."""
        begun = time.perf_counter()
        super().emit(event)
        self.costs.append(time.perf_counter() - begun)
        if isinstance(event, NodeRead):
            self.reads.append(event.reading.cost or 0.0)


async def lateness(samples: list[float]) -> None:
    """How late the loop comes back to one who sleeps."""
    while True:
        due = time.perf_counter() + STEP
        await asyncio.sleep(STEP)
        samples.append(time.perf_counter() - due)


def lag_of(samples: list[float]) -> dict[str, float]:
    """Seconds of lateness, in the middle, at the 99th of a hundred, and at worst."""
    ordered = sorted(samples)
    return {"p50": statistics.median(ordered), "p99": ordered[len(ordered) * 99 // 100], "max": ordered[-1]}


async def watch(path: Path, seconds: float) -> None:
    """Watch the fleet until all is up, say so, go on for that long, say more."""
    imported = time.process_time()
    config = load(path)
    engine = Timed(config, config_path=path, discover=False)
    engine.costs, engine.reads = [], []
    running = asyncio.ensure_future(engine.run())
    version = 0
    while True:
        nodes = engine.latest.nodes
        if config.nodes.keys() <= nodes.keys() and all(
                node.state is NodeState.UP and node.reading for node in nodes.values()):
            break
        if failed := [node for node in nodes.values() if node.problem]:
            raise SystemExit(f"{failed[0].name} is {failed[0].state.value}: {failed[0].problem.what}")
        version = await engine.changed(version)
    print(json.dumps({"up_at": time.monotonic(), "cpu": time.process_time(), "cpu_imports": imported,
                      "cpu_programs": sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]),
                      "probe_cpu": statistics.median(engine.reads)}), flush=True)
    if seconds:
        await asyncio.sleep(3.0)      # the tail of the start is not the idle state
        gc.collect()
        engine.costs.clear()
        engine.reads.clear()
        begun, used = time.monotonic(), time.process_time()
        print(json.dumps({"begin": begun}), flush=True)
        await asyncio.sleep(seconds)
        said = {"end": time.monotonic(), "wall": time.monotonic() - begun, "cpu": time.process_time() - used,
                "polls": len(engine.reads), "events": len(engine.costs), "event_cost": statistics.median(engine.costs)}
        samples: list[float] = []         # looked at apart: the looking costs more than the engine
        watching = asyncio.ensure_future(lateness(samples))
        await asyncio.sleep(seconds / 2)
        watching.cancel()
        said["lag"] = lag_of(samples)
        said["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        print(json.dumps(said), flush=True)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


def main() -> None:
    """Watch, with a profile where one is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--profile", type=Path, help="write a cProfile here")
    options = parser.parse_args()
    if options.profile:
        import cProfile

        with cProfile.Profile() as profile:
            asyncio.run(watch(options.config, options.seconds))
        profile.dump_stats(options.profile)
    else:
        asyncio.run(watch(options.config, options.seconds))


if __name__ == "__main__":
    main()
