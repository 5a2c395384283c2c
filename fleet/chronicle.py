"""What of a change is worth a line in the flight recorder. Pure: two Snapshots in, sentences out."""

from __future__ import annotations

from collections.abc import Iterator

from fleet.model import DeploymentState, NodeState, OperationState, ServiceState, Severity, Snapshot
from fleet.planning.link_alarm import alarm

Line = tuple[Severity, str, str]     # severity, sentence, node

GOOD_NODE = (NodeState.UP, NodeState.SEEN, NodeState.CONNECTING)
BAD_SERVICE = (ServiceState.FAILED, ServiceState.STUCK)
BAD_DEPLOYMENT = (DeploymentState.BROKEN, DeploymentState.DEGRADED)
ENDED = {OperationState.DONE: Severity.INFO, OperationState.FAILED: Severity.ERROR,
         OperationState.CANCELLED: Severity.WARNING, OperationState.REFUSED: Severity.WARNING}


def notices(before: Snapshot, after: Snapshot) -> Iterator[Line]:
    """The lines that this change makes."""
    if after.nodes is not before.nodes:
        yield from _node_lines(before, after)
    if after.deployment.state is not before.deployment.state:
        yield from _deployment_line(before, after)
    if after.operations is not before.operations:
        yield from _operation_lines(before, after)
    if after.links is not before.links:
        yield from _link_lines(before, after)
    if after.config_problems and after.config_problems != before.config_problems:
        for problem in after.config_problems:
            yield Severity.ERROR, f"Not in force: {problem}", ""


def _node_lines(before: Snapshot, after: Snapshot) -> Iterator[Line]:
    for name, node in after.nodes.items():
        earlier = before.nodes.get(name)
        if earlier is node:
            continue
        if earlier is None or earlier.state is not node.state:
            severity = Severity.INFO if node.state in GOOD_NODE else Severity.WARNING
            why = f": {node.problem.what}" if node.problem else ""
            yield severity, f"{name} is {node.state.value}{why}", name
        known = {s.record.id: s.state for s in earlier.services} if earlier else {}
        for service in node.services:
            if known.get(service.record.id) is service.state:
                continue
            severity = Severity.ERROR if service.state in BAD_SERVICE else Severity.INFO
            why = f": {service.problem.what}" if service.problem else ""
            yield severity, f"{service.record.id} on {name} is {service.state.value}{why}", name
    for name in before.nodes.keys() - after.nodes.keys():
        yield Severity.INFO, f"{name} is no longer part of the fleet", name


def _deployment_line(before: Snapshot, after: Snapshot) -> Iterator[Line]:
    deployment = after.deployment
    severity = Severity.ERROR if deployment.state in BAD_DEPLOYMENT else Severity.INFO
    what = deployment.model or before.deployment.model or "the model"
    why = f": {deployment.problem.what}" if deployment.problem else ""
    yield severity, f"{what} is {deployment.state.value}{why}", deployment.head


def _link_lines(before: Snapshot, after: Snapshot) -> Iterator[Line]:
    """A link that is worse than it was, or than its interfaces promise."""
    for link in after.links:
        if before.link(link.head, link.worker) is not link and (sentence := alarm(link, after.nodes)):
            yield Severity.WARNING, sentence, link.worker


def _operation_lines(before: Snapshot, after: Snapshot) -> Iterator[Line]:
    states = {operation.id: operation.state for operation in before.operations}
    for operation in after.operations:
        if states.get(operation.id) is operation.state:
            continue
        if operation.state is OperationState.RUNNING:
            yield Severity.INFO, f"{operation.title}: begun", ""
        elif operation.state in ENDED:
            why = f": {operation.problem.what}" if operation.problem else ""
            yield ENDED[operation.state], f"{operation.title}: {operation.state.value}{why}", ""
