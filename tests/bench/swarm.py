"""How fast a model moves: one seeder to one puller on loopback, against raw sockets and against Tightwad.

    python tests/bench/swarm.py [--quick] [--json] [--folder DIR] [--tightwad PYTHON]

Paired runs, medians of the ratios of each pair. The raw baseline moves the same file with the same
parallelism by sendfile, recv_into, SHA-256 and pwrite, and does nothing else: no heads, no sync, no
hash of the whole, no bitfield. Limits: at least 0.8 of raw, 5 times Tightwad (0.5.4, by a Python that
has it), 64 MB of memory, 0.9 of `sha256sum` for making a manifest. `swarm_lab.py` adds the distribution to five nodes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
MIB = 1 << 20
PIECE, PARALLEL = 64 * MIB, 4
RAW_LIMIT, TIGHTWAD_LIMIT, RSS_LIMIT, MANIFEST_LIMIT = 0.8, 5.0, 64.0, 0.9


@dataclass
class Run:
    """Seconds of wall, CPU seconds of puller and seeder, the puller's peak memory in MB (10^6 bytes)."""

    seconds: float
    puller_cpu: float
    seeder_cpu: float
    rss: float


def raw_serve(path: str) -> None:
    """The baseline's sender: an index of eight bytes comes in, the piece goes out."""
    handle, size = os.open(path, os.O_RDONLY), os.path.getsize(path)
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)

    def serve(guest: socket.socket) -> None:
        while True:
            wish = guest.recv(8, socket.MSG_WAITALL)
            if len(wish) < 8:
                return
            at = struct.unpack("!q", wish)[0] * PIECE
            end = min(size, at + PIECE)
            while at < end:
                at += os.sendfile(guest.fileno(), handle, at, end - at)

    while True:
        guest, _ = listener.accept()
        threading.Thread(target=serve, args=(guest,), daemon=True).start()


def raw_fetch(port: int, path: str, size: int) -> None:
    """The baseline's receiver."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    os.ftruncate(handle, size)
    left, lock = list(range(-(-size // PIECE))), threading.Lock()

    def fetch() -> None:
        line = socket.create_connection(("127.0.0.1", port))
        buffer = memoryview(bytearray(MIB))
        while True:
            with lock:
                if not left:
                    return
                index = left.pop(0)
            line.sendall(struct.pack("!q", index))
            at, end, hasher = index * PIECE, min(size, index * PIECE + PIECE), hashlib.sha256()
            while at < end:
                got = line.recv_into(buffer, min(MIB, end - at), socket.MSG_WAITALL)
                hasher.update(buffer[:got])
                at += os.pwrite(handle, buffer[:got], at)
            hasher.hexdigest()

    threads = [threading.Thread(target=fetch) for _ in range(PARALLEL)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def reap(process: subprocess.Popen) -> tuple[float, float]:
    """(CPU seconds, peak MB) of a process that ends or was told to."""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6


def measured(seeder: subprocess.Popen, puller: list[str], environ: dict[str, str]) -> Run:
    """Run the puller against a seeder that is up; both are gone afterwards."""
    begun = time.perf_counter()
    process = subprocess.Popen(puller, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=environ, cwd=ROOT)
    cpu, rss = reap(process)
    seconds = time.perf_counter() - begun
    if process.returncode != 0:
        raise SystemExit(f"{puller[:4]} ended with {process.returncode}")
    seeder.terminate()
    seeder_cpu, _ = reap(seeder)
    return Run(seconds, cpu, seeder_cpu, rss)


def same(one: Path, other: Path) -> None:
    """The copy is right, and gone."""
    subprocess.run(["cmp", one, other], check=True)
    other.unlink()


def raw(source: Path, folder: Path) -> Run:
    """One run of the baseline."""
    command = [sys.executable, "-I", str(Path(__file__).resolve())]
    seeder = subprocess.Popen([*command, "--raw-serve", str(source)], stdout=subprocess.PIPE, text=True)
    port = seeder.stdout.readline().strip()
    run = measured(seeder, [*command, "--raw-fetch", port, str(folder / "raw.bin"), str(source.stat().st_size)],
                   dict(os.environ))
    same(source, folder / "raw.bin")
    return run


def ours(source: Path, folder: Path) -> Run:
    """One run of Quarterdeck's, to a file that is verified, synced and in place."""
    command = [sys.executable, "-m", "fleet.node"]
    seeder = subprocess.Popen([*command, "seed", str(source), "--port", "0"], stdout=subprocess.PIPE, text=True,
                              stdin=subprocess.DEVNULL, cwd=ROOT)
    url = json.loads(seeder.stdout.readline())["url"]
    target = folder / "ours"
    target.mkdir()
    manifest = str(source) + ".quarterdeck.manifest"
    run = measured(seeder, [*command, "pull", str(target), "--manifest", manifest, "--peer", url], dict(os.environ))
    same(source, target / source.name)
    for rest in target.iterdir():
        rest.unlink()
    target.rmdir()
    return run


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def tightwad(source: Path, folder: Path, python: str) -> Run:
    """One run of Tightwad's seeder and puller."""
    program = str(Path(python).with_name("tightwad"))
    environ, port = {**os.environ, "HOME": str(folder)}, free_port()
    seeder = subprocess.Popen([program, "swarm", "seed", str(source), "--port", str(port), "--host", "127.0.0.1"],
                              env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    until = time.monotonic() + 120
    while time.monotonic() < until:
        try:
            urllib.request.urlopen(url + "/health", timeout=2).close()
            break
        except OSError:
            time.sleep(0.1)
    target = folder / "tightwad.bin"
    run = measured(seeder, [program, "swarm", "pull", str(target), "--manifest", url + "/manifest", "--peer", url,
                            "--parallel", str(PARALLEL)], environ)
    same(source, target)
    for rest in folder.glob("tightwad.bin*"):
        rest.unlink()
    return run


def manifest_ratio(source: Path, rounds: int) -> tuple[float, float]:
    """(sha256sum's time by ours, ours in MB/s), medians."""
    ratios, rates = [], []
    for _ in range(rounds):
        begun = time.perf_counter()
        subprocess.run(["sha256sum", source], stdout=subprocess.DEVNULL, check=True)
        reference = time.perf_counter() - begun
        begun = time.perf_counter()
        subprocess.run([sys.executable, "-m", "fleet.node", "manifest", str(source)], stdout=subprocess.DEVNULL,
                       stdin=subprocess.DEVNULL, check=True, cwd=ROOT)
        own = time.perf_counter() - begun
        ratios.append(reference / own)
        rates.append(source.stat().st_size / own / 1e6)
    return statistics.median(ratios), statistics.median(rates)


def bench(size: int, rounds: int, folder: Path, python: str | None) -> dict[str, float | None]:
    """All figures."""
    source = folder / "model.gguf"
    with source.open("wb") as file:
        for _ in range(size // MIB):
            file.write(os.urandom(MIB))
    over_sum, manifest_rate = manifest_ratio(source, rounds)
    raws, owns, others = [], [], []
    for number in range(rounds):
        steps = [lambda: raws.append(raw(source, folder)), lambda: owns.append(ours(source, folder))]
        for step in steps if number % 2 else reversed(steps):
            step()
    if python is not None:
        for _ in range(min(3, rounds)):
            others.append(tightwad(source, folder, python))
            owns.append(ours(source, folder))
    pairs = [one.seconds / own.seconds for one, own in zip(raws, owns, strict=False)]
    later = [one.seconds / own.seconds for one, own in zip(others, owns[len(raws):], strict=True)]

    def middle(values: list[float]) -> float:
        return round(statistics.median(values), 3)

    gigabytes = size / 1e9
    return {
        "over_raw": middle(pairs), "over_tightwad": middle(later) if later else None,
        "rss_mb": round(max(run.rss for run in owns), 1), "manifest_over_sha256sum": round(over_sum, 3),
        "manifest_mb_s": round(manifest_rate, 1), "ours_mb_s": middle([size / run.seconds / 1e6 for run in owns]),
        "raw_mb_s": middle([size / run.seconds / 1e6 for run in raws]),
        "tightwad_mb_s": middle([size / run.seconds / 1e6 for run in others]) if others else None,
        "tightwad_rss_mb": round(max(run.rss for run in others), 1) if others else None,
        "puller_cpu_s_per_gb": middle([run.puller_cpu / gigabytes for run in owns]),
        "seeder_cpu_s_per_gb": middle([run.seeder_cpu / gigabytes for run in owns]),
        "raw_cpu_s_per_gb": middle([(run.puller_cpu + run.seeder_cpu) / gigabytes for run in raws]),
        "size_mib": size // MIB, "rounds": rounds,
    }


def in_the_lab(quick: bool) -> dict[str, float | None] | None:
    """The figures of `swarm_lab.py`; None where there can be no lab."""
    if os.geteuid() != 0 or sys.platform != "linux":
        return None
    from swarm_lab import measure
    return measure(quick=quick)


def main() -> int:
    """The command; 1 when a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="512 MiB and 3 rounds instead of 2 GiB and 5")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--no-lab", action="store_true", help="leave out the distribution to five lab nodes (root)")
    parser.add_argument("--folder", help="where the files lie (a disk, or memory)")
    parser.add_argument("--tightwad", metavar="PYTHON", default=os.environ.get("QUARTERDECK_TIGHTWAD_PYTHON"),
                        help="a Python that has tightwad 0.5.4")
    parser.add_argument("--raw-serve", help=argparse.SUPPRESS)
    parser.add_argument("--raw-fetch", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.raw_serve:
        raw_serve(options.raw_serve)
        return 0
    if options.raw_fetch:
        port, path, size = options.raw_fetch
        raw_fetch(int(port), path, int(size))
        return 0
    size, rounds = (512 * MIB, 3) if options.quick else (2048 * MIB, 5)
    with tempfile.TemporaryDirectory(prefix="swarm-bench-", dir=options.folder) as folder:
        figures = bench(size, rounds, Path(folder), options.tightwad)
    shared = None if options.no_lab else in_the_lab(options.quick)
    figures |= shared or {"source_sent_ratio": None, "finish_over_bound": None}
    if options.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:26} {value if value is not None else 'not measured'}")
    other = figures["over_tightwad"]
    good = figures["over_raw"] >= RAW_LIMIT and (other is None or other >= TIGHTWAD_LIMIT) \
        and figures["rss_mb"] < RSS_LIMIT and figures["manifest_over_sha256sum"] >= MANIFEST_LIMIT
    if shared is not None:
        from swarm_lab import is_good
        good = good and is_good(shared)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
