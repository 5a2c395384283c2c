"""The shell command that shows or does the same as the screen.

It is pasted into a shell, and parts of it come from nodes: quoting keeps a part in one word, but not from being read
as an option, and not from a terminal that obeys what is pasted. So a user has to look like one, and control
characters are written out.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from app.present.services import Selected
from fleet.model import DeploymentState, Node, Snapshot
from fleet.text import visible

_USER = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.$-]{0,63}")


def command_for(snapshot: Snapshot, panel: str, node: Node | None, selected: Selected | None) -> str:
    """For a service its log, for a node a way into it, for the model a chat with it (or how to bring it up)."""
    if panel == "services" and selected is not None:
        if selected.service is not None:
            return _own("logs", selected.node, selected.service.record.id)
        if selected.foreign is not None:
            return _into(snapshot.nodes.get(selected.node), "ps", "-fp", str(selected.foreign.process.pid))
    if panel == "placement":
        deployment = snapshot.deployment
        if deployment.state in (DeploymentState.SERVING, DeploymentState.DEGRADED):
            return _own("chat", "Hello")
        return _own("up", *((deployment.model,) if deployment.model else ()))
    return _into(node)


def plan_command(model: str, options: tuple[str, ...]) -> str:
    """What shows the same plan in a shell; a model without a name is the fleet's own."""
    name = (*_dashes(model), visible(model)) if model else ()
    return shlex.join(("quarterdeck", "plan", *map(visible, options), *name))


def bring_up_command(model: str) -> str:
    """What brings a model up in a shell."""
    return _own("up", model)


def distribute_command(model: str, nodes: Sequence[str]) -> str:
    """What brings a model to the same machines."""
    return shlex.join(("quarterdeck", "swarm", "distribute", *_dashes(model), visible(model), "--to",
                       visible(",".join(nodes) or "NODES")))


def verify_command(model: str) -> str:
    """What checks every piece of a model's file."""
    return shlex.join(("quarterdeck", "swarm", "verify", *_dashes(model), visible(model)))


def _into(node: Node | None, *command: str) -> str:
    """An ssh command line; on this machine just the command."""
    if node is None:
        return shlex.join(command) or "quarterdeck nodes"
    if node.local or node.address is None:
        return shlex.join(command) or "quarterdeck nodes"
    user = f"{node.reading.user}@" if node.reading and _USER.fullmatch(node.reading.user) else ""
    port = ("-p", str(node.address.port)) if node.address.port != 22 else ()
    there = f"{user}{visible(node.address.host)}"
    return shlex.join(("ssh", *port, *_dashes(there), there, *command))


def _own(verb: str, *words: str) -> str:
    """A command of ours; a name that begins with a dash is told apart from an option."""
    return shlex.join(("quarterdeck", verb, *_dashes(*words), *map(visible, words)))


def _dashes(*words: str) -> tuple[str, ...]:
    return ("--",) if any(word.startswith("-") for word in words) else ()
