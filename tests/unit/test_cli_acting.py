"""Verbs that act: the plan with --dry-run, a line a step, the exit code, and the undo on ctrl+c."""

import asyncio
import io
import json
import os
import signal
from dataclasses import replace

import pytest
from cli_engine import ScriptedEngine, ends, hangs, node, service, serving

from app.cli import main as command
from app.exit_codes import ExitCode
from app.follow import StepLines, follow, plan_lines, step_line
from fleet.errors import NO_SUCH
from fleet.events import BringUp, RestartService, StartService, StopService, TearDown
from fleet.model import (
    DeploymentState,
    Operation,
    OperationState,
    Placement,
    PlacementState,
    Problem,
    ServiceKind,
    ServiceState,
    Share,
    StepRecord,
    StepState,
)

DONE = StepRecord("Start worker on bolt, port 50052", "bolt", StepState.DONE, 1.0, 4.2, detail="pid 4711")


@pytest.fixture(autouse=True)
def away_from_home(tmp_path, monkeypatch):
    """No fleet.yaml, no demo, no state of whoever runs the tests."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "QUARTERDECK_CONFIG"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def with_engine(monkeypatch):
    """Gives the verbs a scripted engine."""
    def use(*scripts, snapshot=None, **more) -> list[ScriptedEngine]:
        made: list[ScriptedEngine] = []

        def make() -> ScriptedEngine:
            made.append(ScriptedEngine(snapshot, scripts, **more))
            return made[-1]

        for verb in ("acting", "logs", "status", "nodes", "doctor"):
            monkeypatch.setattr(f"app.verbs.{verb}.engine_maker", lambda *a, **k: make)
        return made
    return use


# --- lines ------------------------------------------------------------------------------------


def test_a_step_line_has_a_mark_what_came_of_it_and_how_long_it_took():
    assert step_line(DONE) == "[ ok ] Start worker on bolt, port 50052: pid 4711 (3 s)"


def test_a_step_line_shows_nothing_that_a_terminal_obeys():
    assert "\x1b" not in step_line(StepRecord("x\x1b[2J", state=StepState.FAILED, detail="y\x1b"))


def test_a_plan_is_numbered_and_says_when_there_is_nothing_to_do():
    operation = Operation(0, "up", "Bring up tiny", OperationState.PLANNED, (DONE, DONE))
    assert plan_lines(operation)[1] == "  1. Start worker on bolt, port 50052"
    assert plan_lines(Operation(0, "up", "Tiny serves already", OperationState.PLANNED))[1] == "  nothing to do"


def test_in_a_pipe_a_long_step_tells_of_each_quarter_once():
    printed: list[str] = []
    lines = StepLines(printed.append, io.StringIO())
    for progress in (0.0, 0.1, 0.3, 0.31, 0.8, 0.9, 1.0):
        step = StepRecord("Load tiny", state=StepState.RUNNING, progress=progress)
        lines.show(Operation(1, "up", "Bring up", OperationState.RUNNING, (step,)))
    assert printed == ["[... ] Load tiny 30%", "[... ] Load tiny 80%"]


# --- the verbs --------------------------------------------------------------------------------


@pytest.mark.parametrize(("words", "wanted"), [
    (("up",), BringUp("")), (("up", "tiny"), BringUp("tiny")), (("down",), TearDown()),
    (("start", "bolt", "worker-50052"), StartService("bolt", "worker-50052")),
    (("stop", "bolt", "worker-50052"), StopService("bolt", "worker-50052")),
    (("restart", "bolt", "worker-50052"), RestartService("bolt", "worker-50052")),
])
def test_each_verb_sends_its_command_and_prints_the_steps(words, wanted, with_engine, capsys):
    made = with_engine(ends(OperationState.DONE, DONE))
    assert command(list(words)) == ExitCode.OK
    assert made[0].submitted == [wanted]
    assert made[0].ended
    assert capsys.readouterr().out == f"{step_line(DONE)}\nBring up tiny: done after 4 s\n"


def test_a_second_up_says_that_nothing_had_to_be_done(with_engine, capsys):
    with_engine(ends(OperationState.DONE))
    assert command(["up"]) == ExitCode.OK
    assert "nothing had to be done" in capsys.readouterr().out


class JudgedLate(ScriptedEngine):
    """Settled before its head was asked for the first time, as a real one can be."""

    async def settled(self, timeout: float) -> bool:
        ready = serving(node("atlas", service()))
        asyncio.get_running_loop().call_soon(lambda: self.show(nodes=ready.nodes, deployment=ready.deployment))
        return True


def test_a_head_that_was_not_asked_yet_is_waited_for_before_anything_is_done(monkeypatch):
    states: list[DeploymentState] = []

    async def seen(engine: ScriptedEngine, operation: Operation) -> None:
        states.append(engine.latest.deployment.state)
        await ends(OperationState.DONE)(engine, operation)

    unasked = serving(node("atlas", service(state=ServiceState.STARTING)), state=DeploymentState.STARTING)
    monkeypatch.setattr("app.verbs.acting.engine_maker", lambda *a, **k: lambda: JudgedLate(unasked, [seen]))
    assert command(["up"]) == ExitCode.OK
    assert states == [DeploymentState.SERVING]


@pytest.mark.parametrize(("state", "code"), [(OperationState.FAILED, ExitCode.FAILED),
                                             (OperationState.REFUSED, ExitCode.REFUSED)])
def test_what_went_wrong_is_told_on_stderr(state, code, with_engine, capsys):
    with_engine(ends(state, problem=Problem("x", "bolt is locked.", "Add your key.")))
    assert command(["up"]) == code
    assert "bolt is locked.\n  Add your key." in capsys.readouterr().err


@pytest.mark.parametrize("words", [("up", "nope"), ("up", "nope", "--dry-run"), ("stop", "bolt", "nope")])
def test_what_does_not_exist_has_an_exit_code_of_its_own(words, with_engine, capsys):
    missing = Problem(NO_SUCH, "No model is called nope.", "Say one of: tiny.")
    with_engine(ends(OperationState.REFUSED, problem=missing),
                plan=Operation(0, "up", "Bring up", OperationState.REFUSED, problem=missing))
    assert command(list(words)) == ExitCode.NOT_THERE
    assert "No model is called nope." in capsys.readouterr().err


def test_what_could_not_be_looked_at_is_told_even_when_nothing_had_to_be_done(with_engine, capsys):
    with_engine(ends(OperationState.DONE, remarks=("bolt is unreachable: what may run there is not ended.",)))
    assert command(["down"]) == ExitCode.OK
    assert "note: bolt is unreachable" in capsys.readouterr().out


def test_json_is_one_object_on_stdout_and_the_steps_go_to_stderr(with_engine, capsys):
    with_engine(ends(OperationState.DONE, DONE))
    assert command(["up", "--json"]) == ExitCode.OK
    shown = capsys.readouterr()
    assert json.loads(shown.out)["operation"]["steps"][0]["state"] == "done"
    assert step_line(DONE) in shown.err


def test_a_dry_run_prints_the_plan_and_does_nothing(with_engine, capsys):
    made = with_engine(plan=Operation(0, "up", "Bring up tiny", OperationState.PLANNED, (DONE,)))
    assert command(["up", "--dry-run"]) == ExitCode.OK
    assert made[0].submitted == []
    assert capsys.readouterr().out == "Bring up tiny\n  1. Start worker on bolt, port 50052\n"


def test_a_dry_run_of_what_cannot_work_says_why(with_engine, capsys):
    with_engine(plan=Operation(0, "up", "Bring up", OperationState.REFUSED, problem=Problem("x", "No.", "Do.")))
    assert command(["up", "--dry-run"]) == ExitCode.REFUSED
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "No.\n  Do." in shown.err


def test_a_dry_run_is_allowed_to_who_may_only_look(with_engine, capsys):
    with_engine(plan=Operation(0, "down", "Tear down", OperationState.PLANNED))
    assert command(["--read-only", "down", "--dry-run"]) == ExitCode.OK


def test_an_interrupt_undoes_what_is_in_flight_and_says_so(with_engine, capsys):
    async def interrupted(engine: ScriptedEngine, operation: Operation) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await hangs(StepRecord("Start worker", state=StepState.RUNNING))(engine, operation)

    made = with_engine(interrupted)
    assert command(["up"]) == ExitCode.INTERRUPTED
    assert made[0].cancelled == [1]
    shown = capsys.readouterr()
    assert "interrupted: undoing what was begun" in shown.err
    assert "cancelled and undone" in shown.err
    assert "[undo] Start worker" in shown.out


async def test_following_passes_a_cancellation_on_only_after_the_undo():
    begun = asyncio.Event()
    engine = ScriptedEngine(None, [hangs(StepRecord("Load", state=StepState.RUNNING), begun=begun)])
    printed: list[str] = []
    task = asyncio.create_task(follow(engine, engine.submit(BringUp("")), printed.append, io.StringIO()))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert engine.operation(1).state is OperationState.CANCELLED


# --- logs -------------------------------------------------------------------------------------

WORKER = service(ServiceKind.WORKER, node="bolt", port=50052)


def test_a_log_is_printed_with_its_controls_written_out(with_engine, capsys):
    with_engine(snapshot=serving(node("atlas", service())), log=["one", "two\x1b[2J\ttab"])
    assert command(["logs", "coordinator-8080", "-n", "1"]) == ExitCode.OK
    assert capsys.readouterr().out == "two\\x1b[2J\ttab\n"


def test_a_service_on_one_node_needs_no_node(with_engine, capsys):
    with_engine(snapshot=serving(node("atlas", service()), node("bolt", WORKER)), log=["x"])
    assert command(["logs", "worker-50052"]) == ExitCode.OK


@pytest.mark.parametrize(("words", "said"), [
    (("logs", "worker-50052"), "is on 2 nodes: atlas, bolt"),
    (("logs", "nowhere", "worker-50052"), "No node is called nowhere"),
    (("logs", "atlas", "proxy-1"), "No service is called proxy-1 on atlas"),
    (("logs", "bolt"), "bolt is a node: say which of its services.\n  Services: worker-50052."),
    (("logs", "proxy-1"), "Services: atlas worker-50052, bolt worker-50052."),
])
def test_a_log_that_cannot_be_found_says_what_there_is(words, said, with_engine, capsys):
    with_engine(snapshot=serving(node("atlas", service(ServiceKind.WORKER, port=50052)), node("bolt", WORKER)))
    assert command(list(words)) == ExitCode.NOT_THERE
    assert said in capsys.readouterr().err


# --- status and nodes -------------------------------------------------------------------------


def test_status_ends_with_zero_only_when_something_serves(with_engine, capsys):
    with_engine(snapshot=serving(node("atlas", service())))
    assert command(["status"]) == ExitCode.OK
    with_engine()
    assert command(["status"]) == ExitCode.NOT_THERE


def test_a_service_of_another_fleet_is_told_apart(with_engine, capsys):
    theirs = service()
    theirs = replace(theirs, record=replace(theirs.record, fleet="attic"))
    with_engine(snapshot=replace(serving(node("atlas", theirs), state=DeploymentState.DOWN), fleet="home"))
    assert command(["status"]) == ExitCode.NOT_THERE
    assert "of the fleet “attic”" in capsys.readouterr().out


def test_what_runs_without_a_port_has_none(with_engine, capsys):
    relay = service(ServiceKind.RELAY, port=50152)
    with_engine(snapshot=serving(node("atlas", service(), replace(relay, record=replace(relay.record, port=0)))))
    command(["status"])
    row = next(line for line in capsys.readouterr().out.splitlines() if "relay-50152" in line)
    assert row.split()[-2:] == ["–", "4711"]


@pytest.mark.parametrize("local", [True, False])
def test_an_endpoint_that_is_on_another_machine_alone_is_said_to_be(local, with_engine, capsys):
    with_engine(snapshot=serving(node("atlas", service(), local=local)))
    command(["status"])
    assert ("its loopback" in capsys.readouterr().out.splitlines()[0]) is not local


def test_where_a_broken_model_sat_is_not_said_to_match(with_engine, capsys):
    share = Share("atlas", "CPU", model_bytes=1)
    snapshot = serving(node("atlas", service()), state=DeploymentState.BROKEN)
    placement = Placement((share,), (share,), PlacementState.MATCHES)
    with_engine(snapshot=replace(snapshot, deployment=replace(snapshot.deployment, placement=placement)))
    command(["status"])
    shown = capsys.readouterr().out
    assert "placement: as it was" in shown and "matches" not in shown


def test_nodes_as_json_hold_all_that_was_read(with_engine, capsys):
    with_engine(snapshot=serving(node("atlas", service())))
    assert command(["nodes", "--json"]) == ExitCode.OK
    data = json.loads(capsys.readouterr().out)
    assert (data["schema"], data["clock"], data["nodes"][0]["reading"]["os"]) == (1, 100.0, "Linux")
