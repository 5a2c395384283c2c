"""A llama-server of a test: started, asked, ended."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from free_port import free_port
from made_moe import prompt

from fleet.runtimes.binaries import bundled

ARGUMENTS = ("-c", "512", "-np", "1", "-t", "1", "-dev", "none", "--cache-ram", "0", "--no-warmup", "--no-repack")


@dataclass(frozen=True, slots=True)
class Server:
    """One that answers."""

    port: int
    pid: int

    def say(self, tokens: int = 150, *, seed: int = 5, temperature: float = 0.0) -> str:
        """What it says after some words."""
        asked = {"prompt": prompt(seed=seed), "n_predict": tokens, "temperature": temperature, "seed": seed,
                 "ignore_eos": True, "cache_prompt": False}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/completion", json.dumps(asked).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=100) as answer:
            return json.load(answer)["content"]


@contextmanager
def serving(model: Path, folder: Path, *, env: Mapping[str, str] | None = None, arguments: tuple[str, ...] = ARGUMENTS,
            first: Callable[[], object] | None = None, user: int | None = None,
            programs: str | None = None) -> Iterator[Server]:
    """A server in `folder`, ended by TERM; `first` runs in the child before it becomes the server."""
    port, log = free_port(), folder / "server.log"
    with log.open("wb") as out:
        process = subprocess.Popen([f"{programs or bundled()}/llama-server", "-m", str(model), "--port", str(port),
                                    *arguments],
                                   env={**os.environ, **(env or {})}, cwd=folder, stdout=out, stderr=out,
                                   preexec_fn=first, user=user, group=user, extra_groups=[] if user else None)
    try:
        until = time.monotonic() + 60
        while True:
            if process.poll() is not None or time.monotonic() > until:
                raise AssertionError(f"llama-server: {process.returncode}: {log.read_text('utf-8', 'replace')[-2000:]}")
            with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                break
            time.sleep(0.02)
        yield Server(port, process.pid)
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
