"""`quarterdeck swarm distribute`: what is submitted, what is printed, and with which code it ends."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from cli_engine import ScriptedEngine, ends

from app.cli import main as command
from app.exit_codes import ExitCode
from app.swarm_bars import Bars, about
from fleet.events import Distribute
from fleet.model import Node, NodeState, Operation, OperationState, Problem, Snapshot
from fleet.model.swarm import Ban, PeerState, Swarm, SwarmPeer

MIB = 1 << 20
SOURCE = SwarmPeer("desk", PeerState.SEEDING, b"\xff", 8, 8 * MIB, up=3.0 * MIB, source=True)
ATLAS = SwarmPeer("atlas", PeerState.PULLING, b"\xf0", 4, 4 * MIB, down=2.0 * MIB, eta=2.0)
SWARM = Swarm("ab" * 32, "m.gguf", 8 * MIB, 8, MIB, (SOURCE, ATLAS), operation=1, sent_by_source=5 * MIB)


@pytest.fixture
def with_engine(tmp_path, monkeypatch):
    """Gives the verb a scripted engine, away from the home of whoever runs the tests."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "QUARTERDECK_CONFIG"):
        monkeypatch.delenv(name, raising=False)

    def use(*scripts, **more) -> ScriptedEngine:
        here = Node("desk", NodeState.UP, local=True)
        engine = ScriptedEngine(Snapshot(nodes={"desk": here}), scripts, **more)
        monkeypatch.setattr("app.verbs.swarm_distribute.engine_maker", lambda *a, **k: lambda: engine)
        return engine
    return use


def test_what_was_asked_for_is_submitted_and_the_end_is_said(with_engine, capsys):
    engine = with_engine(ends(OperationState.DONE))
    code = command(["swarm", "distribute", "tiny", "--to", "atlas, bolt", "--sha256", "ab" * 32, "--limit", "50M"])
    assert code == ExitCode.OK
    assert engine.submitted == [Distribute("tiny", ("atlas", "bolt"), ("ab" * 32,), 50e6)]
    assert "nothing had to be done" in capsys.readouterr().out


def test_a_file_of_this_machine_is_meant_before_a_name_of_the_fleet(with_engine, tmp_path):
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    engine = with_engine(ends(OperationState.DONE))
    command(["swarm", "distribute", "m.gguf", "--to", "all"])
    assert engine.submitted == [Distribute(f"desk:{tmp_path}/m.gguf", ("all",))]


def test_a_failure_says_that_what_came_is_kept(with_engine, capsys):
    problem = Problem("no-room", "atlas has 1 MiB free.", "Free some.")
    with_engine(ends(OperationState.FAILED, problem=problem, kind="distribute"))
    assert command(["swarm", "distribute", "tiny", "--to", "atlas"]) == ExitCode.FAILED
    said = capsys.readouterr().err
    assert "what came is kept" in said and "atlas has 1 MiB free." in said and "undone" not in said


def test_json_has_the_operation_and_its_swarm(with_engine, capsys):
    async def script(engine: ScriptedEngine, operation: Operation) -> None:
        engine.show(swarms=(SWARM,))
        engine.tell(replace(operation, state=OperationState.DONE, ended=104.0))

    with_engine(script)
    assert command(["swarm", "distribute", "tiny", "--to", "atlas", "--json"]) == ExitCode.OK
    said = json.loads(capsys.readouterr().out)
    assert said["swarm"]["peers"][1]["have"] == "f0" and said["operation"]["state"] == "done"


@pytest.mark.parametrize("words", [
    ["swarm", "distribute", "tiny", "--to", "atlas", "--limit", "fast"],
    ["--read-only", "swarm", "distribute", "tiny", "--to", "atlas"],
])
def test_words_that_do_not_go_together_are_refused_before_anything_is_done(with_engine, words):
    engine = with_engine()
    assert command(words) == ExitCode.USAGE
    assert engine.submitted == []


def test_a_dry_run_prints_the_plan_and_submits_nothing(with_engine, capsys):
    plan = Operation(0, "distribute", "Distribute m.gguf (8 MiB) from desk to atlas", OperationState.PLANNED)
    engine = with_engine(plan=plan)
    assert command(["swarm", "distribute", "tiny", "--to", "atlas", "--dry-run"]) == ExitCode.OK
    assert "from desk to atlas" in capsys.readouterr().out and engine.submitted == []


def test_lines_come_once_for_every_quarter_and_for_a_ban():
    stream = io.StringIO()
    operation = Operation(1, "distribute", "Distribute", OperationState.RUNNING)
    with Bars(stream) as bars:
        for done in range(9):
            peer = replace(ATLAS, done_bytes=done * MIB)
            bars.show(operation, replace(SWARM, peers=(SOURCE, peer)))
        ban = Ban("atlas", "bad\x1b[2J", 3, "sent wrong bytes")
        for _ in range(2):
            bars.show(operation, replace(SWARM, peers=(SOURCE, replace(ATLAS, state=PeerState.SEEDING)), bans=(ban,)))
    lines = stream.getvalue().splitlines()
    assert [line for line in lines if "pulling" in line] == [
        f"  atlas: pulling {share}%" for share in (0, 25, 50, 75, 100)]
    assert sum("sent wrong bytes" in line for line in lines) == 1 and lines[-1] == "  atlas: seeding"
    assert "\x1b" not in stream.getvalue()


def test_a_terminal_has_a_bar_for_each_machine(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    stream = io.StringIO()
    stream.isatty = lambda: True
    operation = Operation(1, "distribute", "Distribute", OperationState.RUNNING)
    with Bars(stream) as bars:
        bars.show(operation, SWARM)
    assert "atlas" in stream.getvalue() and "50%" in stream.getvalue() and "desk" in stream.getvalue()


def test_a_peer_is_told_in_a_few_words():
    assert about(SWARM, SOURCE) == "sent 5 MiB, 3 MiB/s"
    assert about(SWARM, ATLAS) == "pulling, 2 MiB/s, 2 s left"
    bad = replace(ATLAS, state=PeerState.FAILED, problem=Problem("full", "The disk is full."))
    assert about(SWARM, bad) == "failed: The disk is full."
