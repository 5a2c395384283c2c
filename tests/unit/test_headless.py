"""The run without a cockpit: what it prints, when it brings a model up again, how it ends."""

import asyncio
import json
import os
import signal
from dataclasses import replace

import pytest
from cli_engine import ScriptedEngine, ends, hangs, node, service, serving

from app.changes import changes, new_notices
from app.exit_codes import ExitCode
from app.headless import Headless, run_headless
from app.keep_up import BACK_OFF, PATIENCE, STEADY, Wish, after_failed_try, decide
from fleet.events import BringUp
from fleet.model import (
    Deployment,
    DeploymentState,
    NodeState,
    Notice,
    Operation,
    OperationState,
    Problem,
    ServiceState,
    Severity,
    Snapshot,
    StepRecord,
    StepState,
)


def state(what: DeploymentState, *operations: Operation) -> Snapshot:
    return Snapshot(deployment=Deployment(what, model="tiny"), operations=operations)


DOWN, BROKEN, SERVING, LOADING = map(state, (DeploymentState.DOWN, DeploymentState.BROKEN, DeploymentState.SERVING,
                                             DeploymentState.LOADING))


# --- what changed -----------------------------------------------------------------------------


def events(before: Snapshot, after: Snapshot) -> list[str]:
    return [change.event for change in changes(before, after)]


def test_nothing_new_gives_nothing():
    snapshot = serving(node("atlas", service()))
    assert events(snapshot, snapshot) == []


def test_a_node_and_its_service_are_told_of_once():
    before = Snapshot()
    after = serving(node("atlas", service()))
    assert events(before, after) == ["node", "service", "deployment"]
    assert events(after, replace(after)) == []


def test_a_service_that_changes_says_from_what_to_what():
    before = serving(node("atlas", service()))
    after = serving(node("atlas", service(state=ServiceState.FAILED)))
    change, = changes(before, after)
    assert change.event == "service"
    assert (change.data["was"], change.data["state"]) == (ServiceState.READY, ServiceState.FAILED)


def test_what_is_gone_is_told_of():
    before = serving(node("atlas", service()), node("bolt"))
    after = serving(node("atlas"))
    assert [(c.event, c.data["state"]) for c in changes(before, after)] == [("service", None), ("node", None)]


def notice(number: int) -> Notice:
    return Notice(number, number, Severity.WARNING, f"n{number}\x07", "atlas")


def test_notices_are_told_of_once_also_when_old_ones_have_gone():
    a, b, c = notice(1), notice(2), notice(3)
    assert new_notices((), (a, b)) == (a, b)
    assert new_notices((a, b), (a, b)) == ()
    assert new_notices((a, b), (b, c)) == (c,)
    assert new_notices((a,), (b, c)) == (b, c)


def test_a_notice_is_shown_with_its_severity_and_nothing_that_a_terminal_obeys():
    change, = changes(Snapshot(), Snapshot(notices=(notice(1),)))
    assert change.text == "warning: n1\\x07"


def test_steps_are_lines_when_they_end():
    step = StepRecord("Start worker", state=StepState.RUNNING)
    running = Operation(1, "up", "Bring up", OperationState.RUNNING, (step,))
    done = replace(running, steps=(replace(step, state=StepState.DONE, started=1, ended=3),))
    texts = [c.text for c in changes(state(DeploymentState.DOWN, running), state(DeploymentState.DOWN, done)) if c.text]
    assert texts == ["  [ ok ] Start worker (2 s)"]
    assert [c.text for c in changes(DOWN, state(DeploymentState.DOWN, running)) if c.text] == []


# --- keeping it up ----------------------------------------------------------------------------


def test_a_model_that_is_down_at_first_is_brought_up_at_once():
    assert decide(Wish("tiny"), DOWN, 0.0).bring_up


def test_a_model_that_serves_already_is_left_alone():
    decision = decide(Wish("tiny"), SERVING, 0.0)
    assert not decision.bring_up
    assert decision.wish.served


def test_nothing_is_done_while_an_operation_runs_or_a_model_loads():
    running = state(DeploymentState.DOWN, Operation(1, "up", "", OperationState.RUNNING))
    assert not decide(Wish("tiny"), running, 0.0).bring_up
    assert not decide(Wish("tiny"), LOADING, 0.0).bring_up


def test_a_part_that_died_is_brought_up_again_with_growing_pauses():
    wish, now, pauses = decide(Wish("tiny"), SERVING, 0.0).wish, 0.0, []
    for _ in range(4):
        decision = decide(wish, BROKEN, now)
        assert not decision.bring_up
        pauses.append(decision.wait)
        assert not decide(decision.wish, BROKEN, now + decision.wait - 0.1).bring_up
        now += decision.wait
        decision = decide(decision.wish, BROKEN, now)
        assert decision.bring_up
        wish = after_failed_try(decision.wish)
    assert pauses == [*BACK_OFF, BACK_OFF[-1]]


def test_serving_for_long_makes_the_next_failure_the_first_one():
    wish = Wish("tiny", tried=True, failures=3)
    wish = decide(wish, SERVING, 0.0).wish
    assert decide(wish, BROKEN, 1.0).wait == BACK_OFF[-1]
    wish = decide(wish, SERVING, STEADY).wish
    assert decide(wish, BROKEN, STEADY + 1).wait == BACK_OFF[0]


def test_what_somebody_took_down_stays_down():
    wish = decide(Wish("tiny"), SERVING, 0.0).wish
    decision = decide(wish, DOWN, 5.0)
    assert (decision.wait, decision.bring_up, decision.wish.given_up) == (PATIENCE, False, False)
    decision = decide(decision.wish, DOWN, 5.0 + PATIENCE)
    assert decision.wish.given_up
    assert "stays down" in decision.say
    assert not decide(decision.wish, DOWN, 1000.0).bring_up


def test_a_swap_by_somebody_else_is_not_taking_it_down():
    wish = decide(decide(Wish("tiny"), SERVING, 0.0).wish, DOWN, 5.0).wish
    wish = decide(wish, LOADING, 6.0).wish
    assert not decide(wish, DOWN, 5.0 + PATIENCE).wish.given_up


def test_what_somebody_brings_up_again_is_kept_up_again():
    wish = replace(Wish("tiny", tried=True), given_up=True)
    wish = decide(wish, SERVING, 0.0).wish
    assert decide(wish, BROKEN, 1.0).wait == BACK_OFF[0]


def test_a_failed_bring_up_is_tried_again():
    wish = after_failed_try(decide(Wish("tiny"), DOWN, 0.0).wish)
    decision = decide(wish, DOWN, 10.0)
    assert (decision.bring_up, decision.wait) == (False, BACK_OFF[0])
    assert decide(decision.wish, DOWN, 10.0 + BACK_OFF[0]).bring_up


# --- the run ----------------------------------------------------------------------------------


def run(work: Headless, *scripts, before=None, **more) -> tuple[int, ScriptedEngine]:
    made = []

    def make() -> ScriptedEngine:
        made.append(ScriptedEngine(before, scripts, **more))
        return made[0]

    return run_headless(make, work), made[0]


async def serves(engine: ScriptedEngine, operation: Operation) -> None:
    engine.show(deployment=serving(node("atlas", service())).deployment)
    step = StepRecord("Start head", state=StepState.DONE, started=1, ended=2)
    await ends(OperationState.DONE, step)(engine, operation)


def test_bringing_up_once_ends_when_it_serves(capsys):
    said = []
    code, engine = run(Headless(up="tiny", until_up=True, on_serving=said.append), serves)
    assert code == ExitCode.OK
    assert engine.submitted == [BringUp("tiny", spare=True)]
    assert engine.ended
    assert [snapshot.deployment.endpoint for snapshot in said] == ["http://127.0.0.1:8080"]
    assert "[ ok ] Start head (1 s)" in capsys.readouterr().out


@pytest.mark.parametrize(("how", "code"), [(OperationState.FAILED, ExitCode.FAILED),
                                           (OperationState.REFUSED, ExitCode.REFUSED)])
def test_bringing_up_once_that_fails_says_why(how, code, capsys):
    problem = Problem("x", "bolt has no llama.cpp.", "Install it.")
    assert run(Headless(up="", until_up=True), ends(how, problem=problem))[0] == code
    assert "bolt has no llama.cpp. Install it." in capsys.readouterr().err


def test_a_demo_that_somebody_took_down_ends(capsys):
    async def then_down(engine: ScriptedEngine, operation: Operation) -> None:
        await serves(engine, operation)
        await asyncio.sleep(0.05)
        engine.show(deployment=Deployment(DeploymentState.DOWN))
        await asyncio.sleep(0.05)
        engine.now += PATIENCE
        engine.show()

    code, engine = run(Headless(up="tiny", leave_when_down=True), then_down)
    assert code == ExitCode.OK
    assert len(engine.submitted) == 1
    assert "stays down" in capsys.readouterr().err


def signalled(*numbers: int):
    """A script that serves and then has this process signalled."""
    async def script(engine: ScriptedEngine, operation: Operation) -> None:
        await serves(engine, operation)
        for number in numbers:
            await asyncio.sleep(0.05)
            os.kill(os.getpid(), number)
    return script


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_being_told_to_end_is_an_ordinary_end(number, capsys):
    code, engine = run(Headless(up="tiny"), signalled(number))
    assert code == ExitCode.OK
    assert engine.ended
    assert engine.cancelled == []


def test_being_told_to_end_undoes_what_was_begun(capsys):
    async def interrupted(engine: ScriptedEngine, operation: Operation) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await hangs(StepRecord("Start worker", state=StepState.RUNNING))(engine, operation)

    code, engine = run(Headless(up="tiny"), interrupted)
    assert code == ExitCode.INTERRUPTED
    assert engine.cancelled == [1]
    shown = capsys.readouterr()
    assert "undoing what was begun" in shown.err
    assert "Start worker" in shown.out


def test_sighup_reads_the_file_again_and_a_broken_one_changes_nothing(capsys):
    code, _ = run(Headless(up="tiny"), signalled(signal.SIGHUP, signal.SIGHUP, signal.SIGTERM),
                  reloads=[("fleet.yaml:3: nodes: odd",), ()])
    assert code == ExitCode.OK
    shown = capsys.readouterr().err
    assert "the old one stays in force" in shown
    assert "fleet.yaml read again" in shown


def test_json_lines_are_one_object_each(capsys):
    run(Headless(json=True, up="tiny", until_up=True), serves, before=serving(node("atlas", service()),
                                                                             state=DeploymentState.DOWN))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {"node", "service", "deployment", "step", "operation"} <= {line["event"] for line in lines}
    assert all(isinstance(line["time"], float) for line in lines)


def test_a_node_that_fails_is_an_event_of_its_own():
    up, gone = node("bolt"), node("bolt", state=NodeState.UNREACHABLE, problem=Problem("u", "no answer"))
    change, = changes(Snapshot(nodes={"bolt": up}), Snapshot(nodes={"bolt": gone}))
    assert change.data["problem"].what == "no answer"
