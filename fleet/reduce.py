"""The pure heart: (Snapshot, Event) -> Snapshot. No clock, no I/O, one small function an event."""

from __future__ import annotations

import re
from dataclasses import replace

from fleet.events import (
    CockpitSeen,
    ConfigLoaded,
    ConfigRejected,
    DeploymentJudged,
    DiscoveryReported,
    Event,
    LinksMeasured,
    NodeForgotten,
    NodeFound,
    NodeLeft,
    NodeRead,
    NodeStateChanged,
    Noted,
    OperationChanged,
    ProxiesSeen,
    QuestionAsked,
    QuestionSettled,
    ServicesJudged,
    SpeedsObserved,
    SwarmChanged,
    SwarmForgotten,
)
from fleet.model import ForeignProcess, Link, Node, NodeState, Notice, ServiceKind, Snapshot
from fleet.planning.observed import merged

NOTICES_KEPT = 200
OPERATIONS_KEPT = 20
SWARMS_KEPT = 8


def reduce(state: Snapshot, event: Event) -> Snapshot:
    """The Snapshot after `event`. Equal input gives equal output; nothing is changed in place."""
    match event:
        case ConfigLoaded():
            return _config_loaded(state, event)
        case ConfigRejected(path=path, problems=problems):
            return replace(state, config_path=path, config_problems=problems)
        case DiscoveryReported(problems=problems):
            return replace(state, discovery=problems)
        case NodeFound():
            return _node_found(state, event)
        case NodeForgotten(name=name):
            return replace(state, nodes={k: v for k, v in state.nodes.items() if k != name})
        case NodeStateChanged():
            return _node_state_changed(state, event)
        case NodeLeft(at=at, name=name, problem=problem):
            node = state.nodes.get(name)
            if node is None or node.state in (NodeState.UP, NodeState.GONE):
                return state
            return _with_node(state, replace(node, state=NodeState.GONE, since=at, problem=problem))
        case NodeRead():
            return _node_read(state, event)
        case ServicesJudged(node=name, services=services):
            node = state.nodes.get(name)
            return state if node is None else _with_node(state, replace(node, services=services))
        case DeploymentJudged(deployment=deployment):
            return replace(state, deployment=deployment)
        case SpeedsObserved(node=name, speeds=speeds):
            node = state.nodes.get(name)
            return state if node is None else _with_node(state, replace(node, speeds=merged(node.speeds, speeds)))
        case LinksMeasured(links=links):
            return _links_measured(state, links)
        case ProxiesSeen(proxies=proxies):
            return replace(state, proxies=proxies)
        case CockpitSeen(holder=holder):
            return state if state.other_cockpit == holder else replace(state, other_cockpit=holder)
        case SwarmChanged(swarm=swarm):
            known = {each.id: each for each in state.swarms} | {swarm.id: swarm}
            return replace(state, swarms=tuple(known.values())[-SWARMS_KEPT:])
        case SwarmForgotten(id=gone):
            return replace(state, swarms=tuple(swarm for swarm in state.swarms if swarm.id != gone))
        case OperationChanged():
            return _operation_changed(state, event)
        case QuestionAsked(question=question):
            return replace(state, questions=(*state.questions, question))
        case QuestionSettled(id=settled):
            return replace(state, questions=tuple(q for q in state.questions if q.id != settled))
        case Noted(at=at, at_epoch=at_epoch, severity=severity, text=text, node=node):
            notice = Notice(at, at_epoch, severity, text, node)
            return replace(state, notices=(*state.notices, notice)[-NOTICES_KEPT:])
    raise TypeError(f"no such event: {event!r}")


def _with_node(state: Snapshot, node: Node) -> Snapshot:
    """The state with one node put in; nodes stay sorted: this machine first, then by name, 2 before 10."""
    before = state.nodes.get(node.name)
    nodes = {**state.nodes, node.name: node}
    if before is None or before.local is not node.local:     # else it keeps its place: nearly every event
        nodes = {n.name: n for n in sorted(nodes.values(), key=_place)}
    return replace(state, nodes=nodes)


def _place(node: Node) -> tuple[object, ...]:
    parts = re.split(r"(\d+)", node.name.lower())
    return not node.local, [(int(part), "") if part.isdecimal() else (-1, part) for part in parts], node.name


def _config_loaded(state: Snapshot, event: ConfigLoaded) -> Snapshot:
    nodes = {name: replace(node, configured=name in event.names) for name, node in state.nodes.items()}
    return replace(state, fleet=event.fleet, config_path=event.path, config_problems=(), refresh=event.refresh,
                   nodes=nodes)


def _node_found(state: Snapshot, event: NodeFound) -> Snapshot:
    node = state.nodes.get(event.name) or Node(name=event.name, since=event.at)
    if node.state is NodeState.GONE:
        node = replace(node, state=NodeState.SEEN, since=event.at, problem=None)
    return _with_node(state, replace(node, addresses=event.addresses, sources=event.sources, aliases=event.aliases,
                                     local=event.local, configured=event.configured))


def _node_state_changed(state: Snapshot, event: NodeStateChanged) -> Snapshot:
    node = state.nodes.get(event.name)
    if node is None:
        return state
    return _with_node(state, replace(
        node,
        state=event.state,
        since=node.since if node.state is event.state else event.at,
        problem=event.problem,
        address=event.address or node.address,
        host_key=event.host_key or node.host_key,
        attempts=event.attempts,
        next_try=event.next_try,
    ))


def _node_read(state: Snapshot, event: NodeRead) -> Snapshot:
    node = state.nodes.get(event.name)
    if node is None:
        return state
    return _with_node(state, replace(
        node,
        reading=event.reading,
        read_at=event.at,
        round_trip=event.round_trip if event.round_trip is not None else node.round_trip,
        foreign=_foreign(event),
    ))


PROGRAM_KINDS = {"ggml-rpc-server": ServiceKind.WORKER, "rpc-server": ServiceKind.WORKER,
                 "llama-server": ServiceKind.COORDINATOR}


def _foreign(event: NodeRead) -> tuple[ForeignProcess, ...]:
    """Processes of engines that run and that no pid file of ours accounts for; zombies do not run."""
    ours = {(record.pid, record.start_time) for record in event.reading.services}
    parents = {record.pid for record in event.reading.services if record.alive}   # a wrapper that did not exec
    listening = {socket.pid: socket for socket in event.reading.sockets if socket.listening and socket.pid}
    foreign = []
    for process in event.reading.processes:
        if (process.pid, process.start_time) in ours or process.parent in parents or process.is_zombie:
            continue
        kind = PROGRAM_KINDS.get(process.argv[0].rpartition("/")[2]) if process.argv else None
        socket = listening.get(process.pid)
        foreign.append(ForeignProcess(process, kind, socket.local_port if socket else None,
                                      socket.local_host if socket else ""))
    return tuple(foreign)


def _links_measured(state: Snapshot, links: tuple[Link, ...]) -> Snapshot:
    """The best that was seen of a link stays known."""
    known = {(link.head, link.worker): link for link in state.links}
    for link in links:
        before = known.get((link.head, link.worker))
        best = max(link.bytes_per_second, before.best if before else 0.0)
        known[link.head, link.worker] = replace(link, best=best)
    return replace(state, links=tuple(known.values()))


def _operation_changed(state: Snapshot, event: OperationChanged) -> Snapshot:
    others = tuple(o for o in state.operations if o.id != event.operation.id)
    merged = sorted((*others, event.operation), key=lambda o: o.id)
    return replace(state, operations=tuple(merged[-OPERATIONS_KEPT:]))
