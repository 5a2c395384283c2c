"""What is true of services and of the model that is served, by all the evidence there is. Pure.

Health is not placement, and a pid is not a service: a head that answers `/health` while its worker is dead, or that
silently took every layer itself, is not serving as planned, and that is what is said here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from fleet.facts import HeadFacts, head_facts
from fleet.model import (
    Deployment,
    DeploymentState,
    Node,
    NodeState,
    Placement,
    PlacementState,
    Problem,
    Service,
    ServiceKind,
    ServiceRecord,
    ServiceState,
    Socket,
)

SETTLE = 5.0   # seconds: readings of two nodes are taken at different moments, so a disagreement must last this long


@dataclass(frozen=True, slots=True)
class HeadEvidence:
    """What a head says of itself, over HTTP and in its log."""

    state: ServiceState                    # STARTING, LOADING, READY, BUSY or STUCK
    since: float                           # when this state began
    detail: str = ""
    progress: float | None = None
    slots_busy: int | None = None
    slots_total: int | None = None
    tokens_per_second: float | None = None
    placement: Placement = Placement()     # judged from its log
    counted: tuple[float, float] = (0.0, 0.0)   # tokens that it has written, seconds that these took


Key = tuple[str, str, int]                 # node, service id, pid: evidence of another life of it does not count


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that watchers know beyond the probes."""

    heads: Mapping[Key, HeadEvidence]
    deaths: Mapping[Key, Problem]          # why a process ended, by its exit status and last log lines


def key_of(node: str, record: ServiceRecord) -> Key:
    """What evidence about this life of a service is filed under."""
    return node, record.id, record.pid


def judge_services(node: Node, evidence: Evidence, now: float) -> tuple[Service, ...]:
    """The services of a node, each with its state; `since` is kept while a state lasts."""
    if node.reading is None:
        return ()
    before = {(service.record.id, service.record.pid): service for service in node.services}
    judged = []
    for record in node.reading.services:
        service = _judge(node, record, evidence, now)
        earlier = before.get((record.id, record.pid))
        if earlier is not None and earlier.state is service.state:
            service = replace(service, since=earlier.since)
        judged.append(service)
    return tuple(judged)


def _judge(node: Node, record: ServiceRecord, evidence: Evidence, now: float) -> Service:
    service = Service(record, node.name, ServiceState.UNKNOWN, now)
    if node.state is not NodeState.UP:
        return replace(service, detail="its node cannot be seen")
    if not record.alive:
        return _ended(service, evidence)
    if record.stopping:
        return replace(service, state=ServiceState.STOPPING)
    if record.kind is ServiceKind.COORDINATOR:
        return _judge_head(service, evidence.heads.get(key_of(node.name, record)))
    return _judge_listener(service, node.reading.sockets if node.reading else ())


def _ended(service: Service, evidence: Evidence) -> Service:
    record = service.record
    if record.stopping:
        return replace(service, state=ServiceState.EXITED, detail="stopped")
    problem = evidence.deaths.get(key_of(service.node, record))
    if problem is None:
        how = "nobody saw how" if record.exit_status is None else f"exit status {record.exit_status}"
        problem = Problem("ended", f"{record.id} on {service.node} ended ({how}).", "Its log says more.")
    return replace(service, state=ServiceState.FAILED, problem=problem,
                   detail="ended" if record.exit_status is None else f"exit {record.exit_status}")


def _judge_head(service: Service, evidence: HeadEvidence | None) -> Service:
    if evidence is None:
        return replace(service, state=ServiceState.STARTING)
    problem = evidence.placement.problem
    return replace(service, state=evidence.state, since=evidence.since, detail=evidence.detail,
                   progress=evidence.progress, slots_busy=evidence.slots_busy, slots_total=evidence.slots_total,
                   tokens_per_second=evidence.tokens_per_second, problem=problem)


def _judge_listener(service: Service, sockets: tuple[Socket, ...]) -> Service:
    """A worker (or relay): listening is ready, one established client is busy."""
    port = service.record.port
    if not port:      # a relay listens on the head, a stage where it likes: that it lives is all there is to see
        return replace(service, state=ServiceState.READY)
    if not any(socket.listening and socket.local_port == port for socket in sockets):
        return replace(service, state=ServiceState.STARTING)
    client = next((s for s in sockets if not s.listening and s.local_port == port), None)
    if client is None or service.record.kind is not ServiceKind.WORKER:
        return replace(service, state=ServiceState.READY)
    return replace(service, state=ServiceState.BUSY, held_by=f"{client.peer_host}:{client.peer_port}",
                   detail=f"slot held by {client.peer_host}")


# ---------------------------------------------------------------------------------------------


def judge_deployment(nodes: Mapping[str, Node], evidence: Evidence, before: Deployment, now: float,
                     fleet: str = "", *, heads_on: Collection[str] | None = None) -> Deployment:
    """What the fleet serves. The head that lives counts; without one, the head that was started last.

    Heads of another fleet than `fleet` ("" = any) are somebody else's, though they run on the same nodes. Of nodes
    that may be no head (`heads_on`: those that may; None = all) none counts: a node writes its pid files itself, and
    whoever is a head is told what people ask.
    """
    heads = [service for node in nodes.values() for service in node.services
             if (heads_on is None or node.name in heads_on)
             and service.record.kind is ServiceKind.COORDINATOR and (not fleet or service.record.fleet in ("", fleet))]
    if not heads:
        return _keep_since(Deployment(state=DeploymentState.DOWN), before, now)
    head = max(heads, key=lambda s: (s.record.alive, not s.record.stopping, s.record.started_epoch))
    facts = head_facts(head.record.facts)
    seen = evidence.heads.get(key_of(head.node, head.record))
    placement = seen.placement if seen and seen.placement.real else _remembered(facts)
    state, problem = _judge_head_and_workers(head, facts, placement, nodes, now)
    return _keep_since(Deployment(
        state=state, model=facts.model, model_path=facts.model_path, head=head.node, head_service=head.record.id,
        endpoint=f"http://{_dialled(head.record.bind)}:{head.record.port}",
        workers=tuple((worker.node, worker.service) for worker in facts.workers),
        context=facts.context, placement=placement, problem=problem, recent=facts.recent,
    ), before, now)


def _dialled(bind: str) -> str:
    """The address to dial for an address that was bound."""
    return {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(bind, f"[{bind}]" if ":" in bind else bind)


def _remembered(facts: HeadFacts) -> Placement:
    """The placement that was verified at bring-up, when the log of the load is gone."""
    if not facts.planned:
        return Placement(real=facts.real)
    return Placement(facts.planned, facts.real, PlacementState.MATCHES if facts.real else PlacementState.UNKNOWN)


def _keep_since(deployment: Deployment, before: Deployment, now: float) -> Deployment:
    same = (deployment.state, deployment.head, deployment.model) == (before.state, before.head, before.model)
    return replace(deployment, since=before.since if same else now)


def _judge_head_and_workers(head: Service, facts: HeadFacts, placement: Placement, nodes: Mapping[str, Node],
                            now: float) -> tuple[DeploymentState, Problem | None]:
    match head.state:
        case ServiceState.EXITED:
            return DeploymentState.DOWN, None
        case ServiceState.STOPPING:
            return DeploymentState.STOPPING, None
        case ServiceState.FAILED:
            return DeploymentState.BROKEN, head.problem
        case ServiceState.UNKNOWN:
            return DeploymentState.BROKEN, Problem(
                "head-unseen", f"The node of the head, {head.node}, does not answer: what it serves cannot be seen.",
                f"See what {head.node} says of itself in the node list.")
    if (problem := _worker_problem(head, facts, placement, nodes, now)) is not None:
        return DeploymentState.BROKEN, problem
    match head.state:
        case ServiceState.STARTING:
            return DeploymentState.STARTING, None
        case ServiceState.LOADING:
            return DeploymentState.LOADING, None
        case ServiceState.STUCK:
            return DeploymentState.BROKEN, head.problem or Problem(
                "head-stuck", f"The head on {head.node} runs but does not move.", "Bring the model up again.")
    if placement.state in (PlacementState.MATCHES, PlacementState.UNKNOWN):
        return DeploymentState.SERVING, None
    return DeploymentState.DEGRADED, placement.problem


def _worker_problem(head: Service, facts: HeadFacts, placement: Placement, nodes: Mapping[str, Node],
                    now: float) -> Problem | None:
    """Why the head cannot compute, though it may look healthy; None when every worker is in place.

    A worker that is known to hold nothing of the model is not missed by the head, whatever becomes of it.
    """
    again = "Bring the model up again: the head is restarted with the workers that are there."
    used = {share.endpoint for share in placement.real if share.model_bytes or share.kv_bytes}
    for worker in facts.workers:
        node = nodes.get(worker.node)
        if node is None or not worker.service or (placement.real and worker.endpoint not in used):
            continue
        if node.state in (NodeState.UNREACHABLE, NodeState.REFUSED, NodeState.GONE, NodeState.SILENT):
            return Problem("worker-unseen", f"{worker.node} does not answer; the head waits for its worker for ever.",
                           again)
        service = next((s for s in node.services if s.record.id == worker.service), None)
        if node.state is not NodeState.UP:
            continue
        if service is None or not service.record.alive:
            why = service.problem.what if service and service.problem else f"{worker.service} on {worker.node} is gone."
            return Problem("worker-dead", f"{why} The head does not know it yet: its next request fails.", again)
        answers = head.state in (ServiceState.READY, ServiceState.BUSY)
        free = (answers and service.state is ServiceState.READY and service.record.kind is ServiceKind.WORKER
                and now - max(service.since, head.since) > SETTLE)
        if free or worker.pid not in (0, service.record.pid):
            return Problem("worker-detached", f"{worker.service} on {worker.node} runs, but the head is not connected "
                           "to it: it was restarted under the head, or never used.", again)
    return None
