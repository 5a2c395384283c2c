"""The reducer: what each event does to the Snapshot."""

from fleet.events import (
    NodeForgotten,
    NodeFound,
    NodeLeft,
    NodeRead,
    NodeStateChanged,
    Noted,
    OperationChanged,
    QuestionAsked,
    QuestionSettled,
    SwarmChanged,
    SwarmForgotten,
)
from fleet.model import (
    NodeReading,
    NodeState,
    Operation,
    OperationState,
    Problem,
    Process,
    Question,
    QuestionKind,
    ServiceKind,
    ServiceRecord,
    Severity,
    Snapshot,
    Socket,
    Swarm,
)
from fleet.reduce import NOTICES_KEPT, OPERATIONS_KEPT, reduce


def found(name: str, *, local: bool = False, at: float = 1.0) -> NodeFound:
    return NodeFound(at=at, name=name, addresses=(), sources=("fleet.yaml",), local=local)


def record(pid: int, start_time: str) -> ServiceRecord:
    return ServiceRecord(id="worker-50052", kind=ServiceKind.WORKER, pid=pid, start_time=start_time,
                         argv=("ggml-rpc-server",), port=50052, bind="127.0.0.1", alive=True, started_epoch=0.0,
                         folder="/tmp/x")


def test_this_machine_comes_first_and_the_rest_by_name():
    state = Snapshot()
    for event in (found("fl-10"), found("zeta"), found("fl-2"), found("alpha"), found("here", local=True)):
        state = reduce(state, event)
    assert list(state.nodes) == ["here", "alpha", "fl-2", "fl-10", "zeta"]


def test_a_state_that_stays_keeps_the_time_it_began():
    state = reduce(Snapshot(), found("a"))
    state = reduce(state, NodeStateChanged(at=5.0, name="a", state=NodeState.UP))
    state = reduce(state, NodeStateChanged(at=9.0, name="a", state=NodeState.UP))
    assert state.nodes["a"].since == 5.0


def test_news_of_a_node_that_was_forgotten_changes_nothing():
    state = reduce(reduce(Snapshot(), found("a")), NodeForgotten(at=2.0, name="a"))
    assert reduce(state, NodeStateChanged(at=3.0, name="a", state=NodeState.UP)) == state
    assert reduce(state, NodeRead(at=3.0, name="a", reading=NodeReading())) == state


def test_a_node_that_said_goodbye_and_is_seen_again_is_seen():
    state = reduce(reduce(Snapshot(), found("a")), NodeStateChanged(at=2.0, name="a", state=NodeState.GONE))
    state = reduce(state, found("a", at=7.0))
    assert (state.nodes["a"].state, state.nodes["a"].since) == (NodeState.SEEN, 7.0)


def test_a_machine_that_left_is_gone_unless_we_are_connected_to_it():
    farewell = NodeLeft(at=3.0, name="a", problem=Problem("gone", "a said goodbye."))
    seen = reduce(Snapshot(), found("a"))
    assert reduce(seen, farewell).nodes["a"].state is NodeState.GONE
    up = reduce(seen, NodeStateChanged(at=2.0, name="a", state=NodeState.UP))
    assert reduce(up, farewell) == up


def test_a_process_is_foreign_unless_pid_and_start_time_are_written_down():
    ours = Process(10, "t1", "S", ("/opt/ggml-rpc-server",))
    recycled = Process(11, "t9", "S", ("/opt/llama-server", "-m", "x"))
    zombie = Process(12, "t3", "Z", ("llama-server",))
    reading = NodeReading(processes=(ours, recycled, zombie), services=(record(10, "t1"), record(11, "t2")),
                          sockets=(Socket("0.0.0.0", 8080, listening=True, pid=11),))
    state = reduce(reduce(Snapshot(), found("a")), NodeRead(at=2.0, name="a", reading=reading))
    (foreign,) = state.nodes["a"].foreign
    assert (foreign.process.pid, foreign.kind, foreign.port) == (11, ServiceKind.COORDINATOR, 8080)


def test_the_engine_behind_a_wrapper_of_ours_is_ours():
    behind = Process(21, "t2", "S", ("/opt/llama-server",), parent=10)
    reading = NodeReading(processes=(behind,), services=(record(10, "t1"),))
    state = reduce(reduce(Snapshot(), found("a")), NodeRead(at=2.0, name="a", reading=reading))
    assert state.nodes["a"].foreign == ()


def test_history_is_bounded():
    state = Snapshot()
    for n in range(NOTICES_KEPT + 5):
        state = reduce(state, Noted(at=n, at_epoch=n, severity=Severity.INFO, text=str(n)))
        state = reduce(state, OperationChanged(at=n, operation=Operation(n, "up", "t", OperationState.DONE)))
    assert len(state.notices) == NOTICES_KEPT and state.notices[-1].text == str(NOTICES_KEPT + 4)
    assert len(state.operations) == OPERATIONS_KEPT and state.operations[-1].id == NOTICES_KEPT + 4


def test_an_operation_is_replaced_by_its_id_and_order_is_kept():
    state = Snapshot()
    for number, kind in ((1, OperationState.RUNNING), (2, OperationState.RUNNING), (1, OperationState.DONE)):
        state = reduce(state, OperationChanged(at=0, operation=Operation(number, "up", "t", kind)))
    assert [(o.id, o.state) for o in state.operations] == [(1, OperationState.DONE), (2, OperationState.RUNNING)]


def test_a_settled_question_goes_away():
    question = Question(3, QuestionKind.HOST_KEY, "a", "Trust it?")
    state = reduce(Snapshot(), QuestionAsked(at=0, question=question))
    assert state.questions == (question,)
    assert reduce(state, QuestionSettled(at=1, id=3)).questions == ()


def test_a_swarm_that_moves_on_keeps_its_place_and_only_the_last_ones_stay() -> None:
    state = Snapshot()
    for number in range(10):
        state = reduce(state, SwarmChanged(1.0, Swarm(f"m{number}", f"m{number}.gguf", 10, 1, 10)))
    state = reduce(state, SwarmChanged(2.0, Swarm("m5", "m5.gguf", 10, 1, 10, sent_by_source=7)))
    assert [swarm.id for swarm in state.swarms] == [f"m{number}" for number in range(2, 10)]
    assert state.swarms[3].sent_by_source == 7
    assert [swarm.id for swarm in reduce(state, SwarmForgotten(3.0, "m5")).swarms].count("m5") == 0
