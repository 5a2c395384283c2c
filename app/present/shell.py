"""The shell command that shows or does the same as the screen."""

from __future__ import annotations

import shlex

from app.present.services import Selected
from fleet.model import DeploymentState, Node, Snapshot


def command_for(snapshot: Snapshot, panel: str, node: Node | None, selected: Selected | None) -> str:
    """For a service its log, for a node a way into it, for the model a chat with it (or how to bring it up)."""
    if panel == "services" and selected is not None:
        if selected.service is not None:
            return shlex.join(("quarterdeck", "logs", selected.node, selected.service.record.id))
        if selected.foreign is not None:
            return _into(snapshot.nodes.get(selected.node), "ps", "-fp", str(selected.foreign.process.pid))
    if panel == "placement":
        deployment = snapshot.deployment
        if deployment.state in (DeploymentState.SERVING, DeploymentState.DEGRADED):
            return shlex.join(("quarterdeck", "chat", "Hello"))
        return shlex.join(("quarterdeck", "up", *((deployment.model,) if deployment.model else ())))
    return _into(node)


def _into(node: Node | None, *command: str) -> str:
    """An ssh command line; on this machine just the command."""
    if node is None:
        return shlex.join(command) or "quarterdeck nodes"
    if node.local or node.address is None:
        return shlex.join(command) or "quarterdeck nodes"
    user = f"{node.reading.user}@" if node.reading and node.reading.user else ""
    port = ("-p", str(node.address.port)) if node.address.port != 22 else ()
    return shlex.join(("ssh", *port, f"{user}{node.address.host}", *command))
