"""Another user of the machine tries to be where our state is kept: they may write there nothing that we obey."""

# ruff: noqa: ASYNC110, ASYNC220, ASYNC221, ASYNC230, ASYNC240 -- short looks at small files, in tests

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fleet.errors import FleetError
from fleet.model import Process, ServiceKind
from fleet.nodes import shell
from fleet.nodes.local import LocalTransport
from fleet.nodes.records import STATE_SH
from fleet.nodes.services import ServiceSpec
from fleet.nodes.supervisor import Supervisor

VICTIM, MALLORY = 54321, 54322
FALLBACK = Path(f"/tmp/quarterdeck-{VICTIM}")
as_root = pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs other users to be")


@pytest.fixture
async def victim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Supervisor]:
    """A supervisor that works as another user, whose home cannot be written: /tmp is what is left."""
    away()
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == 0 and folder != Path("/") and folder != Path("/tmp"):
            folder.chmod(folder.stat().st_mode | 0o055)
    monkeypatch.setattr(shell, "LOCAL_ARGV", ("setpriv", f"--reuid={VICTIM}", f"--regid={VICTIM}", "--clear-groups",
                                              *shell.LOCAL_ARGV))
    monkeypatch.setenv("HOME", "/proc/nowhere")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{bin_folder}:{os.environ['PATH']}")
    yield Supervisor(LocalTransport("here"), settle=0.3)
    away()


def away() -> None:
    if FALLBACK.is_symlink() or FALLBACK.is_file():
        FALLBACK.unlink()
    elif FALLBACK.exists():
        shutil.rmtree(FALLBACK)


def mallorys(path: Path, mode: int = 0o777) -> None:
    path.mkdir(parents=True, exist_ok=True)
    os.chown(path, MALLORY, MALLORY)
    path.chmod(mode)


SLEEPS = ServiceSpec("worker-1", ServiceKind.WORKER, ("/bin/sleep", "60"))


@as_root
async def test_the_fallback_is_ours_alone_and_so_is_all_in_it(victim: Supervisor) -> None:
    await victim.start(ServiceSpec("worker-1", ServiceKind.WORKER, ("/bin/sleep", "60"), env={"HF_TOKEN": "s3cret"}))
    try:
        await victim.write_secret("key", b"s3cret")
        for path in (FALLBACK, *FALLBACK.rglob("*")):
            found = path.lstat()
            assert found.st_uid == VICTIM and not stat.S_ISLNK(found.st_mode), path
            assert found.st_mode & 0o077 == 0, f"{path} {stat.S_IMODE(found.st_mode):o}"
        told = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
        assert "s3cret" not in told
    finally:
        await victim.stop("worker-1")


@as_root
@pytest.mark.parametrize("mode", [0o777, 0o700, 0o755])
async def test_a_folder_that_somebody_else_made_first_is_not_used(victim: Supervisor, mode: int) -> None:
    mallorys(FALLBACK, mode)
    with pytest.raises(FleetError, match="another user"):
        await victim.start(SLEEPS)
    assert list(FALLBACK.iterdir()) == []


@as_root
async def test_a_symbolic_link_in_its_place_is_not_followed(victim: Supervisor, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    os.chown(target, VICTIM, VICTIM)
    FALLBACK.symlink_to(target)
    os.chown(FALLBACK, MALLORY, MALLORY, follow_symlinks=False)
    with pytest.raises(FleetError, match="symbolic link"):
        await victim.start(SLEEPS)
    assert list(target.iterdir()) == []


@as_root
async def test_one_that_others_may_read_is_not_used(victim: Supervisor) -> None:
    FALLBACK.mkdir()
    os.chown(FALLBACK, VICTIM, VICTIM)
    FALLBACK.chmod(0o755)
    with pytest.raises(FleetError, match="read by others"):
        await victim.start(SLEEPS)


@as_root
async def test_one_that_is_made_between_our_look_and_our_mkdir_is_not_used(victim: Supervisor, tmp_path: Path) -> None:
    mkdir = tmp_path / "bin" / "mkdir"
    trap = tmp_path / "trap"
    # Whoever wins the race: here the first mkdir, which asks root's helper to be Mallory just before it.
    mkdir.write_text(f'#!/bin/sh\n[ -e "{trap}" ] || {{ : >"{tmp_path}/ask"; '
                     f'while [ ! -e "{trap}" ]; do sleep 0.05; done; }}\nexec {shutil.which("mkdir")} "$@"\n')
    mkdir.chmod(0o755)
    tmp_path.chmod(0o777)

    async def mallory() -> None:
        while not (tmp_path / "ask").exists():
            await asyncio.sleep(0.02)
        mallorys(FALLBACK)
        trap.touch()

    waiting = asyncio.ensure_future(mallory())
    with pytest.raises(FleetError, match="another user"):
        await victim.start(SLEEPS)
    await waiting
    assert not list(FALLBACK.rglob("keeper.sh"))


@as_root
async def test_the_log_of_another_users_process_is_not_read_with_our_rights(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("root's own\n")
    log = tmp_path / "log"
    with open(log, "w", encoding="utf-8") as out:
        theirs = subprocess.Popen(["/bin/sleep", "60"], stdout=out, user=MALLORY)
    try:
        supervisor = Supervisor(LocalTransport("here"), str(tmp_path / "state"))
        asked = await LocalTransport("here").run(f'{STATE_SH}qd_start_time "$1"\n', (str(theirs.pid),))
        process = Process(theirs.pid, asked.text.strip(), "S", ("llama-server",))
        record = await supervisor.adopt(process, ServiceKind.COORDINATOR, 8080)
        log.unlink()
        log.symlink_to(secret)
        with pytest.raises(FleetError, match="no log"):
            await supervisor.read_log(record.id)
    finally:
        theirs.kill()
        theirs.wait()
