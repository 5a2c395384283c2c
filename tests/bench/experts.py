"""A mixture of experts inside a memory budget: llama-server by itself, with its disk's readahead tuned, with the shim.

    sudo python tests/bench/experts.py [--quick] [--json] [--kind q8_0|q4_k]

The model (1.3 GB, made here; 430 MB with --quick) lies on an ext4 of its own, on a loop device whose readahead is that
of an ordinary disk (128 KB), whatever this machine's own has. The server runs in a memory cgroup of so many hundredths
of the file, the page cache being dropped first; its bytes read are those of /proc/PID/io. Every variant says the same
words (seeds are fixed), so it asks for the same experts. Needs root, loop devices and a cgroup of its own.

    shim_over_plain_50, _30     tokens a second with the shim over those without, at 50 and 30 %
    throttled_over_plain_50, _30   the same with reads limited to 300 MB/s, as a SATA SSD has them
    bytes_ratio_50, _30         bytes read a token with the shim over those without, readahead 128 KB
    tuned_bytes_ratio_50        the same over readahead 32 KB
    hit_rate_error              the largest difference of the shim's exact hit rate from an LRU run over its trace, at
                                50 and 30 %
    counter_overhead            of the speed, what counting alone costs where all is in memory
    residency_ms                of a core, one sample of the residency of a sparse file of 64 GB

Tried and not kept (1.3 GB; tokens a second at 50 %, 30 %, then both throttled, against the shim as it is):

* The next layer's experts foreseen by its own router from the state one layer before: 38, 22, 41, 14 against 52, 22,
  47, 17, and 8.1 MB a token against 6.2 at 50 %. What is foreseen wrongly is read and puts out what is needed.
* One to four threads that ask for pages while the first matrices are computed: 31 to 34, 21 to 24, 37 to 46, 15 to 17
  against 37, 22, 38, 18: no more than chance.
* The last token's experts: a cache of more than one token cycle has them anyway.
* The hottest experts pinned: over the server's trace they hit .782 and .925 at 30 and 50 %, LRU .814 and .929.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "experts"))

import made_moe
from free_port import free_port

from fleet.experts.counters import Tally, read_counters
from fleet.experts.shim import Shim, environment, source
from fleet.experts.trace import read_trace
from fleet.models.experts import experts_of
from fleet.models.gguf import read_header
from fleet.node.residency import Layout, Pages, Watch
from fleet.runtimes.binaries import bundled

MIB = 1 << 20
QUICK = replace(made_moe.LARGE, layers=4)
THROTTLED = 300_000_000           # bytes a second
READAHEAD, TUNED = 128, 32        # KB


@dataclass(frozen=True, slots=True)
class Run:
    """One server in one budget. Bytes are those read a decoded token."""

    variant: str
    budget: int                   # hundredths of the file
    speed: float                  # tokens a second
    read: float
    hit_rate: float | None = None        # exact, of bytes
    simulated: float | None = None       # an LRU over the trace, of the slots that there were
    peak: int = 0                 # bytes of the cgroup at the most
    kills: int = 0


@dataclass(frozen=True, slots=True)
class Variant:
    """How a server is run."""

    name: str
    readahead: int = READAHEAD    # KB
    shim: str = ""                # "" = none, "count" or "prefetch"
    throttled: bool = False


PLAIN, LOW = Variant("plain"), Variant("tuned", TUNED)
SHIM, COUNT = Variant("shim", shim="prefetch"), Variant("count", shim="count")


# ---------------------------------------------------------------------------------------------
# The ground: a disk, cgroups


@contextmanager
def disk(folder: Path, size: int) -> Iterator[tuple[Path, str]]:
    """An ext4 on a loop device without a cache below it; gives where it is mounted, and the device's name."""
    image, mount = folder / "disk.img", folder / "disk"
    mount.mkdir()
    with image.open("wb") as file:
        file.truncate(size)
    _call("mkfs.ext4", "-q", "-F", "-m", "0", "-O", "^has_journal", str(image))
    device = _call("losetup", "--find", "--show", "--direct-io=on", str(image))
    try:
        _call("mount", device, str(mount))
        try:
            yield mount, device.rpartition("/")[2]
        finally:
            _call("umount", "-l", str(mount))
    finally:
        _call("losetup", "-d", device)


def _call(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


class Cgroup:
    """A memory limit, and on demand one of reads, for one server. Version 1 or 2, whichever is mounted."""

    def __init__(self, limit: int | None, device: str, variant: Variant) -> None:
        root = Path("/sys/fs/cgroup")
        self.second = (root / "cgroup.controllers").exists()
        name = f"quarterdeck-bench-{os.getpid()}-{variant.name}"
        self.memory = root / name if self.second else root / "memory" / name
        self.reads = self.memory if self.second else root / "blkio" / name
        self.memory.mkdir(exist_ok=True)
        if limit is not None:
            (self.memory / ("memory.max" if self.second else "memory.limit_in_bytes")).write_text(str(limit))
            with suppress(OSError):          # without swap there is nothing to limit
                (self.memory / "memory.swap.max" if self.second else
                 self.memory / "memory.memsw.limit_in_bytes").write_text("0" if self.second else str(limit))
        if variant.throttled:
            self.reads.mkdir(exist_ok=True)
            number = Path(f"/sys/block/{device}/dev").read_text().strip()
            (self.reads / ("io.max" if self.second else "blkio.throttle.read_bps_device")).write_text(
                f"{number} rbps={THROTTLED}" if self.second else f"{number} {THROTTLED}")
        self.throttled = variant.throttled

    def join(self) -> None:
        """Called in the child."""
        for folder in {self.memory, *([self.reads] if self.throttled else [])}:
            (folder / "cgroup.procs").write_text("0")

    def figures(self) -> dict[str, int]:
        """Bytes of page cache, the peak, and how often the kernel had to kill."""
        stat = dict(line.split()[:2] for line in (self.memory / "memory.stat").read_text().splitlines())
        peak = self.memory / ("memory.peak" if self.second else "memory.max_usage_in_bytes")
        events = (self.memory / ("memory.events" if self.second else "memory.oom_control")).read_text().split()
        kills = int(events[events.index("oom_kill") + 1]) if "oom_kill" in events else 0
        return {"cache": int(stat["file" if self.second else "cache"]), "kills": kills,
                "anonymous": int(stat["anon" if self.second else "rss"]),
                "peak": int(peak.read_text()) if peak.exists() else 0}

    def remove(self) -> None:
        for folder in {self.memory, self.reads}:
            for _ in range(50):
                if not folder.exists():
                    break
                with suppress(OSError):
                    folder.rmdir()
                    break
                time.sleep(0.1)


def drop(path: Path) -> None:
    """Take a file out of the page cache."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)


# ---------------------------------------------------------------------------------------------
# One run


@dataclass(frozen=True, slots=True)
class Served:
    """A server that answers."""

    pid: int
    port: int
    cgroup: Cgroup
    stats: Path
    trace: Path

    def counted(self) -> Tally | None:
        """What the shim has counted of decoding."""
        return read_counters(self.stats.read_bytes()).decode if self.stats.exists() else None


class Bench:
    """What all runs share."""

    def __init__(self, folder: Path, model: Path, device: str, library: Path, tokens: int) -> None:
        self.folder, self.model, self.device, self.tokens = folder, model, device, tokens
        self.server = f"{bundled()}/llama-server"
        self.library = library
        self.anonymous = 110 * MIB        # until a run without a limit has told
        with model.open("rb") as file:
            async def read(offset: int, length: int) -> bytes:
                return os.pread(file.fileno(), length, offset)
            header = asyncio.run(read_header(read, model.stat().st_size))
        experts = experts_of(header)
        assert experts is not None
        self.experts, self.expert_bytes = experts, experts.expert_bytes
        self.shared = header.tensor_bytes - experts.bytes - next(
            tensor.bytes for tensor in header.tensors if tensor.name == "token_embd.weight")

    def limit(self, budget: int) -> int | None:
        """Bytes of the cgroup: so much of the file, and what the server takes besides."""
        return None if budget >= 100 else self.model.stat().st_size * budget // 100 + self.anonymous

    @contextmanager
    def serve(self, variant: Variant, budget: int, *, trace: bool = True) -> Iterator[Served]:
        """A server in its budget."""
        Path(f"/sys/block/{self.device}/queue/read_ahead_kb").write_text(str(variant.readahead))
        stats, routes = self.folder / f"{variant.name}.stats", self.folder / f"{variant.name}.trace"
        stats.unlink(missing_ok=True)
        env = dict(os.environ)
        if variant.shim:
            env |= environment(Shim(str(self.library), ""), stats=str(stats), prefetch=variant.shim == "prefetch",
                               trace=str(routes) if trace else "")
        cgroup, port = Cgroup(self.limit(budget), self.device, variant), free_port()
        log = (self.folder / "log").open("wb")
        process = subprocess.Popen(
            [self.server, "-m", str(self.model), "--port", str(port), "-c", "2048", "-np", "1", "-t", "1", "-dev",
             "none", "--cache-ram", "0", "--no-warmup", "--no-repack"],
            env=env, stdout=log, stderr=log, preexec_fn=cgroup.join)    # it does nothing but write one file
        try:
            self._wait(process, port)
            yield Served(process.pid, port, cgroup, stats, routes)
        finally:
            process.terminate()
            process.wait()
            log.close()
            cgroup.remove()

    def run(self, variant: Variant, budget: int) -> Run:
        """Warm up, then say two texts."""
        drop(self.model)
        with self.serve(variant, budget) as served:
            self._say(served.port, 1)
            before, read = served.counted(), _read_bytes(served.pid)
            told = [self._say(served.port, seed) for seed in (2, 3)]
            read = _read_bytes(served.pid) - read
            after, figures = served.counted(), served.cgroup.figures()
        if budget >= 100:
            self.anonymous = figures["anonymous"] + 24 * MIB      # page tables, libraries, what the kernel takes
        count = sum(tokens for tokens, _ in told)
        decoded = after.since(before) if before and after else None
        slots = max(0, figures["cache"] - self.shared) // self.expert_bytes
        return Run(variant.name + (" throttled" if variant.throttled else ""), budget,
                   count / sum(seconds for _, seconds in told), read / count,
                   decoded.byte_hit_rate if decoded else None,
                   simulated(served.trace.read_bytes(), slots, 2 * self.tokens) if decoded else None,
                   figures["peak"], figures["kills"])

    def overhead(self, rounds: int) -> float:
        """What counting costs of the speed where all is in memory: two servers at once, asked in turns.

        The fastest turns are compared: what others take of the machine is in none of them.
        """
        with self.serve(PLAIN, 100) as plain, self.serve(COUNT, 100, trace=False) as counted:
            for served in (plain, counted):
                self._say(served.port, 1)
            took: dict[int, list[float]] = {plain.port: [], counted.port: []}
            for number in range(rounds):
                for served in (plain, counted) if number % 2 else (counted, plain):
                    took[served.port].append(self._say(served.port, 3, 16)[1])
        return 1 - min(took[plain.port]) / min(took[counted.port])

    def _wait(self, process: subprocess.Popen[bytes], port: int) -> None:
        for _ in range(1200):
            if process.poll() is not None:
                said = (self.folder / "log").read_text("utf-8", "replace")[-500:]
                raise SystemExit(f"llama-server ended ({process.returncode}): {said}")
            with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return
            time.sleep(0.05)
        raise SystemExit("llama-server does not answer")

    def _say(self, port: int, seed: int, tokens: int = 0) -> tuple[int, float]:
        asked = {"prompt": made_moe.prompt(seed=seed), "n_predict": tokens or self.tokens, "temperature": 1, "top_k": 0,
                 "top_p": 1, "min_p": 0, "seed": seed, "ignore_eos": True, "cache_prompt": False}
        request = urllib.request.Request(f"http://127.0.0.1:{port}/completion", json.dumps(asked).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=600) as answer:
            timings = json.load(answer)["timings"]
        return timings["predicted_n"], timings["predicted_ms"] / 1000


def _read_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("read_bytes")).split()[1])


def simulated(trace: bytes, slots: int, last: int) -> float:
    """The hit rate of an LRU of so many experts over a trace, of its last so many decoded tokens."""
    found = read_trace(trace)
    first = min(routed.layer for routed in found.passes)
    decoding = [routed.layer == first for routed in found.decoding()]
    skip = max(0, sum(decoding) - last)
    kept: OrderedDict[tuple[int, int], None] = OrderedDict()
    hits = requests = tokens = 0
    now = False
    for routed in found.passes:
        if routed.layer == first:
            now = len(routed.rows) <= found.decode_rows
            tokens += now
        for expert in dict.fromkeys(expert for row in routed.rows for expert in row):
            key = (routed.layer, expert)
            hit = key in kept
            kept[key] = None
            kept.move_to_end(key)
            if len(kept) > slots:
                kept.popitem(last=False)
            if now and tokens > skip:
                requests, hits = requests + 1, hits + hit
    return hits / requests if requests else 0.0


def residency_ms(folder: Path) -> float:
    """Milliseconds of a core of one sample: 48 layers of 128 experts in 64 GB."""
    layers, experts, size, path = 48, 128, 64 << 30, folder / "sparse"
    each = size // (3 * layers * experts)
    with path.open("wb") as file:
        file.truncate(size)
    told = {"version": 1, "files": 1, "experts": experts, "used": 8, "shared": [[0, 0, 1 << 30]],
            "layers": [[n, [[0, (3 * n + part) * each * experts, each] for part in range(3)]] for n in range(layers)]}
    pages = Pages([str(path)])
    watch, taken = Watch(Layout(json.dumps(told), [size]), pages), []
    for _ in range(9):
        begun = time.process_time()
        watch.sample()
        taken.append(1000 * (time.process_time() - begun))
    pages.close()
    path.unlink()
    return statistics.median(taken)


# ---------------------------------------------------------------------------------------------
# All runs


def measure(bench: Bench, quick: bool, tell: Callable[[Run], None]) -> dict[str, float]:
    """Every figure of this file's head."""
    runs: dict[tuple[str, int], list[Run]] = {}

    def run(variant: Variant, budget: int) -> Run:
        done = bench.run(variant, budget)
        runs.setdefault((done.variant, budget), []).append(done)
        tell(done)
        return done

    def speed(name: str, budget: int) -> float:
        return statistics.median(done.speed for done in runs[name, budget])

    def read(name: str, budget: int) -> float:
        return statistics.median(done.read for done in runs[name, budget])

    run(PLAIN, 100)
    overhead = bench.overhead(24 if quick else 100)
    for _ in range(2 if quick else 3):
        for budget in (50, 30) if quick else (75, 50, 30, 20):
            for variant in (PLAIN, SHIM) if quick else (PLAIN, LOW, SHIM):
                run(variant, budget)
    for _ in range(2 if quick else 3):
        for budget in (50,) if quick else (50, 30):
            for variant in (PLAIN, SHIM):
                run(replace(variant, throttled=True), budget)
    found = {
        "shim_over_plain_50": speed("shim", 50) / speed("plain", 50),
        "shim_over_plain_30": speed("shim", 30) / speed("plain", 30),
        "throttled_over_plain_50": speed("shim throttled", 50) / speed("plain throttled", 50),
        "bytes_ratio_50": read("shim", 50) / read("plain", 50),
        "bytes_ratio_30": read("shim", 30) / read("plain", 30),
        "hit_rate_error": max(abs(done.hit_rate - done.simulated) for many in runs.values() for done in many
                              if done.variant == "shim" and done.budget in (50, 30) and done.hit_rate is not None
                              and done.simulated is not None),
        "counter_overhead": overhead,
        "residency_ms": residency_ms(bench.folder),
        "kills": sum(done.kills for many in runs.values() for done in many),
    }
    if not quick:
        found["hit_rate_error_20"] = max(abs((done.hit_rate or 0) - (done.simulated or 0)) for done in runs["shim", 20])
        found["tuned_bytes_ratio_50"] = read("shim", 50) / read("tuned", 50)
        found["throttled_over_plain_30"] = speed("shim throttled", 30) / speed("plain throttled", 30)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a smaller model, under a minute")
    parser.add_argument("--json", action="store_true", help="the figures alone")
    parser.add_argument("--kind", choices=("q8_0", "q4_k"), default="q8_0")
    options = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("This makes a loop device and a cgroup: it has to run as root.")
    if bundled() is None:
        raise SystemExit("There is no llama.cpp: pip install 'quarterdeck[engine]'.")
    shape = QUICK if options.quick else made_moe.LARGE
    if options.kind == "q4_k":
        shape = replace(shape, kind=made_moe.Q4_K)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))      # nothing mounted stays behind
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="quarterdeck-experts-")))
        size = (600 if options.quick else 1600) * MIB
        mount, device = stack.enter_context(disk(folder, size))
        model = made_moe.make(mount / "model.gguf", shape)
        os.sync()
        (folder / "shim.c").write_bytes(source())
        _call("cc", "-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-o", str(folder / "shim.so"),
              str(folder / "shim.c"), "-ldl", "-lpthread")
        bench = Bench(folder, model, device, folder / "shim.so", 48 if options.quick else 96)

        def tell(run: Run) -> None:
            if not options.json:
                rate = "" if run.hit_rate is None else f"  hit {run.hit_rate:.3f}"
                rate += "" if run.simulated is None else f" (LRU {run.simulated:.3f})"
                print(f"{run.variant:16} {run.budget:3} %  {run.speed:6.1f} tokens/s  {run.read / 1e6:6.1f} MB/token"
                      f"{rate}  peak {run.peak // MIB} MiB", flush=True)

        found = {name: round(value, 4) for name, value in measure(bench, options.quick, tell).items()}
    print(json.dumps(found, indent=None if options.json else 1))


if __name__ == "__main__":
    main()
