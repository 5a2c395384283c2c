# ruff: noqa: ASYNC221, ASYNC240, PT017 - files and processes are what these tests are about
"""Starting: what runs then, and every way in which it does not."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from fleet.errors import NodeError, PortTaken, ServiceError, StartFailed
from fleet.model import ServiceKind
from fleet.nodes import folder as folder_module
from fleet.nodes import shell as shell_module
from fleet.nodes import supervise
from fleet.nodes.local import LocalTransport
from fleet.nodes.services import ServiceSpec
from fleet.nodes.supervisor import Supervisor

from .conftest import Spec, wait_for


async def test_a_started_process_leads_its_own_session_and_is_written_down(
        node: Supervisor, listener: Spec, state: Path, port: int) -> None:
    record = await node.start(listener(build="b10068 (571d0d5)", fleet="home", facts={"model": "gemma"}))

    process = psutil.Process(record.pid)
    assert os.getsid(record.pid) == os.getpgid(record.pid) == record.pid
    assert os.getsid(process.ppid()) == process.ppid(), "the keeper has a session of its own"
    assert record == (await node.records())[0]
    assert (record.alive, record.port, record.bind, record.build, record.fleet, record.facts) == (
        True, port, "127.0.0.1", "b10068 (571d0d5)", "home", {"model": "gemma"})
    written = json.loads((state / "services/worker-1/pid.json").read_text())
    assert (written["pid"], written["start_time"], written["argv"]) == (
        record.pid, record.start_time, list(record.argv))


async def test_nobody_else_can_read_what_is_kept(node: Supervisor, listener: Spec, state: Path) -> None:
    await node.start(listener())
    for path in [state, *state.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


async def test_environment_and_arguments_arrive_as_they_are(node: Supervisor, state: Path) -> None:
    hostile = "a'b\"c $HOME `id` \\ \n end\t*"
    spec = ServiceSpec("odd", ServiceKind.COORDINATOR, (
        sys.executable, "-c", "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['ODD'], os.getcwd(),"
        " os.environ.get('QD_DEAF')])); sys.stdout.flush(); import time; time.sleep(60)", hostile, "", "-n"),
        {"ODD": hostile, "PATH": "/nowhere"})
    await node.start(spec)
    assert wait_for(lambda: (state / "services/odd/log").stat().st_size)
    chunk = await node.read_log("odd")
    assert json.loads(chunk.text) == [[hostile, "", "-n"], hostile, str(state / "services/odd"), None]


async def test_values_of_the_environment_are_in_no_argument_list(node: Supervisor, listener: Spec) -> None:
    secret = "hf_do-not-show-this"
    record = await node.start(listener(env={"HF_TOKEN": secret}))
    keeper = psutil.Process(record.pid).parent()
    assert keeper is not None
    assert not [line for line in (*keeper.cmdline(), *psutil.Process(record.pid).cmdline()) if secret in line]


async def test_a_service_writes_with_the_nodes_own_umask_and_leaves_no_core(
        node: Supervisor, shell: Spec, monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.umask(0o027)
    try:
        record = await node.start(shell("umask; ulimit -c; exec sleep 60"))
    finally:
        os.umask(before)
    assert wait_for(lambda: (Path(record.folder) / "log").read_text() == "0027\n0\n")
    assert stat.S_IMODE((Path(record.folder) / "log").stat().st_mode) == 0o600


@pytest.mark.parametrize("pid_json", [
    '{"pid":4711,"start_time":"b:1","kind":"emperor","argv":["x"]}', '{"pid":4711,"start_time":"b:1"}', "{", "",
    '{"pid":4711,"start_time":"b:1","kind":"worker","argv":["x"],"env":{"A B":"x"}}'])
async def test_a_pid_file_that_does_not_say_how_starts_nothing(node: Supervisor, state: Path, pid_json: str) -> None:
    (state / "services/worker-1").mkdir(parents=True)
    state.chmod(0o700)
    (state / "services/worker-1/pid.json").write_text(pid_json)
    with pytest.raises(ServiceError):
        await node.spec("worker-1")


@pytest.mark.parametrize(("kind", "ignored"), [(ServiceKind.WORKER, True), (ServiceKind.COORDINATOR, False)])
async def test_workers_alone_ignore_sigpipe(node: Supervisor, kind: ServiceKind, ignored: bool) -> None:
    record = await node.start(ServiceSpec("s", kind, ("/bin/sleep", "60")))
    mask = int(next(line.split()[1] for line in Path(f"/proc/{record.pid}/status").read_text().splitlines()
                    if line.startswith("SigIgn")), 16)
    assert bool(mask & (1 << (signal.SIGPIPE - 1))) is ignored


async def test_a_second_start_of_a_running_service_is_refused(node: Supervisor, shell: Spec) -> None:
    record = await node.start(shell("sleep 60"))
    with pytest.raises(ServiceError, match=f"runs on here already .pid {record.pid}.") as caught:
        await node.start(shell("sleep 60"))
    assert caught.value.code == "running"
    assert (await node.records())[0].pid == record.pid


async def test_of_two_starts_at_once_exactly_one_wins(node: Supervisor, shell: Spec, tmp_path: Path) -> None:
    spec = shell(f"echo x >>{tmp_path}/started; exec sleep 60")
    done = await asyncio.gather(*(node.start(spec) for _ in range(5)), return_exceptions=True)
    records = [each for each in done if not isinstance(each, BaseException)]
    assert len(records) == 1
    assert {each.code for each in done if isinstance(each, ServiceError)} <= {"busy", "running"}
    assert len([each for each in done if isinstance(each, ServiceError)]) == 4
    assert (tmp_path / "started").read_text() == "x\n"


async def test_a_taken_port_names_its_owner(node: Supervisor, listener: Spec, port: int, state: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        with pytest.raises(PortTaken, match=rf"Port {port} on here is taken: .*pid {os.getpid()}") as caught:
            await node.start(listener())
    assert caught.value.pid == os.getpid()
    assert caught.value.program
    assert not list((state / "services").glob("*")), "nothing was begun"


async def test_a_port_taken_by_a_service_of_ours_names_that_service(node: Supervisor, listener: Spec) -> None:
    await node.start(listener("worker-a"))
    with pytest.raises(PortTaken, match="our worker-a"):
        await node.start(listener("worker-b"))


async def test_the_same_port_on_another_address_is_no_conflict(node: Supervisor, listener: Spec, port: int) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.2", port))
        other.listen()
        assert (await node.start(listener())).alive


async def test_an_end_with_status_0_is_a_failed_start_too(node: Supervisor, shell: Spec) -> None:
    with pytest.raises(StartFailed, match="status 0: Failed to create server socket") as caught:
        await node.start(shell("echo banner; echo Failed to create server socket >&2; exit 0"))
    assert caught.value.exit_status == 0
    assert caught.value.log_tail == "banner\nFailed to create server socket"
    record, = await node.records()
    assert (record.alive, record.exit_status) == (False, 0), "its record and log stay, to be looked at"


async def test_a_program_that_dies_of_a_signal_has_the_shells_status(node: Supervisor, shell: Spec) -> None:
    with pytest.raises(StartFailed) as caught:
        await node.start(shell("kill -ABRT $$"))
    assert caught.value.exit_status == 134


@pytest.mark.parametrize("program", ["/nowhere/llama-server", "llama-server-that-is-nowhere"])
async def test_a_program_that_is_not_there_is_said_so(node: Supervisor, program: str) -> None:
    with pytest.raises(StartFailed, match=f"{program} is not there on here") as caught:
        await node.start(ServiceSpec("s", ServiceKind.WORKER, (program,)))
    assert caught.value.code == "no-program"


async def test_a_program_that_may_not_run_is_said_so(node: Supervisor, tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("#!/bin/sh\n")
    with pytest.raises(StartFailed, match="cannot be executed"):
        await node.start(ServiceSpec("s", ServiceKind.WORKER, (str(tmp_path / "tool"),)))


async def test_a_stale_pid_file_is_cleaned_and_said_so(node: Supervisor, shell: Spec) -> None:
    first = await node.start(shell("echo first life; exec sleep 60"))
    os.kill(first.pid, signal.SIGKILL)
    assert wait_for(lambda: not psutil.pid_exists(first.pid))
    notes: list[str] = []
    second = await node.start(shell("echo second; exec sleep 60"), on_note=notes.append)
    assert notes == [f"Cleaned the old pid file of worker-1 on here: its process {first.pid} has ended."]
    assert second.alive and second.pid != first.pid
    assert (Path(second.folder) / "log.1").read_text() == "first life\n", "what it last said stays"


@pytest.mark.parametrize("torn", ["", '{"pid":12', "null\n", '{"pid":1,"start_time":"x","argv":[]}\n', "\0\0\0"])
async def test_a_torn_pid_file_is_no_obstacle(node: Supervisor, shell: Spec, state: Path, torn: str) -> None:
    place = state / "services/worker-1"
    place.mkdir(parents=True, mode=0o700)
    (place / "pid.json").write_text(torn)
    listing = await node.listing()
    assert listing.records == ()
    assert [problem.code for problem in listing.problems] == ["pid-file-unreadable"]
    notes: list[str] = []
    assert (await node.start(shell("sleep 60"), on_note=notes.append)).alive
    assert notes == ["Cleaned the old pid file of worker-1 on here: it could not be read."]


@pytest.mark.parametrize("id", ["", "..", "../x", "A", "a/b", "a b", "a;id", "-rf", "x" * 65, "ü", "a\n", ".old-a"])
async def test_hostile_ids_reach_no_shell(node: Supervisor, id: str, state: Path) -> None:
    with pytest.raises(ServiceError) as caught:
        await node.start(ServiceSpec(id, ServiceKind.WORKER, ("/bin/sleep", "60")))
    assert caught.value.code == "bad-id"
    for call in (node.stop, node.forget, node.read_log, node.spec, node.remove_secret):
        with pytest.raises(ServiceError):
            await call(id)
    assert not state.exists()


@pytest.mark.parametrize("spec", [
    ServiceSpec("s", ServiceKind.WORKER, ()),
    ServiceSpec("s", ServiceKind.WORKER, ("bin/tool",)),
    ServiceSpec("s", ServiceKind.WORKER, ("/bin/sleep", "6\0"),),
    ServiceSpec("s", ServiceKind.WORKER, ("/bin/sleep",), {"A B": "x"}),
    ServiceSpec("s", ServiceKind.WORKER, ("/bin/sleep",), {"qd_here": "/"}),
    ServiceSpec("s", ServiceKind.WORKER, ("/bin/sleep",), {}, 70000),
    ServiceSpec("s", ServiceKind.WORKER, ("/bin/sleep",), cwd="x"),
])
async def test_what_can_be_no_service_is_refused_before_the_node_is_asked(node: Supervisor, spec: ServiceSpec) -> None:
    with pytest.raises(ServiceError) as caught:
        await node.start(spec)
    assert caught.value.code == "bad-spec"


async def test_a_service_starts_again_as_it_was(node: Supervisor, shell: Spec) -> None:
    spec = shell("echo $WORD; exec sleep 60", env={"WORD": "it's"}, facts={"model": "m"}, build="b1", log_limit=4096)
    await node.start(spec)
    await node.stop("worker-1")
    assert await node.spec("worker-1") == spec
    assert (await node.start(await node.spec("worker-1"))).alive


# ---------------------------------------------------------------------------------------------
# Odd nodes


def _only(tmp_path: Path, *programs: str) -> str:
    bin = tmp_path / "bin"
    bin.mkdir()
    for program in programs:
        (bin / program).symlink_to(shutil.which(program) or "/nonexistent")
    return str(bin)


NEEDED = ("sh", "id", "ls", "uname", "date", "mkdir", "rm", "mv", "ln", "cat", "sleep", "tail", "head", "grep", "sed",
          "df", "tr", "cut", "dd", "ps", "getconf", "readlink")


@pytest.fixture(params=["dash", "bash", "busybox", "no /proc", "no ss", "perl alone", "python alone"])
def odd_node(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """This machine, as one with other tools or another sh."""
    kind = str(request.param)
    sh = shutil.which("dash") or "/bin/sh"
    bare = supervise.script
    hidden = False
    if kind == "bash":
        sh = shutil.which("bash") or pytest.skip("there is no bash here")
    elif kind == "busybox":
        busybox = shutil.which("busybox") or pytest.skip("there is no busybox here")
        tools = tmp_path / "busybox"
        tools.mkdir()
        subprocess.run([busybox, "--install", "-s", str(tools)], check=True)
        monkeypatch.setenv("PATH", str(tools))
        sh = str(tools / "sh")
    elif kind == "no /proc":
        hidden = True
        monkeypatch.setenv("PATH", _only(tmp_path, *NEEDED, "perl", "netstat", "lsof"))
    elif kind == "no ss":
        monkeypatch.setenv("PATH", _only(tmp_path, *NEEDED, "setsid", "lsof"))
    elif kind == "perl alone":
        monkeypatch.setenv("PATH", _only(tmp_path, *NEEDED, "perl", "ss"))
    elif kind == "python alone":
        bin = _only(tmp_path, *NEEDED, "ss")
        Path(bin, "python3").symlink_to(os.path.realpath(sys.executable))
        monkeypatch.setenv("PATH", bin)

    def script(name: str) -> str:
        text = bare(name).replace("qd_lead /bin/sh ", f"qd_lead {sh} ")
        return text.replace("/proc/", "/hidden-proc/") if hidden else text

    monkeypatch.setattr(folder_module, "script", script)
    monkeypatch.setattr("fleet.nodes.supervisor.script", script)
    monkeypatch.setattr("fleet.nodes.logs.script", script)
    monkeypatch.setattr(shell_module, "LOCAL_ARGV", (sh, *shell_module.LOCAL_ARGV[1:]))
    return kind


async def test_the_whole_life_of_a_service_on_an_odd_node(
        node: Supervisor, listener: Spec, odd_node: str, port: int, settled: Callable[[], None]) -> None:
    record = await node.start(listener(env={"A": "b"}))
    assert record.alive and os.getsid(record.pid) == os.getpgid(record.pid) == record.pid
    with pytest.raises(PortTaken) as caught:
        await node.start(listener("worker-2"))
    assert caught.value.pid == record.pid
    assert (await node.read_log("worker-1")).text == "listening\n"
    await node.annotate("worker-1", {"x": 1})
    assert (await node.lease("up", "me")).taken_over == ""
    await node.release("up", "me")
    report = await node.stop("worker-1")
    assert (report.phases, report.status, report.port_free) == (("TERM", "gone", "port free"), 143, True)
    assert report.rss and report.rss > 1 << 20
    stopped, = await node.records()
    assert (stopped.alive, stopped.exit_status, stopped.stopping, stopped.facts) == (False, 143, True, {"x": 1})
    assert await node.forget_ended() == ("worker-1",)
    settled()


async def test_a_node_that_can_start_nothing_detached_says_so(
        node: Supervisor, shell: Spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", _only(tmp_path, *NEEDED))
    with pytest.raises(StartFailed, match="has none of setsid, perl and python3") as caught:
        await node.start(shell("sleep 60"))
    assert caught.value.code == "no-session"
    assert await node.records() == ()


# ---------------------------------------------------------------------------------------------
# The state folder


def _node(home: Path, state: str = "") -> Supervisor:
    return Supervisor(LocalTransport("here"), state, settle=0.3)


async def test_without_a_setting_the_xdg_folder_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    node = _node(tmp_path)
    assert (await node.listing()).folder == f"{tmp_path}/.local/state/quarterdeck"
    assert not (tmp_path / ".local").exists(), "a look makes nothing"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    assert (await node.listing()).folder == f"{tmp_path}/xdg/quarterdeck"
    monkeypatch.setenv("XDG_STATE_HOME", "not/absolute")
    assert (await node.listing()).folder == f"{tmp_path}/.local/state/quarterdeck"
    assert (await _node(tmp_path, "~/own").listing()).folder == f"{tmp_path}/own"


async def test_a_folder_that_is_a_link_is_refused_and_the_next_one_taken(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    (tmp_path / "victim").mkdir(mode=0o700)
    (tmp_path / "state").symlink_to(tmp_path / "victim")
    listing = await _node(tmp_path, str(tmp_path / "state")).listing()
    assert listing.folder == f"{tmp_path}/xdg/quarterdeck"
    assert [problem.code for problem in listing.problems] == ["state-folder-fallback"]
    assert "is a symbolic link" in listing.problems[0].what


async def test_a_services_folder_that_is_a_link_is_never_written_through(
        tmp_path: Path, shell: Spec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    for at in ("services", "services/worker-1"):
        root = tmp_path / at.replace("/", "-")
        (root / at).parent.mkdir(parents=True, mode=0o700)
        victim = tmp_path / f"victim-{at.replace('/', '-')}"
        victim.mkdir()
        (root / at).symlink_to(victim)
        node = _node(tmp_path, str(root))
        try:
            record = await node.start(shell("sleep 60"))
        except StartFailed as refused:
            assert "is a symbolic link" in str(refused)
        else:
            assert record.folder.startswith(f"{tmp_path}/xdg/")
            await node.stop("worker-1")
            await node.forget("worker-1")
        await node.forget_ended()
        assert victim.is_dir() and not list(victim.iterdir())


async def test_a_folder_that_others_may_write_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    (tmp_path / "state").mkdir()
    (tmp_path / "state").chmod(0o770)
    listing = await _node(tmp_path, str(tmp_path / "state")).listing()
    assert "can be written by others" in listing.problems[0].what


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a folder to another user needs root")
async def test_a_folder_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    (tmp_path / "state").mkdir(mode=0o700)
    os.chown(tmp_path / "state", 65534, 65534)
    listing = await _node(tmp_path, str(tmp_path / "state")).listing()
    assert "belongs to another user" in listing.problems[0].what


async def test_a_shared_home_gives_each_machine_its_own_corner(node: Supervisor, shell: Spec, state: Path) -> None:
    state.mkdir(mode=0o700)
    (state / "host").write_text("another-machine 0123\n")
    record = await node.start(shell("sleep 60"))
    assert record.folder == f"{state}/hosts/{os.uname().nodename}/services/worker-1"
    assert [each.id for each in await node.records()] == ["worker-1"]
    await node.stop("worker-1")


@pytest.fixture
def mounted(tmp_path: Path) -> Callable[[str, str], None]:
    """Mounts a small tmpfs in the test's folder; skipped where we may not."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    places: list[str] = []

    def mount(place: str, options: str) -> None:
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"cannot mount here: {done.stderr.strip()}")
        places.append(place)

    yield mount  # type: ignore[misc]
    for place in places:
        subprocess.run(["umount", "-l", place], check=True)


async def test_a_full_disk_is_named_and_nothing_stays_running(
        shell: Spec, tmp_path: Path, mounted: Callable[[str, str], None], settled: Callable[[], None]) -> None:
    state = tmp_path / "small"
    state.mkdir(mode=0o700)
    mounted(str(state), "size=128k,mode=0700")
    node = _node(tmp_path, str(state))
    (state / "filler").write_bytes(b"x" * 60_000)
    free = 0
    while free < 68:      # KiB taken, from plenty to nothing: each step of a start meets the full disk once
        free += 4
        with (state / "filler").open("r+b") as filler:
            filler.truncate(0)
            with contextlib.suppress(OSError):
                filler.write(b"x" * (56 + free) * 1024)
                filler.flush()
        try:
            await node.start(shell("exec sleep 60"))
        except StartFailed as error:
            assert error.code == "disk-full", error
            assert "the disk of here is full" in error.what
            assert [record for record in await node.records() if record.alive] == []
            settled()
        else:
            await node.stop("worker-1")
            await node.forget("worker-1")
    with pytest.raises(StartFailed, match="is full"):
        await node.start(shell("exec sleep 60"))
    (state / "filler").unlink()
    await node.start(shell("exec sleep 60"))
    with contextlib.suppress(OSError), (state / "filler").open("wb", buffering=0) as filler:
        while True:
            filler.write(b"x" * 512)
    assert (await node.stop("worker-1")).status == 143, "room for the status was kept"
    assert (await node.records())[0].exit_status == 143
    assert await node.forget("worker-1"), "what makes room works on a full disk"
    settled()


async def test_a_read_only_home_falls_back_and_says_so(
        shell: Spec, tmp_path: Path, mounted: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir()
    mounted(str(home), "size=64k,ro")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    node = _node(tmp_path, "~/state")
    record = await node.start(shell("sleep 60"))
    assert record.folder.startswith(f"{tmp_path}/xdg/quarterdeck/")
    listing = await node.listing()
    assert [each.id for each in listing.records] == ["worker-1"]
    assert f"{home}/state cannot be made" in listing.problems[0].what
    subprocess.run(["mount", "-o", "remount,rw", str(home)], check=True)
    assert [each.id for each in await node.records()] == ["worker-1"], "still found when the home is back"
    await node.stop("worker-1")


async def test_nowhere_to_write_is_a_sentence(shell: Spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    bare = supervise.script
    monkeypatch.setattr(folder_module, "script",
                        lambda name: bare(name).replace("/tmp/quarterdeck-$qd_uid", f"{tmp_path}/file/y"))
    node = _node(tmp_path, str(tmp_path / "file/x"))
    with pytest.raises(NodeError, match="no folder on here where services could be written down") as caught:
        await node.start(shell("sleep 60"))
    assert caught.value.code == "no-state-folder"
    assert [problem.code for problem in (await node.listing()).problems] == ["no-state-folder"]
