"""What it costs to know a model of 40 GB: its header, here and over SSH, against the gguf package's reader.

    python tests/bench/gguf_header.py [--quick] [--json]

The file is a hole behind a real-sized header: 262 144 tokens, 250 000 merges, 963 tensors. Medians of wall times;
bytes as the file's owner gave them out. Limits: 100 ms of processor and 50 MB of memory here, 1 s and 32 MB moved over
SSH.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))

from hosts import Hosts, hosts
from made_gguf import Maker, large

from fleet.model import Address
from fleet.models.gguf import read_header
from fleet.models.reader import Headers
from fleet.nodes.questions import nobody
from fleet.nodes.ssh import SshTarget, SshTransport

MB = 1e6
LIMITS = {"here_cpu_ms": 100.0, "here_memory_mb": 50.0, "ssh_ms": 1000.0, "ssh_mb": 32.0}
# Linux: the peak of this very program; ru_maxrss begins with that of whoever started it.
IN_A_PROCESS = """import re, resource, sys, time
def peak():
    if sys.platform == "linux":
        return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before, begun = peak(), time.perf_counter()
{work}
print((time.perf_counter() - begun) * 1000, peak() - before)"""
OURS = "from fleet.models.local import header_of_file; header_of_file(sys.argv[1])"
THEIRS = "from gguf import GGUFReader; GGUFReader(sys.argv[1])"
PUT = 'file=$(mktemp) && cat >"$file" && truncate -s "$1" "$file" && printf "%s" "$file"'


class Counted(SshTransport):
    """Counts the bytes of files that it is given."""

    moved = 0

    async def read_file(self, path: str, offset: int, length: int, *, timeout: float = 10.0) -> bytes:
        data = await super().read_file(path, offset, length, timeout=timeout)
        self.moved += len(data)
        return data


def fresh(work: str, path: Path) -> tuple[float, float]:
    """Milliseconds and MB that some work takes in a process of its own, its imports among them."""
    done = subprocess.run([sys.executable, "-c", IN_A_PROCESS.format(work=work), str(path)], capture_output=True,
                          text=True, timeout=300, check=True)
    milliseconds, memory = map(float, done.stdout.split())
    return milliseconds, memory / MB


def here(path: Path) -> float:
    """Milliseconds of processor to read a header in a process that has everything imported: nothing is waited for."""
    with path.open("rb") as file:
        async def read(offset: int, length: int) -> bytes:
            return os.pread(file.fileno(), length, offset)

        begun = time.process_time()
        asyncio.run(read_header(read, path.stat().st_size))
        return (time.process_time() - begun) * 1000


async def over_ssh(made: Hosts, model: Maker, rounds: int) -> list[tuple[float, float]]:
    """Milliseconds and MB of reading it through a connection that stands, nothing remembered."""
    host = made.each[0]
    target = SshTarget(name=host.name, addresses=(Address(host.address, host.port),), user=made.user,
                       identity_files=(made.key,), agent=False, known_hosts=made.known_hosts, connect_timeout=5.0)
    transport, results = Counted(target, ask=nobody, accept_new=False), []
    await transport.connect()
    try:
        put = await transport.run(PUT, (str(path_size(model)),), stdin=model.head(), timeout=60.0)
        path = put.text.strip()
        for _ in range(rounds):
            transport.moved, begun = 0, time.perf_counter()
            await Headers().model_of(transport, path)
            results.append(((time.perf_counter() - begun) * 1000, transport.moved / MB))
        await transport.run('rm -- "$1"', (path,))
    finally:
        await transport.close()
    return results


def main() -> int:
    """Measure, print, and end with 1 when a limit is passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="5 rounds instead of 15")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rounds = 5 if options.quick else 15
    with tempfile.TemporaryDirectory() as folder:
        model = large()
        path = model.write(Path(folder, "large.gguf"))
        here(path)
        pairs = [(here(path), fresh(OURS, path)) for _ in range(rounds)]
        theirs = [fresh(THEIRS, path) for _ in range(2 if options.quick else 5)]
        with hosts(1) as made:
            remote, kind = asyncio.run(over_ssh(made, model, rounds)), made.kind
    median = statistics.median
    results = {
        "file_gb": round(path_size(model) / 1e9, 1), "header_mb": round(len(model.head()) / MB, 2), "machines": kind,
        "here_cpu_ms": round(median(warm for warm, _ in pairs), 1),
        "fresh_ms": round(median(f[0] for _, f in pairs), 1),
        "here_memory_mb": round(median(f[1] for _, f in pairs), 1),
        "package_ms": round(median(t[0] for t in theirs), 1),
        "package_memory_mb": round(median(t[1] for t in theirs), 1),
        "ssh_ms": round(median(r[0] for r in remote), 1), "ssh_mb": round(max(r[1] for r in remote), 2)}
    passed = {name: limit for name, limit in LIMITS.items() if results[name] > limit}
    if options.json:
        print(json.dumps({"rounds": rounds, "results": results, "limits": LIMITS}))
    else:
        for name, value in results.items():
            print(f"{name}: {value}" + (f" (limit {LIMITS[name]:g})" if name in LIMITS else ""))
    return int(bool(passed))


def path_size(model: Maker) -> int:
    """Bytes of the file, hole and all."""
    return len(model.head()) + model.data


if __name__ == "__main__":
    sys.exit(main())
