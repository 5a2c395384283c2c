"""A process with an engine that brings one model up, swaps to another, and stands still in a step of the swap.

    python swap_process.py CONFIG.json TITLE

CONFIG.json: {state, model, other, head, workers, listen, journal}. At the first step of the swap whose title begins
with TITLE it says "HERE" and waits for its end.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fleet.config.schema import FleetConfig, HeadConfig, ProxyConfig, RecoverPolicy
from fleet.events import BringUp, StartProxy
from fleet.operations.journal import Journal
from fleet.operations.plan import Runner
from operations.here import MODEL, NODE, bring_up, do, fleet_here, running, until, with_model


def config_of(said: dict) -> FleetConfig:
    """The same fleet in every process of a test."""
    config = fleet_here(Path(said["state"]), said["model"], workers=len(said["workers"]))
    node = config.nodes[NODE]
    workers = tuple(replace(worker, port=port) for worker, port in zip(node.workers, said["workers"], strict=True))
    node = replace(node, head=HeadConfig(port=said["head"], threads=1), workers=workers)
    config = with_model(replace(config, nodes={NODE: node}), "other", file=said["other"])
    return replace(config, proxy=ProxyConfig(listen=said["listen"]), recover=RecoverPolicy.AUTO)


async def main(said: dict, title: str) -> None:
    config = config_of(said)
    async with running(config, tend=True, journal=Journal(Path(said["journal"]), config.fleet)) as engine:
        assert (await do(engine, StartProxy())).state == "done"
        await bring_up(engine, MODEL)
        await until(engine, lambda s: s.proxies and any(up.health == "ready" for up in s.proxies[0].upstreams))
        as_it_is = Runner._run_step

        async def run_step(self, index, step):
            if step.title.startswith(title):
                print("HERE", flush=True)
                await asyncio.Event().wait()
            await as_it_is(self, index, step)

        Runner._run_step = run_step
        await do(engine, BringUp("other"))


if __name__ == "__main__":
    asyncio.run(main(json.loads(Path(sys.argv[1]).read_text()), sys.argv[2]))
