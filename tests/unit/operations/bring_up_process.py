"""A process that brings a model up, says each step as it begins, and stands still in one of them.

    python bring_up_process.py STATE MODEL HEAD_PORT WORKER_PORT,... TITLE

At the first step whose title begins with TITLE it does the step ("after:TITLE") or not yet ("TITLE"), says "HERE" and
waits for its end.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fleet.config.schema import HeadConfig
from fleet.events import BringUp
from fleet.operations.plan import Runner
from operations.here import NODE, fleet_here, running


async def main(state: str, model: str, head: str, workers: str, title: str) -> None:
    config = fleet_here(Path(state), model, workers=len(workers.split(",")))
    node = config.nodes[NODE]
    ports = [int(port) for port in workers.split(",")]
    node = replace(node, head=HeadConfig(port=int(head), threads=1), workers=tuple(
        replace(worker, port=port) for worker, port in zip(node.workers, ports, strict=True)))
    config = replace(config, nodes={NODE: node})
    after = title.startswith("after:")
    wanted = title.removeprefix("after:")
    as_it_is = Runner._run_step

    async def run_step(self, index, step):
        stops = step.title.startswith(wanted)
        if not stops or after:
            await as_it_is(self, index, step)
        if stops:
            print("HERE", flush=True)
            await asyncio.Event().wait()

    if wanted:
        Runner._run_step = run_step
    async with running(config) as engine:
        operation = await engine.outcome(engine.submit(BringUp()))
        problem = operation.problem
        print(operation.state.value, problem.code if problem else "", problem.what if problem else "", flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
