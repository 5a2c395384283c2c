# ruff: noqa: ASYNC220, ASYNC240 - files and processes are what these tests are about
"""Ending processes: the ladder, who is never signalled, and that nothing is left."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from fleet.errors import NotOurs, ServiceError
from fleet.model import Process, ServiceKind
from fleet.nodes.local import LocalTransport
from fleet.nodes.records import STATE_SH
from fleet.nodes.supervisor import Supervisor

from .conftest import Spec, processes_in, wait_for


async def start_time(pid: int) -> str:
    return (await LocalTransport("here").run(STATE_SH + 'qd_start_time "$1"\n', (str(pid),))).text.strip()


@pytest.fixture
def stranger(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is no service of ours, writing into a file of its own."""
    with (tmp_path / "its-own.log").open("ab") as log:
        process = subprocess.Popen([sys.executable, "-c", "import time; print('hello', flush=True); time.sleep(60)"],
                                   stdout=log, start_new_session=True)
    yield process
    process.kill()
    process.wait()


async def test_stop_ends_it_frees_the_port_and_tells_each_phase(
        node: Supervisor, listener: Spec, port: int, settled: Callable[[], None]) -> None:
    record = await node.start(listener())
    seen: list[str] = []
    report = await node.stop("worker-1", on_phase=seen.append)
    assert tuple(seen) == report.phases == ("TERM", "gone", "port free")
    assert (report.status, report.port_free, report.was_running) == (143, True, True)
    assert report.rss and report.rss > 1 << 20
    assert not psutil.pid_exists(record.pid)
    with socket.socket() as again:
        again.bind(("127.0.0.1", port))
    settled()


async def test_the_second_term_reaches_one_that_ignored_the_first(node: Supervisor, listener: Spec) -> None:
    await node.start(listener(code="""
count = []
def term(*_):
    count.append(1)
    if len(count) == 2: sys.exit(1)
signal.signal(signal.SIGTERM, term)"""))
    report = await node.stop("worker-1")
    assert report.phases == ("TERM", "TERM again", "gone", "port free")
    assert report.status == 1


async def test_one_that_ignores_both_is_killed(node: Supervisor, listener: Spec) -> None:
    await node.start(listener(code="signal.signal(signal.SIGTERM, signal.SIG_IGN)"))
    report = await node.stop("worker-1")
    assert report.phases == ("TERM", "TERM again", "KILL", "gone", "port free")
    assert report.status == 137


async def test_one_that_was_stopped_by_a_signal_still_hears_term(node: Supervisor, listener: Spec) -> None:
    record = await node.start(listener())
    os.kill(record.pid, signal.SIGSTOP)
    assert (await node.stop("worker-1")).phases == ("TERM", "gone", "port free")


async def test_its_children_go_with_it(node: Supervisor, shell: Spec, settled: Callable[[], None]) -> None:
    await node.start(shell("(trap '' TERM; sleep 60; sleep 60) & sleep 60"))
    await node.stop("worker-1")
    settled()


async def test_stopping_again_or_what_never_was_is_fine(node: Supervisor, shell: Spec) -> None:
    assert (await node.stop("worker-1")).phases == ()
    await node.start(shell("sleep 60"))
    await node.stop("worker-1")
    again = await node.stop("worker-1")
    assert (again.phases, again.was_running, again.status) == ((), False, 143)
    assert await node.forget("worker-1") is True
    assert await node.forget("worker-1") is False
    assert await node.records() == ()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGKILL, 137), (signal.SIGSEGV, 139), (signal.SIGTERM, 143)])
async def test_an_end_by_signal_is_written_down(node: Supervisor, shell: Spec, number: int, status: int) -> None:
    record = await node.start(shell("exec sleep 60"))
    os.kill(record.pid, number)
    assert wait_for((Path(record.folder) / "exit").exists)
    ended, = await node.records()
    assert (ended.alive, ended.exit_status, ended.stopping) == (False, status, False)


async def test_a_head_that_dies_of_sigpipe_is_told_from_a_worker_that_does_not(node: Supervisor, shell: Spec) -> None:
    head = await node.start(shell("exec sleep 60", "head", kind=ServiceKind.COORDINATOR))
    worker = await node.start(shell("exec sleep 60", "worker"))
    os.kill(head.pid, signal.SIGPIPE)
    os.kill(worker.pid, signal.SIGPIPE)
    assert wait_for((Path(head.folder) / "exit").exists)
    states = {record.id: (record.alive, record.exit_status) for record in await node.records()}
    assert states == {"head": (False, 141), "worker": (True, None)}


async def test_a_service_outlives_its_keeper_and_still_ends_clean(
        node: Supervisor, listener: Spec, settled: Callable[[], None]) -> None:
    record = await node.start(listener())
    keeper = psutil.Process(record.pid).parent()
    assert keeper is not None
    keeper.kill()
    assert wait_for(lambda: not keeper.is_running() or keeper.status() == psutil.STATUS_ZOMBIE)
    assert (await node.records())[0].alive
    report = await node.stop("worker-1")
    assert (report.port_free, report.status) == (True, None), "nobody was there to see how it ended"
    assert (await node.records())[0].exit_status is None
    settled()


async def test_the_keeper_and_its_helpers_go_with_a_service_that_ends_by_itself(
        node: Supervisor, shell: Spec, settled: Callable[[], None]) -> None:
    record = await node.start(shell("exec sleep 60"))
    assert len(processes_in(Path(record.folder).parent)) >= 2
    os.kill(record.pid, signal.SIGKILL)
    settled()


async def test_a_pid_that_is_somebody_elses_by_now_is_never_signalled(
        node: Supervisor, shell: Spec, stranger: subprocess.Popen[bytes], state: Path) -> None:
    record = await node.start(shell("exec sleep 60"))
    os.kill(record.pid, signal.SIGKILL)
    assert wait_for((Path(record.folder) / "exit").exists)
    file = state / "services/worker-1/pid.json"
    file.write_text(file.read_text().replace(f'"pid":{record.pid},', f'"pid":{stranger.pid},'))
    listing = await node.listing()
    assert listing.records[0].alive is False
    assert listing.recycled == ("worker-1",)
    assert (await node.stop("worker-1")).phases == ()
    with pytest.raises(NotOurs, match="nothing was signalled"):
        await node.end_process(stranger.pid, record.start_time)
    notes: list[str] = []
    await node.start(shell("exec sleep 60"), on_note=notes.append)
    assert notes == [f"Cleaned the old pid file of worker-1 on here: its pid {stranger.pid} belongs to another process "
                     "by now."]
    assert stranger.poll() is None
    await node.stop("worker-1")
    await node.forget_ended()
    assert stranger.poll() is None


async def test_a_zombie_is_not_running(node: Supervisor, stranger: subprocess.Popen[bytes]) -> None:
    record = await node.adopt(Process(stranger.pid, await start_time(stranger.pid), "S", ("python",)),
                              ServiceKind.WORKER, 0)
    os.kill(stranger.pid, signal.SIGKILL)    # and nobody waits for it yet
    assert wait_for(lambda: psutil.Process(stranger.pid).status() == psutil.STATUS_ZOMBIE)
    assert [(each.id, each.alive) for each in await node.records()] == [(record.id, False)]
    assert (await node.stop(record.id)).was_running is False


async def test_a_foreign_process_ends_by_the_same_ladder(node: Supervisor, stranger: subprocess.Popen[bytes]) -> None:
    report = await node.end_process(stranger.pid, await start_time(stranger.pid))
    assert report.phases == ("TERM", "gone")
    assert stranger.wait() == -signal.SIGTERM
    assert (await node.end_process(stranger.pid, "boot:1")).was_running is False


@pytest.mark.parametrize(("pid", "start"), [(1, "x"), (0, ""), (-1, "x"), (2**31, "x")])
async def test_no_hostile_pid_gets_a_signal(node: Supervisor, pid: int, start: str) -> None:
    try:
        report = await node.end_process(pid, start)
    except NotOurs:
        return
    assert report.phases == ()


async def test_forget_leaves_the_living_alone(node: Supervisor, shell: Spec, state: Path) -> None:
    alive = await node.start(shell("exec sleep 60", "alive"))
    ended = await node.start(shell("exec sleep 60", "ended"))
    (state / "services/torn").mkdir(mode=0o700)
    (state / "services/torn/pid.json").write_text("{")
    os.kill(ended.pid, signal.SIGKILL)
    assert wait_for((Path(ended.folder) / "exit").exists)
    with pytest.raises(ServiceError, match="still runs"):
        await node.forget("alive")
    assert sorted(await node.forget_ended()) == ["ended", "torn"]
    assert [record.pid for record in await node.records()] == [alive.pid]


async def test_after_down_nothing_is_left(node: Supervisor, listener: Spec, shell: Spec, state: Path,
                                          settled: Callable[[], None]) -> None:
    await node.start(listener("worker-1"))
    await node.start(shell("exec sleep 60", "worker-2"))
    for _ in range(2):       # the second time is as fine as the first
        for record in await node.records():
            await node.stop(record.id)
        await node.forget_ended()
        assert [path for path in state.rglob("*") if path.is_file()] == [state / "host"]
        settled()


# ---------------------------------------------------------------------------------------------
# Adopt


async def test_an_adopted_process_is_a_service_with_its_own_log(
        node: Supervisor, stranger: subprocess.Popen[bytes], tmp_path: Path) -> None:
    assert wait_for((tmp_path / "its-own.log").read_text)
    process = Process(stranger.pid, await start_time(stranger.pid), "S", ("llama-server", "--port", "1"))
    record = await node.adopt(process, ServiceKind.COORDINATOR, 8080, "0.0.0.0", "home")
    assert (record.id, record.pid, record.alive, record.argv) == ("coordinator-8080", stranger.pid, True, process.argv)
    assert record.facts == {"adopted": True}
    assert (await node.read_log(record.id)).text == "hello\n"
    with pytest.raises(ServiceError, match="already"):
        await node.adopt(process, ServiceKind.COORDINATOR, 8080)
    assert (await node.stop(record.id)).phases[:2] == ("TERM", "gone")
    await node.forget(record.id)
    assert (tmp_path / "its-own.log").read_text() == "hello\n", "its log was never ours to take away"


async def test_an_adopted_process_without_a_file_says_that_it_has_no_log(node: Supervisor) -> None:
    with subprocess.Popen(["sleep", "60"], stdout=subprocess.PIPE) as process:
        record = await node.adopt(Process(process.pid, await start_time(process.pid), "S", ("sleep", "60")),
                                  ServiceKind.WORKER, 0)
        with pytest.raises(ServiceError, match="has no log: it was started by somebody else") as caught:
            await node.read_log(record.id)
        assert caught.value.code == "no-log"
        process.kill()


async def test_a_process_that_is_gone_cannot_be_adopted(node: Supervisor, stranger: subprocess.Popen[bytes]) -> None:
    with pytest.raises(NotOurs, match="another one has its number now"):
        await node.adopt(Process(stranger.pid, "boot:1", "S", ("x",)), ServiceKind.WORKER, 1)
    assert await node.records() == ()
