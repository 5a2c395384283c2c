"""`quarterdeck init`: a first fleet.yaml that loads again, in the right place, never over another."""

import pytest
from cli_engine import ScriptedEngine, node, serving

from app.cli import main as command
from app.exit_codes import ExitCode
from fleet.config.load import find, load, parse


@pytest.fixture(autouse=True)
def at_home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "QUARTERDECK_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    snapshot = serving(node("atlas", local=True))
    monkeypatch.setattr("app.verbs.init.engine_maker", lambda *a, **k: lambda: ScriptedEngine(snapshot))
    return tmp_path


def test_the_file_goes_where_every_later_command_finds_it(at_home, capsys):
    assert command(["init", "--name", "attic"]) == ExitCode.OK
    path = at_home / "home" / ".config" / "quarterdeck" / "fleet.yaml"
    assert find(None, {"HOME": str(at_home / "home")}, at_home) == path
    config = load(path)
    assert (config.fleet, list(config.nodes), config.nodes["atlas"].local) == ("attic", ["atlas"], True)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert f"wrote {path}: 1 machine" in shown.err


def test_the_file_can_go_elsewhere(at_home, capsys):
    assert command(["init", "-o", "here.yaml"]) == ExitCode.OK
    assert load(at_home / "here.yaml").nodes
    assert "say --config here.yaml" in capsys.readouterr().err


def test_a_file_that_another_one_hides_is_said_to_be(at_home, capsys):
    (at_home / "fleet.yaml").write_text("fleet: mine\n")
    assert command(["init"]) == ExitCode.OK
    assert f"{at_home / 'fleet.yaml'} comes before it" in capsys.readouterr().err


def test_printing_writes_nothing(at_home, capsys):
    assert command(["init", "--print"]) == ExitCode.OK
    assert "atlas" in parse(capsys.readouterr().out).nodes
    assert not (at_home / "home").exists()


def test_a_file_that_is_there_is_never_overwritten(at_home, capsys):
    (at_home / "here.yaml").write_text("fleet: mine\n")
    assert command(["init", "-o", "here.yaml"]) == ExitCode.USAGE
    assert (at_home / "here.yaml").read_text() == "fleet: mine\n"
    assert "never overwritten" in capsys.readouterr().err


def test_a_place_that_cannot_be_written_is_a_sentence(at_home, capsys):
    (at_home / "file").write_text("")
    assert command(["init", "-o", "file/fleet.yaml"]) == ExitCode.CONFIG
    assert "Traceback" not in capsys.readouterr().err
