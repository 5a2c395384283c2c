"""How long until a whole fleet is on the screen: 30 machines signed in on, fully probed, in the Snapshot.

    python tests/bench/fleet_start.py [--quick] [--json] [--nodes N]

Wall time from the start of the process, against two other ways to reach the same machines, in turns with it so that
a busy moment hits all: OpenSSH's `ssh HOST true` for all at once, and bare asyncssh (connect, run `true`). The machines
share this one's processor with all three. The limit is 2 s; it is for 30 machines, and two cores for all of them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from hosts import Hosts, Load, hosts, machine

LIMIT = 2.0          # seconds
PYTHON = sys.executable
WATCHING = str(Path(__file__).with_name("watching.py"))
BARE = """import asyncio, sys, asyncssh
async def one(host, port):
    async with asyncssh.connect(host, int(port), username=USER, client_keys=[KEY], known_hosts=KNOWN, agent_path=None,
                                config=None) as connection:
        await connection.run("true", check=True)
async def all():
    await asyncio.gather(*(one(*place.rsplit(":", 1)) for place in sys.argv[4:]))
USER, KEY, KNOWN = sys.argv[1:4]
asyncio.run(all())"""


def ours(made: Hosts, config: Path) -> dict:
    """One start of the engine: seconds, its own CPU seconds, those on the machines."""
    with Load() as load:
        nodes = made.processor()
        begun = time.monotonic()
        done = subprocess.run([PYTHON, WATCHING, str(config), "0"], capture_output=True, text=True, timeout=30,
                              check=False)
        nodes = made.processor() - nodes
    if done.returncode:
        sys.exit(f"the fleet did not come up: {done.stderr[-500:] or done.stdout}")
    said = json.loads(done.stdout.splitlines()[0])
    return {"seconds": said["up_at"] - begun, "cpu": said["cpu"], "cpu_imports": said["cpu_imports"],
            "cpu_programs": said["cpu_programs"], "cpu_nodes": nodes, "probe_cpu": said["probe_cpu"],
            "foreign": load.foreign(said["cpu"] + said["cpu_programs"] + nodes)}


def openssh(made: Hosts) -> float:
    """Seconds of `ssh HOST true` on all at once."""
    begun = time.monotonic()
    options = ["-F", "none", "-i", made.key, "-o", f"UserKnownHostsFile={made.known_hosts}", "-o", "BatchMode=yes",
               "-o", "IdentityAgent=none"]
    running = [subprocess.Popen(["ssh", *options, "-p", str(host.port), f"{made.user}@{host.address}", "true"])
               for host in made.each]
    if sum(process.wait() != 0 for process in running):
        sys.exit("ssh did not get in everywhere")
    return time.monotonic() - begun


def asyncssh(made: Hosts) -> float:
    """Seconds of bare asyncssh on all at once, the start of Python with it."""
    begun = time.monotonic()
    subprocess.run([PYTHON, "-c", BARE, made.user, made.key, made.known_hosts,
                    *(f"{host.address}:{host.port}" for host in made.each)], check=True, timeout=120)
    return time.monotonic() - begun


def main() -> int:
    """Measure, print, and end with 1 when the limit is passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="3 rounds instead of 9")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--nodes", type=int, default=30)
    options = parser.parse_args()
    rounds = []
    with hosts(options.nodes) as made:
        config = made.fleet_yaml(refresh=2.0)
        ours(made, config), openssh(made), asyncssh(made)      # once for the page cache
        for _ in range(3 if options.quick else 9):
            rounds.append({**ours(made, config), "openssh": openssh(made), "asyncssh": asyncssh(made)})
        kind = made.kind
    middle = {name: round(statistics.median(row[name] for row in rounds), 3) for name in rounds[0]}
    ratios = {name: round(statistics.median(row["seconds"] / row[name] for row in rounds), 2)
              for name in ("openssh", "asyncssh")}
    limited = options.nodes == 30
    if options.json:
        print(json.dumps({"machine": machine(), "kind": kind, "nodes": options.nodes, "rounds": len(rounds),
                          "median": middle, "best": round(min(row["seconds"] for row in rounds), 3), "ratios": ratios,
                          "limit": LIMIT if limited else None}))
    else:
        print(f"{options.nodes} {kind} machines up and read: {middle['seconds']} s (limit {LIMIT}); "
              f"{ratios['openssh']} x ssh in parallel ({middle['openssh']} s), "
              f"{ratios['asyncssh']} x bare asyncssh ({middle['asyncssh']} s)")
        print(f"processor: {middle['cpu']} s here ({middle['cpu_imports']} s of it imports), "
              f"{middle['cpu_programs']} s to probe this machine, {middle['cpu_nodes']} s on the others "
              f"(a full probe {middle['probe_cpu']} s); "
              f"strangers used {middle['foreign']:.0%}")
        print(machine())
    return int(limited and middle["seconds"] > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
