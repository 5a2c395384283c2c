"""`quarterdeck processes`: whose every engine's process is, and acting on one by its pid."""

import json

import pytest
from cli_engine import ScriptedEngine, ends, node, service, serving

from app.cli import main as command
from app.exit_codes import ExitCode
from fleet.events import AdoptProcess, EndProcess
from fleet.model import ForeignProcess, OperationState, Process, ServiceKind

STRAY = ForeignProcess(Process(4242, "777", "S", ("/opt/llama/llama-server", "-m", "x.gguf\x1b[31m"), 1 << 30, "ann"),
                       ServiceKind.COORDINATOR, 8081, "127.0.0.1")


@pytest.fixture(autouse=True)
def away_from_home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "QUARTERDECK_CONFIG"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def engines(monkeypatch) -> list[ScriptedEngine]:
    made: list[ScriptedEngine] = []
    ours = service(ServiceKind.COORDINATOR)
    snapshot = serving(node("atlas", ours, foreign=(STRAY,)))

    def make() -> ScriptedEngine:
        made.append(ScriptedEngine(snapshot, [ends(OperationState.DONE)]))
        return made[-1]

    for verb in ("acting", "processes"):
        monkeypatch.setattr(f"app.verbs.{verb}.engine_maker", lambda *a, **k: make)
    return made


def test_ours_and_nobody_s_are_told_apart_and_no_command_moves_the_cursor(engines, capsys):
    assert command(["processes", "list"]) == ExitCode.OK
    out = capsys.readouterr().out
    ours = next(line for line in out.splitlines() if "coordinator-8080" in line)
    stray = next(line for line in out.splitlines() if "4242" in line)
    assert "nobody's" in stray and "1.0 GiB" in stray and "ann" in stray and "8081" in stray
    assert "nobody's" not in ours and "\x1b" not in out and "s3cret" not in out


def test_as_json_it_has_what_is_needed_to_act(engines, capsys):
    assert command(["processes", "list", "--json"]) == ExitCode.OK
    said = json.loads(capsys.readouterr().out)["processes"]
    assert {(p["pid"], p["service"], p["start_time"]) for p in said} >= {(4242, "", "777")}


@pytest.mark.parametrize(("action", "kind"), [("adopt", AdoptProcess), ("end", EndProcess)])
def test_a_process_is_meant_with_the_time_that_it_was_started(engines, action, kind):
    assert command(["processes", action, "atlas", "4242"]) == ExitCode.OK
    assert engines[-1].submitted == [kind("atlas", 4242, "777")]


@pytest.mark.parametrize(("words", "told"), [
    (("end", "atlas", "99"), "No engine's process on atlas has pid 99."),
    (("end", "nowhere", "4242"), "No node is called nowhere."),
])
def test_what_is_not_there_is_said(engines, capsys, words, told):
    assert command(["processes", *words]) != ExitCode.OK
    assert told in capsys.readouterr().err
    assert not engines[-1].submitted


def test_our_own_service_is_stopped_by_its_name(engines, capsys):
    pid = next(iter(engines_snapshot(engines).services)).record.pid
    assert command(["processes", "end", "atlas", str(pid)]) != ExitCode.OK
    assert "quarterdeck stop atlas coordinator-8080" in capsys.readouterr().err


def engines_snapshot(engines):
    command(["processes", "list"])
    return engines[-1].latest.nodes["atlas"]
