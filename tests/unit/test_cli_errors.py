"""How the command ends: sentences for what was foreseen, a crash file for what was not, and never a traceback."""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys

import pytest

from app.cli import guarded
from app.cli import main as command
from app.exit_codes import BadUsage, ExitCode, NothingThere
from fleet.config.load import ConfigErrors
from fleet.errors import FleetError, NodeUnreachable, PlanRefused

OPTIONS = argparse.Namespace(verb="up")


def raising(error: BaseException):
    def work() -> int:
        raise error
    return work


@pytest.mark.parametrize(("error", "code"), [
    (NodeUnreachable("atlas does not answer.", "Wake it."), ExitCode.FAILED),
    (PlanRefused("No.", "Yes."), ExitCode.REFUSED),
    (NothingThere("No such thing.", "Look."), ExitCode.NOT_THERE),
    (BadUsage("Odd.", "Even."), ExitCode.USAGE),
    (KeyboardInterrupt(), ExitCode.INTERRUPTED),
])
def test_each_kind_of_error_has_its_exit_code(error, code, capsys):
    assert guarded(raising(error), OPTIONS) == code
    assert "Traceback" not in capsys.readouterr().err


def test_an_error_says_what_and_what_to_do_on_stderr_alone(capsys):
    guarded(raising(FleetError("atlas is\x1b[2J gone.", "Look for it.")), OPTIONS)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "quarterdeck: atlas is\\x1b[2J gone.\n  Look for it.\n"


def test_all_problems_of_a_configuration_are_shown_a_line_each(capsys):
    error = ConfigErrors("fleet.yaml", ("fleet.yaml:1: a: odd", "fleet.yaml:2: b: odd"))
    assert guarded(raising(error), OPTIONS) == ExitCode.CONFIG
    assert capsys.readouterr().err.splitlines()[:2] == ["quarterdeck: fleet.yaml:1: a: odd", "fleet.yaml:2: b: odd"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_output_that_cannot_be_written_is_a_sentence_and_no_fault_of_ours():
    script = ("import argparse, sys; from app.cli import guarded; from app.output import put; "
              "sys.exit(guarded(lambda: put('data'), argparse.Namespace(verb='status')))")
    with open("/dev/full", "w", encoding="utf-8") as full:
        ended = subprocess.run([sys.executable, "-c", script], stdout=full, stderr=subprocess.PIPE, text=True,
                               check=False, timeout=60)
    assert ended.returncode == ExitCode.FAILED
    assert ended.stderr.splitlines()[0] == ("quarterdeck: Standard output cannot be written: No space left on device.")
    assert len(ended.stderr.splitlines()) == 2


def test_an_error_inside_a_task_group_is_the_same_error(capsys):
    group = ExceptionGroup("tasks", [ExceptionGroup("more", [PlanRefused("No.", "")])])
    assert guarded(raising(group), OPTIONS) == ExitCode.REFUSED


def test_a_fault_of_our_own_leaves_a_crash_file_and_says_where(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert guarded(raising(ZeroDivisionError("by zero")), OPTIONS) == ExitCode.INTERNAL
    shown = capsys.readouterr().err
    path = next((tmp_path / "quarterdeck").glob("crash-*.txt"))
    assert str(path) in shown
    assert "Traceback" not in shown
    assert "ZeroDivisionError: by zero" in path.read_text()
    assert path.stat().st_mode & 0o077 == 0


def test_a_crash_file_that_cannot_be_written_is_printed(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert guarded(raising(ZeroDivisionError("by zero")), OPTIONS) == ExitCode.INTERNAL
    assert "no crash file" in capsys.readouterr().err


def test_old_crash_files_go(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "quarterdeck").mkdir()
    for number in range(15):
        (tmp_path / "quarterdeck" / f"crash-20000101-0000{number:02}-1.txt").write_text("old")
    guarded(raising(ZeroDivisionError()), OPTIONS)
    assert len(list((tmp_path / "quarterdeck").glob("crash-*"))) == 10


@pytest.mark.parametrize("verb", ["up", "down", "demo", "init"])
def test_read_only_refuses_to_act(verb, capsys):
    assert command(["--read-only", verb]) == ExitCode.USAGE
    assert "--read-only" in capsys.readouterr().err


def test_a_broken_file_ends_with_the_configs_exit_code(tmp_path, capsys):
    path = tmp_path / "fleet.yaml"
    path.write_text("fleet: [\n")
    assert command(["--config", str(path), "status"]) == ExitCode.CONFIG
    assert "fleet.yaml" in capsys.readouterr().err


def test_a_file_that_is_not_there_ends_with_the_configs_exit_code(tmp_path, capsys):
    assert command(["--config", str(tmp_path / "none.yaml"), "status"]) == ExitCode.CONFIG
    assert "none.yaml" in capsys.readouterr().err


def run_script(text: str, *, close_stdout: bool = False, **more) -> subprocess.Popen:
    process = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               **more)
    if close_stdout:
        process.stdout.close()
    return process


def test_a_reader_that_goes_away_is_no_error():
    process = run_script("""
import sys, argparse
from app.cli import guarded
from app.output import put
def work():
    sys.stdin.readline()
    for number in range(100000): put('x' * 1000)
    return 0
sys.exit(guarded(work, argparse.Namespace(verb='logs')))
""", close_stdout=True, stdin=subprocess.PIPE)
    process.stdin.write("\n")
    process.stdin.close()
    assert process.stderr.read() == ""
    assert process.wait(30) == ExitCode.PIPE


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_cancels_and_lets_the_undo_finish(number):
    process = run_script("""
import asyncio, sys
from app.session import run_to_end
async def main():
    print('ready', flush=True)
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0)
        print('undone', flush=True)
sys.exit(run_to_end(main))
""")
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert process.stdout.read() == "undone\n"
    assert process.wait(30) == ExitCode.INTERRUPTED
    assert process.stderr.read() == ""


def test_the_third_signal_leaves_at_once():
    process = run_script("""
import asyncio, sys
from app.session import run_to_end
async def main():
    print('ready', flush=True)
    try:
        await asyncio.Event().wait()
    finally:
        print('undoing', flush=True)
        await asyncio.Event().wait()
sys.exit(run_to_end(main))
""")
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "undoing\n"
    process.send_signal(signal.SIGINT)
    assert "still undoing" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == ExitCode.INTERRUPTED


async def test_an_engine_that_breaks_ends_the_command_with_its_error():
    from cli_engine import ScriptedEngine

    from app.session import watching

    class Broken(ScriptedEngine):
        async def run(self) -> None:
            await asyncio.sleep(0)
            raise NodeUnreachable("no.", "")

    with pytest.raises(NodeUnreachable):
        async with watching(Broken):
            await asyncio.Event().wait()


def test_version_is_printed(capsys):
    with pytest.raises(SystemExit) as ended:
        command(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("quarterdeck ")


@pytest.mark.parametrize("shell", ["bash", "fish", "zsh"])
def test_completion_scripts_are_read_by_their_shell(shell, tmp_path, capsys):
    from shutil import which

    assert command(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "status" in script
    assert "--accept-new" in script or "accept-new" in script
    if which(shell) is not None:
        path = tmp_path / "script"
        path.write_text(script)
        subprocess.run([shell, "-n", str(path)], check=True, timeout=30, env={**os.environ, "HOME": str(tmp_path)})


def test_json_of_an_empty_fleet_is_one_object(tmp_path, monkeypatch, capsys):
    from cli_engine import ScriptedEngine

    monkeypatch.setattr("app.verbs.status.engine_maker", lambda *a, **k: ScriptedEngine)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert command(["status", "--json"]) == ExitCode.NOT_THERE
    assert json.loads(capsys.readouterr().out)["deployment"]["state"] == "down"
