"""The local transport: real shells, real sockets, real files."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
from contextlib import aclosing

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleet.errors import CommandTimeout, FleetError, PortClosed, ShellUnusable
from fleet.nodes import shell
from fleet.nodes.local import LocalTransport

NODE = LocalTransport("here")
PRINT_ARGUMENTS = 'for a in "$@"; do printf "%s\\0" "$a"; done'
HOSTILE = [
    "it's", '"', "$(touch /tmp/never)", "`id`", "a\nb", "\\", "\\n", "!", "*", "-n", "--", "", " ", "~", "ü 漢 🚢",
    "#", ";exit 3", "}", "\n}\n", "\r\n", "\t", "%s", "x" * 100_000, "'\"'\"'", "${IFS}", "\x01\x7f",
]


async def until_gone(pid: int) -> None:
    """Wait until a process, which need not be a child, has ended; a zombie has."""
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_reader(watched, ended.set)
    try:
        await asyncio.wait_for(ended.wait(), 10)
    finally:
        loop.remove_reader(watched)
        os.close(watched)


async def test_a_script_gives_its_output_and_status():
    done = await NODE.run("echo out; echo err >&2; exit 7")
    assert (done.status, done.text, done.error_text, done.truncated) == (7, "out\n", "err\n", False)


async def test_a_script_that_dies_of_a_signal_has_the_status_of_the_shell():
    assert (await NODE.run("kill -TERM $$")).status == 128 + 15


async def test_hostile_arguments_arrive_as_they_are():
    done = await NODE.run(PRINT_ARGUMENTS, HOSTILE)
    assert done.stdout.split(b"\0")[:-1] == [a.encode() for a in HOSTILE]


async def test_a_nul_in_an_argument_is_refused_before_anything_runs():
    with pytest.raises(ValueError, match="NUL"):
        await NODE.run("true", ["a\0b"])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(arguments=st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), max_size=5),
       data=st.binary(max_size=300))
def test_whatever_is_passed_arrives_unchanged(arguments, data):
    done = asyncio.run(NODE.run(PRINT_ARGUMENTS + "; cat", arguments, stdin=data))
    assert done.stdout == b"".join(a.encode() + b"\0" for a in arguments) + data


async def test_the_script_reads_its_own_standard_input_and_the_shell_does_not():
    data = b"exit 9\n\0binary\xff" + os.urandom(200_000)
    done = await NODE.run('printf "%s:" "$1"; cat', ["value"], stdin=data)
    assert done.status == 0 and done.stdout == b"value:" + data


async def test_without_data_a_script_that_reads_gets_the_end_of_input():
    assert (await NODE.run("cat; read -r x || echo nothing")).text == "nothing\n"


async def test_a_script_that_ignores_its_input_does_not_hang():
    assert (await NODE.run("echo done", stdin=b"x" * 1_000_000)).text == "done\n"


async def test_output_is_bounded_and_the_rest_is_read_and_dropped():
    done = await NODE.run("yes | head -c 1000000; echo end >&2", limit=1000)
    assert len(done.stdout) == 1000 and done.truncated and done.error_text == "end\n"


async def test_a_script_past_its_time_is_ended_with_all_that_it_started(tmp_path):
    with pytest.raises(CommandTimeout, match=r"here was still running after 0\.5 s"):
        await NODE.run('sleep 1000 & echo $! > "$1"; echo $$ >> "$1"; wait', [str(tmp_path / "pids")], timeout=0.5)
    for pid in (tmp_path / "pids").read_text().split():
        await until_gone(int(pid))


async def test_a_cancelled_call_ends_its_script(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    task = asyncio.create_task(NODE.run('echo $$ > "$1"; sleep 1000', [str(pipe)], timeout=60))
    pid = int(await asyncio.to_thread(pipe.read_text))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until_gone(pid)


async def test_a_service_that_keeps_the_pipes_open_does_not_hold_the_call_up(tmp_path):
    done = await NODE.run("setsid sleep 1000 & echo $!", timeout=60)
    assert done.status == 0
    os.kill(int(done.text), 9)   # it is still there: else ProcessLookupError


async def test_lines_come_one_by_one_and_are_cut_at_the_limit():
    script = "echo one; printf '%0200d\\n' 7; printf 'ü\\r\\n'; printf last"
    async with aclosing(NODE.lines(script, limit=10)) as lines:
        assert [line async for line in lines] == ["one", "0" * 10, "ü", "last"]


async def test_closing_the_lines_ends_the_script():
    async with aclosing(NODE.lines("echo $$; while :; do sleep 1000; done")) as lines:
        pid = int(await anext(lines))
    await until_gone(pid)


async def test_a_connection_is_two_way_and_an_abort_is_a_reset():
    reset = asyncio.get_running_loop().create_future()

    async def serve(reader, writer):
        writer.write(await reader.readexactly(4))
        try:
            await reader.read(1)
        except ConnectionResetError as error:
            reset.set_result(error)
        else:
            reset.set_exception(AssertionError("ended without RST"))
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        stream = await NODE.open_connection("127.0.0.1", server.sockets[0].getsockname()[1])
        await stream.write(b"ping")
        assert await stream.readexactly(4) == b"ping"
        stream.abort()
        await asyncio.wait_for(reset, 10)


async def test_a_port_that_nobody_listens_on_is_named():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        with pytest.raises(PortClosed, match=r"here could not connect to 127\.0\.0\.1 port"):
            await NODE.open_connection("127.0.0.1", bound.getsockname()[1])


async def test_a_port_that_does_not_answer_is_silent_not_closed():
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)), pytest.raises(PortClosed) as caught:
            await NODE.open_connection("127.0.0.1", port, timeout=0.3)
    assert caught.value.code == "port-silent"


async def test_parts_of_a_file_are_read(tmp_path):
    path = tmp_path / "a 'file'"
    path.write_bytes(bytes(range(100)))
    assert await NODE.read_file(str(path), 10, 5) == bytes(range(10, 15))
    assert await NODE.read_file(str(path), 98, 50) == b"bc"
    assert await NODE.read_file(str(path), 500, 50) == b""


@pytest.mark.parametrize("kind", ["missing", "folder", "fifo"])
async def test_what_is_no_readable_file_is_an_error_with_a_sentence(tmp_path, kind):
    path = tmp_path / kind
    if kind == "folder":
        path.mkdir()
    if kind == "fifo":
        os.mkfifo(path)
    with pytest.raises(FleetError, match=f"{kind} on here cannot be read"):
        await NODE.read_file(str(path), 0, 10)


async def test_a_shell_that_says_something_else_is_unusable(monkeypatch):
    monkeypatch.setattr(shell, "LOCAL_ARGV", ("/bin/sh", "-c", "echo 'This account is not available.'; exit 1"))
    with pytest.raises(ShellUnusable, match="it said: This account is not available"):
        await NODE.run("echo hello")


async def test_a_shell_that_is_not_there_is_unusable(monkeypatch):
    monkeypatch.setattr(shell, "LOCAL_ARGV", ("/nonexistent/sh",))
    with pytest.raises(ShellUnusable):
        await NODE.run("echo hello")


SHELLS = [["dash"], ["bash", "--posix"], ["busybox", "sh"], ["zsh", "--emulate", "sh"], ["mksh"], ["ksh"]]


@pytest.mark.parametrize("interpreter", SHELLS, ids=lambda argv: argv[0])
async def test_every_kind_of_sh_runs_scripts_with_data_and_hostile_arguments(monkeypatch, interpreter):
    if not shutil.which(interpreter[0]):
        pytest.skip(f"{interpreter[0]} is not installed")
    monkeypatch.setattr(shell, "LOCAL_ARGV", (*interpreter, "-c", shell.WRAPPER, shell.NAME))
    data = b"exit 9\n" + bytes(range(256)) * 100
    done = await NODE.run(PRINT_ARGUMENTS + "; cat", HOSTILE, stdin=data)
    assert done.stdout == b"".join(a.encode() + b"\0" for a in HOSTILE) + data, done.error_text
    assert (await NODE.run("echo $#; cat; exit 3", ["a", "b"])).text == "2\n"


@pytest.mark.parametrize("login_shell", ["dash", "bash", "fish", "tcsh", "zsh", "busybox"])
async def test_the_remote_command_means_the_same_to_every_login_shell(monkeypatch, login_shell):
    if not shutil.which(login_shell):
        pytest.skip(f"{login_shell} is not installed")
    argv = [login_shell, *(["sh"] if login_shell == "busybox" else []), "-c", shell.REMOTE_COMMAND]
    monkeypatch.setattr(shell, "LOCAL_ARGV", tuple(argv))
    done = await NODE.run("printf '%s' \"$1\"; cat; exit 5", ["$x 'y' \\"], stdin=b"\0data")
    assert (done.status, done.stdout) == (5, b"$x 'y' \\\0data")
