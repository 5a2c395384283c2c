"""A node that is this machine, with its state folder in tmp_path, and a look at what is left behind."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import psutil
import pytest

from fleet.model import ServiceKind
from fleet.nodes.local import LocalTransport
from fleet.nodes.services import ServiceSpec
from fleet.nodes.supervisor import Supervisor

Spec = Callable[..., ServiceSpec]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
async def node(state: Path) -> AsyncIterator[Supervisor]:
    """The supervisor of this machine. Whatever a test left running is ended after it."""
    supervisor = Supervisor(LocalTransport("here"), str(state), settle=0.4, log_check=1, grace=0.6)
    yield supervisor
    for process in processes_in(state.parent):
        process.kill()


@pytest.fixture
def listener(port: int) -> Spec:
    """A service that listens on `port` and says so; `code` runs once it does."""

    def spec(id: str = "worker-1", code: str = "", *, kind: ServiceKind = ServiceKind.WORKER, port: int = port,
             **more: object) -> ServiceSpec:
        program = ("import os, signal, socket, sys, time\n"
                   f"s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n"
                   f"s.bind(('127.0.0.1', {port}))\n{code}\ns.listen(); print('listening', flush=True)\n"
                   "while True: time.sleep(60)\n")
        return ServiceSpec(id=id, kind=kind, argv=(sys.executable, "-c", program), port=port, bind="127.0.0.1",
                           **more)  # type: ignore[arg-type]

    return spec


@pytest.fixture
def shell() -> Spec:
    """A service that is a piece of sh and listens nowhere."""

    def spec(code: str, id: str = "worker-1", *, kind: ServiceKind = ServiceKind.WORKER, **more: object) -> ServiceSpec:
        return ServiceSpec(id=id, kind=kind, argv=("/bin/sh", "-c", code), **more)  # type: ignore[arg-type]

    return spec


@pytest.fixture
def settled(tmp_path: Path) -> Callable[[], None]:
    """Call it: nothing that ran in this test's folders runs any more."""

    def check() -> None:
        assert wait_for(lambda: not processes_in(tmp_path)), processes_in(tmp_path)

    return check


def processes_in(folder: Path) -> list[psutil.Process]:
    """Services, keepers and their sleeps all have a folder of the test as their working directory."""
    found = []
    for pid in psutil.pids():
        try:
            if os.readlink(f"/proc/{pid}/cwd").startswith(f"{folder}/") and pid != os.getpid():
                process = psutil.Process(pid)
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        except (OSError, psutil.Error):
            continue
    return found


def wait_for(true: Callable[[], object], seconds: float = 20.0) -> bool:
    """Whether it became true in time; for what the system does by itself and tells nobody."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if true():
            return True
        time.sleep(0.02)
    return bool(true())
