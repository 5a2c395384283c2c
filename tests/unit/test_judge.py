"""What is true of services and of the model served, by the evidence."""

from dataclasses import replace

from fleet.facts import HeadFacts, WorkerRef, head_facts
from fleet.judge import Evidence, HeadEvidence, judge_deployment, judge_services
from fleet.model import (
    Deployment,
    DeploymentState,
    Node,
    NodeReading,
    NodeState,
    Placement,
    PlacementState,
    Problem,
    ServiceKind,
    ServiceRecord,
    ServiceState,
    Share,
    Socket,
)

NO_EVIDENCE = Evidence({}, {})
FACTS = HeadFacts("gemma", "/m/gemma.gguf", 4096, (WorkerRef("bolt", "worker-50052", "10.0.0.3:50052"),),
                  (Share("bolt", "RPC0", "10.0.0.3:50052", 1.0, 19),))


def worker(*, alive=True, exit_status=None, stopping=False, pid=20) -> ServiceRecord:
    return ServiceRecord("worker-50052", ServiceKind.WORKER, pid, "t", ("ggml-rpc-server",), 50052, "10.0.0.3", alive,
                         1.0, "/s", exit_status, stopping)


def head(*, alive=True, exit_status=None, stopping=False, facts=FACTS) -> ServiceRecord:
    return ServiceRecord("coordinator-8080", ServiceKind.COORDINATOR, 10, "t", ("llama-server",), 8080, "127.0.0.1",
                         alive, 2.0, "/s", exit_status, stopping, facts=facts.to_json())


def listening(port: int) -> Socket:
    return Socket("10.0.0.3", port, listening=True, pid=20)


HELD = (listening(50052), Socket("10.0.0.3", 50052, "10.0.0.2", 41000, pid=20))
READY = HeadEvidence(ServiceState.READY, since=3.0, slots_busy=0, slots_total=4)


def fleet(*, worker_record=None, sockets=HELD, head_record=None, evidence=NO_EVIDENCE, bolt=NodeState.UP, now=100.0,
          before=None):
    """Two nodes judged as the engine does it: services first, then the deployment."""
    worker_record = worker_record or worker()
    nodes = {
        "atlas": Node("atlas", NodeState.UP, reading=NodeReading(services=(head_record or head(),))),
        "bolt": Node("bolt", bolt, reading=NodeReading(services=(worker_record,), sockets=sockets)),
    }
    if before:
        nodes = {name: replace(node, services=before[name].services) for name, node in nodes.items()}
    nodes = {name: replace(node, services=judge_services(node, evidence, now)) for name, node in nodes.items()}
    return nodes, judge_deployment(nodes, evidence, Deployment(), now)


def head_is(evidence: HeadEvidence) -> Evidence:
    return Evidence({("atlas", "coordinator-8080", 10): evidence}, {})


def test_a_worker_with_a_client_is_busy_and_says_whose():
    nodes, _ = fleet()
    (service,) = nodes["bolt"].services
    assert (service.state, service.held_by) == (ServiceState.BUSY, "10.0.0.2:41000")


def test_a_worker_that_does_not_listen_yet_is_starting():
    nodes, _ = fleet(sockets=())
    assert nodes["bolt"].services[0].state is ServiceState.STARTING


def test_a_relay_has_no_port_of_its_own_and_is_ready_while_it_lives():
    relay = replace(worker(), id="relay-50152", kind=ServiceKind.RELAY, port=0)
    nodes, _ = fleet(worker_record=relay, sockets=())
    assert nodes["bolt"].services[0].state is ServiceState.READY


def test_all_in_place_is_serving():
    _, deployment = fleet(evidence=head_is(READY))
    assert (deployment.state, deployment.endpoint) == (DeploymentState.SERVING, "http://127.0.0.1:8080")


def test_a_dead_worker_breaks_a_head_that_still_looks_healthy():
    _, deployment = fleet(worker_record=worker(alive=False, exit_status=137), evidence=head_is(READY))
    assert deployment.state is DeploymentState.BROKEN
    assert deployment.problem.code == "worker-dead"


def test_a_worker_restarted_under_its_head_is_told_once_readings_had_time_to_agree():
    free = (listening(50052),)
    nodes, deployment = fleet(sockets=free, evidence=head_is(READY), now=100.0)
    assert deployment.state is DeploymentState.SERVING
    _, deployment = fleet(sockets=free, evidence=head_is(READY), now=106.0, before=nodes)
    assert (deployment.state, deployment.problem.code) == (DeploymentState.BROKEN, "worker-detached")


def test_a_worker_on_a_node_that_is_lost_breaks_the_deployment():
    for state in (NodeState.UNREACHABLE, NodeState.SILENT, NodeState.GONE):
        _, deployment = fleet(bolt=state, evidence=head_is(READY))
        assert (deployment.state, deployment.problem.code) == (DeploymentState.BROKEN, "worker-unseen")


def test_healthy_but_local_is_degraded_not_serving():
    local = Placement(FACTS.planned, (Share("atlas", "CPU", model_bytes=1),), PlacementState.LOCAL,
                      Problem("local", "All of it sits on atlas."))
    _, deployment = fleet(evidence=head_is(replace(READY, placement=local)))
    assert (deployment.state, deployment.problem.code) == (DeploymentState.DEGRADED, "local")


def test_a_head_that_was_stopped_is_down_and_one_that_died_is_broken():
    _, deployment = fleet(head_record=head(alive=False, stopping=True))
    assert deployment.state is DeploymentState.DOWN
    why = Evidence({}, {("atlas", "coordinator-8080", 10): Problem("sigabrt", "Its worker crashed.")})
    _, deployment = fleet(head_record=head(alive=False, exit_status=134), evidence=why)
    assert (deployment.state, deployment.problem.code) == (DeploymentState.BROKEN, "sigabrt")


def test_evidence_of_another_life_of_a_head_does_not_count():
    stale = Evidence({("atlas", "coordinator-8080", 9): READY}, {})
    _, deployment = fleet(evidence=stale)
    assert deployment.state is DeploymentState.STARTING


def test_facts_read_back_from_a_node_survive_anything():
    assert head_facts(FACTS.to_json()) == FACTS
    hostile = {"model": 7, "planned": [{"node": "x" * 9999, "layers": -3, "fraction": True}, 4], "workers": "no",
               "context": 1.5, "real": None}
    facts = head_facts(hostile)
    assert facts.model == "" and facts.context is None and facts.workers == ()
    assert len(facts.planned[0].node) == 1024 and facts.planned[0].layers is None


def test_a_worker_that_was_restarted_under_its_head_is_told_at_once():
    """The head's facts say which life of the worker it is connected to."""
    ref = WorkerRef("bolt", "worker-50052", "10.0.0.3:50052", pid=20)
    facts = replace(FACTS, workers=(ref,))
    _, deployment = fleet(head_record=head(facts=facts), evidence=head_is(READY))
    assert deployment.state is DeploymentState.SERVING
    for sockets in (HELD, (listening(50052),)):
        _, deployment = fleet(head_record=head(facts=facts), evidence=head_is(READY), worker_record=worker(pid=21),
                              sockets=sockets)
        assert (deployment.state, deployment.problem.code) == (DeploymentState.BROKEN, "worker-detached")


def test_a_worker_that_holds_nothing_is_not_missed():
    """A head that took the whole model itself is degraded by that, and by nothing that becomes of its workers."""
    local = Placement(FACTS.planned, (Share("atlas", "CPU", model_bytes=1 << 28),), PlacementState.LOCAL,
                      Problem("healthy-but-local", "It holds all itself."))
    evidence = head_is(replace(READY, placement=local))
    for changes in ({"sockets": (listening(50052),)}, {"worker_record": worker(alive=False, exit_status=137)},
                    {"bolt": NodeState.UNREACHABLE}):
        _, deployment = fleet(evidence=evidence, **changes)
        assert (deployment.state, deployment.problem.code) == (DeploymentState.DEGRADED, "healthy-but-local")


def test_a_head_of_another_fleet_is_not_what_we_serve():
    theirs = replace(head(), fleet="other")
    nodes, _ = fleet(head_record=theirs, evidence=head_is(READY))
    assert judge_deployment(nodes, head_is(READY), Deployment(), 100.0, "ours").state is DeploymentState.DOWN
    assert judge_deployment(nodes, head_is(READY), Deployment(), 100.0, "other").state is DeploymentState.SERVING
    ours = replace(theirs, fleet="")
    nodes, _ = fleet(head_record=ours, evidence=head_is(READY))
    assert judge_deployment(nodes, head_is(READY), Deployment(), 100.0, "ours").state is DeploymentState.SERVING


def test_what_a_head_knows_of_its_workers_survives_being_written_down():
    facts = replace(FACTS, workers=(WorkerRef("bolt", "worker-50052", "10.0.0.3:50052", 20),))
    assert head_facts(facts.to_json()) == facts
    assert head_facts({"workers": [{"node": "bolt", "pid": "x"}, {"pid": -4}, 7]}).workers == (
        WorkerRef("bolt", "", "", 0), WorkerRef("", "", "", 0))
