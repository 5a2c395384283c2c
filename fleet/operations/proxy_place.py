"""What runs a proxy on a node: the Quarterdeck that is installed there, or our own code, pushed as one file."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from functools import cache

from fleet.model import Node, ServiceKind
from fleet.nodes.apps import Apps
from fleet.nodes.pythons import choose_python, find_pythons
from fleet.operations.hands import Hands, node_of
from fleet.operations.plan import Report, Step
from fleet.planning.choose import node_config
from fleet.proxy import zipapp


@dataclass
class Program:
    """How a proxy is started on a node. `argv` is whole when `app` is "", or has been pushed."""

    python: str                 # absolute path on the node
    app: str = ""               # name of our file; "" = Quarterdeck is installed for that Python
    path: str = ""              # where that file lies on the node, once it is known to be there

    @property
    def argv(self) -> tuple[str, ...]:
        """The command, without the proxy's own words."""
        # -P: what lies in the working directory is no module. The file gets none of the node's packages either.
        return (self.python, "-I", "-S", self.path) if self.app else (self.python, "-P", "-m", "fleet.proxy")


async def find_program(hands: Hands, node: Node) -> Program:
    """What a proxy would run on there; nothing is pushed yet.

    Raises:
        PlanRefused: the node has no Python 3.11.
        NodeError: it does not answer.
    """
    if node.local:
        return Program(sys.executable)
    pythons = await find_pythons(hands.transport(node.name))
    ours = pythons.with_code(await asyncio.to_thread(zipapp.own_code))
    if ours:
        return Program(ours)
    python = choose_python(node.name, pythons, zipapp.OLDEST, "The proxy")
    name, _ = await asyncio.to_thread(_built)
    return Program(python.path, name)


class PushProxy(Step):
    """Have the proxy's one file on a node. It stays when a later step fails: it is code, and is checked by its hash."""

    def __init__(self, hands: Hands, node: str, program: Program) -> None:
        self.title = f"Have the proxy's program on {node}"
        self.node = node
        self._hands, self._program = hands, program

    async def do(self, report: Report) -> None:
        _, data = await asyncio.to_thread(_built)
        apps = apps_of(self._hands, self.node)
        self._program.path, sent = await apps.push(self._program.app, data, self._program.python)
        report(f"{len(data) / 1e6:.1f} MB sent" if sent else "it is there already")

    async def undo(self, report: Report) -> None:
        await remove_apps(self._hands, self.node)


def apps_of(hands: Hands, node: str) -> Apps:
    """The folder of our own code on a node."""
    return Apps(hands.transport(node), node_config(hands.config, node_of(hands, node)).state_dir)


async def remove_apps(hands: Hands, node: str) -> None:
    """Take away every program of a proxy that was pushed to a node and that none runs from any more."""
    records = await hands.supervisor(node).records()
    used = {word.rpartition("/")[2] for record in records if record.kind is ServiceKind.PROXY and record.alive
            for word in record.argv}
    await apps_of(hands, node).remove_others("quarterdeck-proxy-", used)


@cache
def _built() -> tuple[str, bytes]:
    data = zipapp.build()
    return zipapp.name(data), data
