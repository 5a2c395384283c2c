"""When what serves has broken: what is done about it, when, and on what."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from fleet.config.schema import RecoverPolicy
from fleet.model import (
    Deployment,
    DeploymentState,
    Node,
    NodeState,
    Operation,
    OperationState,
    Problem,
    Snapshot,
)
from fleet.recovery.decide import (
    BACK_OFF,
    FLAPPING,
    FLAPS_WITHIN,
    STEADY,
    UNSEEN,
    Act,
    Memory,
    decide,
    flapping,
    tried,
)

AUTO, ASK, OFF = RecoverPolicy.AUTO, RecoverPolicy.ASK, RecoverPolicy.OFF
SERVES = Deployment(DeploymentState.SERVING, model="gemma", head="atlas", head_service="coordinator-8080",
                    workers=(("bolt", "worker-50052"), ("cone", "worker-50052")))
BROKEN = replace(SERVES, state=DeploymentState.BROKEN, problem=Problem("worker-dead", "The worker on bolt was killed."))


def fleet(deployment: Deployment, *operations: Operation, **states: NodeState) -> Snapshot:
    names = ("atlas", "bolt", "cone")
    return Snapshot(nodes={name: Node(name, states.get(name, NodeState.UP)) for name in names}, deployment=deployment,
                    operations=operations)


def served(policy: RecoverPolicy = AUTO) -> Memory:
    return decide(Memory(), fleet(SERVES), 0.0, policy).memory


def test_a_killed_worker_is_answered_at_once_and_a_failed_try_is_tried_again_later():
    memory, now = served(), 10.0
    for pause in (*BACK_OFF, BACK_OFF[-1]):
        if pause:
            waiting = decide(memory, fleet(BROKEN), now, AUTO)
            assert (waiting.act, waiting.wait) == (Act.NOTHING, pause)
            memory, now = waiting.memory, now + pause
        decision = decide(memory, fleet(BROKEN), now, AUTO)
        assert (decision.act, decision.model, decision.without) == (Act.BRING_UP, "gemma", ())
        assert "bolt was killed" in decision.sentence
        memory = tried(decision.memory, well=False)


def test_a_silent_node_is_given_the_time_to_come_back():
    memory = served()
    silent = fleet(BROKEN, bolt=NodeState.SILENT)
    first = decide(memory, silent, 10.0, AUTO)
    assert (first.act, first.wait) == (Act.NOTHING, UNSEEN)
    assert decide(first.memory, fleet(SERVES), 12.0, AUTO).act is Act.NOTHING
    later = decide(first.memory, silent, 10.0 + UNSEEN, AUTO)
    assert later.act is Act.BRING_UP


def test_who_asks_asks_once_about_one_break():
    first = decide(served(ASK), fleet(BROKEN), 10.0, ASK)
    assert first.act is Act.ASK
    second = decide(first.memory, fleet(BROKEN), 11.0, ASK)
    assert second.act is Act.NOTHING
    again = decide(second.memory, fleet(SERVES), 12.0, ASK)
    assert decide(again.memory, fleet(BROKEN), 300.0, ASK).act is Act.ASK


def test_nothing_is_done_where_it_is_not_wanted_or_somebody_is_at_it():
    at_it = Operation(1, "up", "Bring up", OperationState.RUNNING)
    assert decide(served(OFF), fleet(BROKEN), 10.0, OFF).act is Act.NOTHING
    assert decide(served(), fleet(BROKEN, at_it), 10.0, AUTO).act is Act.NOTHING
    down = decide(served(), fleet(replace(SERVES, state=DeploymentState.DOWN)), 10.0, AUTO)
    assert down.act is Act.NOTHING
    assert decide(down.memory, fleet(Deployment()), 11.0, AUTO).act is Act.NOTHING


def test_what_was_broken_before_anybody_looked_is_brought_up_too():
    assert decide(Memory(), fleet(BROKEN), 1.0, AUTO).act is Act.BRING_UP


def test_a_node_that_comes_and_goes_is_put_aside_for_a_while():
    memory, now = served(), 0.0
    for _ in range(FLAPPING):
        lost = decide(memory, fleet(BROKEN, bolt=NodeState.UNREACHABLE), now + 1, AUTO)
        memory = decide(lost.memory, fleet(SERVES), now + 20, AUTO).memory
        now += 30
    decision = decide(memory, fleet(BROKEN), now, AUTO)
    assert decision.without == ("bolt",)
    assert "bolt came and went" in decision.sentence
    assert flapping(decision.memory, now + FLAPS_WITHIN) == ()


def test_after_a_steady_while_the_first_try_is_at_once_again():
    memory = tried(tried(served(), well=False), well=True)
    assert decide(memory, fleet(BROKEN), 10.0, AUTO).act is Act.NOTHING
    steady = decide(decide(memory, fleet(SERVES), 10.0, AUTO).memory, fleet(SERVES), 10.0 + STEADY, AUTO).memory
    assert decide(steady, fleet(BROKEN), 200.0, AUTO).act is Act.BRING_UP


@given(st.lists(st.tuples(st.sampled_from((SERVES, BROKEN, Deployment())), st.sampled_from(list(NodeState)),
                          st.floats(0.1, 90.0)), max_size=60), st.sampled_from(list(RecoverPolicy)))
def test_whatever_happens_it_never_asks_where_it_acts_and_always_names_what_it_brings_up(history, policy):
    memory, now = Memory(), 0.0
    for deployment, state, passes in history:
        now += passes
        decision = decide(memory, fleet(deployment, bolt=state), now, policy)
        memory = decision.memory
        assert len(memory.losses) <= 3 * FLAPS_WITHIN
        if decision.act is not Act.NOTHING:
            assert deployment is BROKEN and decision.model == "gemma" and decision.sentence
            assert (decision.act is Act.ASK) == (policy is ASK)
            assert policy is not OFF
            memory = tried(memory, well=False)


DOWN = Deployment(DeploymentState.DOWN)
NO_WAY_BACK = Problem("node-lost", "bolt was lost meanwhile. “Stop head on atlas” could not be undone: bolt is gone.")


def swap(state: OperationState, ended: float | None, kind: str = "swap") -> Operation:
    return Operation(4, kind, "Swap gemma", state, started=10.0, ended=ended,
                     problem=NO_WAY_BACK if state is OperationState.FAILED else None)


def test_what_a_failed_swap_took_away_and_could_not_give_back_is_brought_up_on_what_is_left():
    memory = served()
    under_way = decide(memory, fleet(DOWN, swap(OperationState.RUNNING, None)), 12.0, AUTO)
    assert under_way.act is Act.NOTHING
    after = fleet(DOWN, swap(OperationState.FAILED, 20.0), bolt=NodeState.UNREACHABLE)
    decision = decide(under_way.memory, after, 20.0, AUTO)
    assert (decision.act, decision.model) == (Act.BRING_UP, "gemma")
    assert "could not be undone" in decision.sentence
    again = decide(tried(decision.memory, well=False), fleet(DOWN, swap(OperationState.FAILED, 30.0, "up")), 30.0, AUTO)
    assert (again.act, again.wait) == (Act.NOTHING, BACK_OFF[1])


def test_what_is_taken_down_after_a_swap_that_went_back_stays_down():
    memory = decide(served(), fleet(DOWN, swap(OperationState.RUNNING, None)), 12.0, AUTO).memory
    back = decide(memory, fleet(SERVES, swap(OperationState.FAILED, 20.0)), 21.0, AUTO).memory
    assert decide(back, fleet(DOWN, swap(OperationState.FAILED, 20.0)), 30.0, AUTO).act is Act.NOTHING


def test_what_a_person_takes_down_or_stops_half_way_stays_down():
    for ended in (swap(OperationState.DONE, 20.0, "down"), swap(OperationState.CANCELLED, 20.0)):
        memory = decide(served(), fleet(DOWN, swap(OperationState.RUNNING, None)), 12.0, AUTO).memory
        assert decide(memory, fleet(DOWN, ended), 20.0, AUTO).act is Act.NOTHING
