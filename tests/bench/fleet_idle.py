"""What it costs to watch a fleet in which nothing happens: 30 machines, each read every 2 s.

    python tests/bench/fleet_idle.py [--quick] [--json] [--nodes N]

The share of one core that the engine's process uses, against bare asyncssh that runs `true` on as many open
connections as often; what each reading costs its machine; bytes on the wire; how late the event loop is. The limit is
10% of a core. A full probe comes once a minute: only the long run has some.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from hosts import Hosts, Load, hosts, machine

LIMIT = 0.10         # of one core
REFRESH = 2.0        # seconds
WATCHING = str(Path(__file__).with_name("watching.py"))
BARE = """import asyncio, sys, time, asyncssh
async def all():
    USER, KEY, KNOWN = sys.argv[1:4]
    opened = await asyncio.gather(*(asyncssh.connect(host, int(port), username=USER, client_keys=[KEY],
        known_hosts=KNOWN, agent_path=None, config=None)
        for host, _, port in (place.rpartition(":") for place in sys.argv[5:])))
    rounds, used = int(sys.argv[4]), time.process_time()
    for _ in range(rounds):
        await asyncio.gather(*(connection.run("true") for connection in opened))
        await asyncio.sleep(0.1)
    print((time.process_time() - used) / rounds)
asyncio.run(all())"""


def watch(made: Hosts, config: Path, seconds: float) -> dict:
    """The engine, watching: what it said, with what the machines and the wire saw of it."""
    child = subprocess.Popen([sys.executable, WATCHING, str(config), str(seconds)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    lines = iter(child.stdout.readline, "")
    up, begin = next(lines, ""), next(lines, "")
    if not begin:
        sys.exit("the fleet did not come up")
    try:
        with Load() as load:
            nodes, wire = made.processor(), made.wire_bytes()
            time.sleep(seconds)
            nodes, now = made.processor() - nodes, made.wire_bytes()
        said = json.loads(next(lines))
    finally:
        child.wait(timeout=60)
    polls = seconds / REFRESH * len(made.each)
    return {
        "share": said["cpu"] / said["wall"], "cpu_per_poll": said["cpu"] / said["polls"],
        "node_cpu_per_poll": nodes / polls, "full_probe_cpu": json.loads(up)["probe_cpu"],
        "wire_bytes_per_poll": None if now is None or wire is None else (now - wire) / polls,
        "event_cost": said["event_cost"], "lag": said["lag"], "memory": said["memory"],
        "foreign": load.foreign(said["cpu"] + nodes)}


def bare(made: Hosts, rounds: int) -> float:
    """CPU seconds of one `true` on every machine over connections that are open."""
    done = subprocess.run([sys.executable, "-c", BARE, made.user, made.key, made.known_hosts, str(rounds),
                           *(f"{host.address}:{host.port}" for host in made.each)],
                          capture_output=True, text=True, check=True, timeout=120)
    return float(done.stdout)


def main() -> int:
    """Measure, print, and end with 1 when the limit is passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="20 s instead of 120")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--nodes", type=int, default=30)
    options = parser.parse_args()
    seconds = 20.0 if options.quick else 120.0
    with hosts(options.nodes) as made:
        floor = bare(made, 10)
        row = watch(made, made.fleet_yaml(REFRESH), seconds)
        kind = made.kind
    row |= {"bare_share": floor / REFRESH, "ratio_to_bare": row["share"] * REFRESH / floor}
    limited = options.nodes == 30
    if options.json:
        print(json.dumps({"machine": machine(), "kind": kind, "nodes": options.nodes, "seconds": seconds,
                          "refresh": REFRESH, **row, "limit": LIMIT if limited else None}))
    else:
        wire, lag = row["wire_bytes_per_poll"], row["lag"]
        print(f"{options.nodes} {kind} machines every {REFRESH:g} s: {row['share']:.1%} of one core "
              f"(limit {LIMIT:.0%}), {row['ratio_to_bare']:.1f} x bare asyncssh ({row['bare_share']:.1%})")
        print(f"each reading: {row['cpu_per_poll'] * 1000:.2f} ms here, {row['node_cpu_per_poll'] * 1000:.1f} ms "
              f"on its machine with sshd (a full one {row['full_probe_cpu'] * 1000:.0f} ms without)"
              f"{'' if wire is None else f', {wire / 1000:.1f} kB on the wire'}; "
              f"an event {row['event_cost'] * 1e6:.0f} us")
        print(f"event loop late by {lag['p50'] * 1000:.2f} ms (p50), {lag['p99'] * 1000:.1f} ms (p99); "
              f"{row['memory'] / 1e6:.0f} MB; strangers used {row['foreign']:.0%} of {os.cpu_count()} cores")
        print(machine())
    return int(limited and row["share"] > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
