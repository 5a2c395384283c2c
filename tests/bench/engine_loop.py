"""What the engine itself costs, with machines that answer at once: no SSH, no wire, all else as it is.

    python tests/bench/engine_loop.py [--quick] [--json]

Every machine gives the answer that a real probe of this one gave, with a worker of ours in it. Fleets of 10, 30 and
100 tell whether the cost of an event grows with the fleet: it may, but a poll at 100 must stay below three times one
at 10 (a cost that grew in proportion would be ten times). The lateness of the event loop is that of 30 machines read
every 2 s; limits are 10 ms (p99) there, and 2.5 ms of processor a poll.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from hosts import machine
from watching import Timed, lag_of, lateness

import fleet.engine
from fleet.config.schema import DiscoveryConfig, FleetConfig, NodeConfig
from fleet.model import NodeState
from fleet.nodes import probe
from fleet.nodes.local import LocalTransport
from fleet.nodes.transport import Completed
from fleet.nodes.watcher import Opened

GROWTH_LIMIT, LAG_LIMIT, POLL_LIMIT = 3.0, 0.010, 0.0025
SIZES = (10, 30, 100)
TOKEN = "0123456789abcdef"
WORKER = {"pid": 4242, "start_time": "boot:1", "argv": ["/opt/llama/ggml-rpc-server", "-H", "10.0.0.2", "-p", "50052"],
          "port": 50052, "kind": "worker", "bind": "10.0.0.2", "build": "b10068", "fleet": "bench",
          "started_epoch": 1.7e9}
SERVICE = "service worker-50052\nlog 1234\npid|{}\nstate alive\nqd-services-end"


class Answers:
    """What a probe of this machine answered, quick and full, to be given for any machine."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.machine_id = ""

    async def learn(self) -> None:
        """Probe this machine."""
        transport, settings, previous = LocalTransport("here"), probe.ProbeSettings(ports=(50052, 8080)), None
        for depth, script in (("full", probe.FULL_SCRIPT), ("quick", probe.QUICK_SCRIPT)):
            given = probe.arguments(settings, previous, full=depth == "full", token=TOKEN)
            done = await transport.run(script, given, timeout=30.0)
            previous = probe.read_output(done.text, previous, settings, token=TOKEN)
            self.texts[depth] = done.text.replace("qd-services-end", SERVICE.format(json.dumps(WORKER)))
        self.machine_id = previous.machine_id

    def give(self, number: int, token: str, depth: str) -> bytes:
        """The answer of machine `number`."""
        text = self.texts[depth].replace(TOKEN, token)
        return (text.replace(self.machine_id, f"{number:032x}") if self.machine_id else text).encode()


class Instant:
    """A machine that answers at once."""

    is_local = False

    def __init__(self, name: str, answers: Answers) -> None:
        self.name = name
        self._number = int(name.rpartition("-")[2])
        self._answers = answers

    async def run(self, script: str, arguments: Sequence[str] = (), **_: object) -> Completed:
        """A probe's answer; nothing for other scripts."""
        await asyncio.sleep(0)
        given = self._answers.give(self._number, arguments[0], arguments[1]) if len(arguments) > 1 else b""
        return Completed(0, given, b"", 0.001)

    async def close(self) -> None:
        """Nothing is held."""


async def watch(count: int, refresh: float, seconds: float, answers: Answers) -> dict:
    """A fleet of that size, watched for that long: costs in seconds."""
    config = FleetConfig(
        fleet="bench", refresh=refresh, discovery=DiscoveryConfig(mdns=False, ssh_config=False),
        nodes={name: NodeConfig(name, addresses=(f"10.9.{k // 250}.{k % 250 + 1}:22",))
               for k in range(count) if (name := f"node-{k}")})
    engine = Timed(config, discover=False, only_nodes=frozenset(config.nodes))
    engine.costs, engine.reads = [], []
    begun, used = time.perf_counter(), time.process_time()
    running = asyncio.ensure_future(engine.run())
    while sum(node.state is NodeState.UP for node in engine.latest.nodes.values()) < count:
        await engine.changed(engine.version)
    started, start_cpu = time.perf_counter() - begun, time.process_time() - used
    await asyncio.sleep(refresh * 2)
    gc.collect()
    engine.costs.clear()
    engine.reads.clear()
    used = time.process_time()
    await asyncio.sleep(seconds)
    used = time.process_time() - used
    polls, costs = len(engine.reads), list(engine.costs)
    samples: list[float] = []
    watching = asyncio.ensure_future(lateness(samples))
    await asyncio.sleep(seconds)
    watching.cancel()
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    return {"nodes": count, "start": started, "start_cpu_per_node": start_cpu / count, "poll": used / polls,
            "event": statistics.median(costs), "share": used / seconds, "lag": lag_of(samples)}


async def measure(seconds: float) -> tuple[list[dict], dict]:
    """Growth over sizes, then a fleet of 30 at its usual pace."""
    answers = Answers()
    await answers.learn()

    def opener(context: object, name: str, *_: object, **__: object):
        async def open_instant() -> Opened:
            return Opened(Instant(name, answers), None, f"SHA256:{name}")
        return open_instant

    fleet.engine.opener = opener
    # as many polls a second whatever the size, so that only the size differs
    await watch(10, 0.1, 0.5, answers)
    sizes = [await watch(count, count / 100, seconds, answers) for count in SIZES]
    return sizes, await watch(30, 2.0, seconds * 2, answers)


def main() -> int:
    """Measure, print, and end with 1 when a limit is passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="3 s for each fleet instead of 20")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    sizes, usual = asyncio.run(measure(3.0 if options.quick else 20.0))
    growth = sizes[-1]["poll"] / sizes[0]["poll"]
    passed = growth > GROWTH_LIMIT or usual["lag"]["p99"] > LAG_LIMIT or usual["poll"] > POLL_LIMIT
    if options.json:
        print(json.dumps({"machine": machine(), "sizes": sizes, "usual": usual, "growth": growth,
                          "limits": {"growth": GROWTH_LIMIT, "lag_p99": LAG_LIMIT, "poll": POLL_LIMIT}}))
        return int(passed)
    for row in sizes:
        print(f"{row['nodes']:>3} machines: a poll {row['poll'] * 1e6:.0f} us, an event with all that follows "
              f"{row['event'] * 1e6:.0f} us; start {row['start_cpu_per_node'] * 1e3:.2f} ms of processor each")
    lag = usual["lag"]
    print(f"a poll at {SIZES[-1]} costs {growth:.2f} x one at {SIZES[0]} (limit {GROWTH_LIMIT:g})")
    print(f"30 machines every 2 s: {usual['share']:.2%} of one core, the loop late by {lag['p50'] * 1e3:.2f} ms (p50), "
          f"{lag['p99'] * 1e3:.2f} ms (p99, limit {LAG_LIMIT * 1e3:g} ms), {lag['max'] * 1e3:.1f} ms (worst)")
    print(machine())
    return int(passed)


if __name__ == "__main__":
    sys.exit(main())
