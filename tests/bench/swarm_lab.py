"""Distributing one file to five lab nodes whose cables carry a set rate: what the source sends, and how long it takes.

Part of `swarm.py`, and a command of its own (root): python tests/bench/swarm_lab.py [--quick] [--json]

    source_sent_ratio   bytes that the source sent, by the file's size                          (at most 1.2)
    finish_over_bound   time until all five have it, by max(F/u_source, F/d_min, 5F/sum of u)   (at most 1.3)

The time is that of the Step that spreads it: pulls are started, every byte is hashed, synced and in place. rsync, one
node after another from a daemon at the source, stands beside it where it is installed (not with --quick).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
from hosts import Hosts, hosts

from fleet.config.load import load
from fleet.engine import Engine
from fleet.events import Distribute
from fleet.model import Operation, OperationState

MIB = 1 << 20
TARGETS = 5
RATE = 50.0                       # Mbit/s of every cable, both ways
SENT_LIMIT, FINISH_LIMIT = 1.2, 1.3
FOLDER, NAME = "/home/fleet/models", "bench.gguf"
_WRITE = ("import os, sys\nwith open(sys.argv[1], 'wb') as file:\n"
          "    for _ in range(int(sys.argv[2])): file.write(os.urandom(1 << 20))\n")


def inside(node: str, *command: str, user: str = "fleet") -> subprocess.CompletedProcess:
    """Run a command in a lab node; one string is a shell line."""
    from fleetlab.lab import load as load_lab
    from fleetlab.node import enter

    (node_json,) = load_lab(node)[1]
    return subprocess.run(enter(node_json, list(command), user), capture_output=True, text=True, check=True,
                          timeout=600)


def shape(names: list[str], rate: float) -> None:
    """Every cable carries `rate` Mbit/s."""
    from fleetlab import lab

    for name in names:
        lab.link(lab.load(name)[1][0], rate_mbit=rate)


class Cpu:
    """CPU seconds of the swarm's processes, by node, as last seen alive."""

    def __init__(self, names: list[str]) -> None:
        self._names, self._seen = names, {}

    async def watch(self) -> None:
        """Look again and again until cancelled."""
        from fleetlab.netns import pids_in

        while True:
            for name in self._names:
                for pid in pids_in(name):
                    with suppress(psutil.Error):
                        process = psutil.Process(pid)
                        if any("quarterdeck-node" in word for word in process.cmdline()):
                            times = process.cpu_times()
                            self._seen[name, pid] = times.user + times.system
            await asyncio.sleep(0.5)

    def of(self, name: str) -> float:
        """Of one node."""
        return sum(seconds for (node, _), seconds in self._seen.items() if node == name)


async def distribute(made: Hosts, names: list[str], size: int) -> dict[str, float]:
    """One distribution by an engine of ours."""
    engine = Engine(load(made.fleet_yaml(1.0)), discover=False)
    running = asyncio.ensure_future(engine.run())
    cpu = Cpu(names)
    watching = asyncio.ensure_future(cpu.watch())
    try:
        await engine.settled(60)
        begun = time.monotonic()
        number = engine.submit(Distribute(f"{names[0]}:{FOLDER}/{NAME}", tuple(names[1:])))
        operation = await engine.outcome(number)
        whole = time.monotonic() - begun
        if operation.state is not OperationState.DONE:
            raise SystemExit(f"the distribution failed: {operation.problem}")
        swarm = engine.latest.swarms[-1]
    finally:
        for task in (watching, running):
            task.cancel()
        await asyncio.gather(watching, running, return_exceptions=True)
    gigabytes = size / 1e9
    return {"sent": swarm.sent_by_source, "finish_s": spread_seconds(operation), "distribute_s": whole,
            "source_cpu_s_per_gb": cpu.of(names[0]) / (swarm.sent_by_source / 1e9),
            "target_cpu_s_per_gb": sum(map(cpu.of, names[1:])) / len(names[1:]) / gigabytes}


def spread_seconds(operation: Operation) -> float:
    """How long the Step took that spreads the file."""
    step = next(step for step in operation.steps if step.title.startswith("Spread"))
    return (step.ended or 0.0) - (step.started or 0.0)


def rsync(names: list[str], addresses: dict[str, str]) -> float | None:
    """Seconds of rsync to one node after another; None without it."""
    if not shutil.which("rsync"):
        return None
    config = f"[models]\npath = {FOLDER}\nread only = yes\nuse chroot = no\n"
    inside(names[0], f"printf '{config}' >/tmp/rsyncd.conf; "
                     "rsync --daemon --port 8730 --config /tmp/rsyncd.conf --log-file=/tmp/rsyncd.log")
    begun = time.monotonic()
    for name in names[1:]:
        inside(name, f"rsync -W rsync://{addresses[names[0]]}:8730/models/{NAME} /tmp/rsync.gguf && rm /tmp/rsync.gguf")
    return time.monotonic() - begun


def measure(*, quick: bool) -> dict[str, float | None] | None:
    """All figures; None where there can be no lab."""
    mebibytes = 64 if quick else 256
    size = mebibytes * MIB
    with hosts(TARGETS + 1) as made:
        if made.kind != "lab":
            return None
        names = [host.name for host in made.each]
        addresses = {host.name: host.address for host in made.each}
        inside(names[0], f"mkdir -p {FOLDER}")
        inside(names[0], "python3", "-c", _WRITE, f"{FOLDER}/{NAME}", str(mebibytes))
        shape(names, RATE)
        figures = asyncio.run(distribute(made, names, size))
        hashes = {inside(name, f"sha256sum {FOLDER}/{NAME}").stdout.partition(" ")[0] for name in names}
        if len(hashes) != 1:
            raise SystemExit("the copies differ")
        beside = None if quick else rsync(names, addresses)
    rate = RATE * 1e6 / 8
    bound = max(size / rate, TARGETS * size / ((TARGETS + 1) * rate))
    return {
        "source_sent_ratio": round(figures["sent"] / size, 3),
        "finish_over_bound": round(figures["finish_s"] / bound, 3),
        "bound_s": round(bound, 2), "finish_s": round(figures["finish_s"], 2),
        "distribute_s": round(figures["distribute_s"], 2),
        "rsync_in_turns_s": None if beside is None else round(beside, 2),
        "source_cpu_s_per_gb": round(figures["source_cpu_s_per_gb"], 2),
        "target_cpu_s_per_gb": round(figures["target_cpu_s_per_gb"], 2),
        "lab_size_mib": mebibytes, "lab_rate_mbit": RATE,
    }


def is_good(figures: dict[str, float | None]) -> bool:
    """Whether the limits are held."""
    return figures["source_sent_ratio"] <= SENT_LIMIT and figures["finish_over_bound"] <= FINISH_LIMIT


def main() -> int:
    """The command; 1 when a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="64 MiB instead of 256, and nothing beside it")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures = measure(quick=options.quick)
    if figures is None:
        sys.exit("the lab needs Linux and root")
    print(json.dumps(figures) if options.json else "\n".join(f"{name:22} {value}" for name, value in figures.items()))
    return 0 if is_good(figures) else 1


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    sys.exit(main())
