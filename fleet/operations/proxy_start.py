"""Starting a proxy as a process of its own, on this machine or on a node: find or push its program, start it, ask it.

Its settings, keys among them, go into one file on the node that only its owner can read; they are read from fleet.yaml,
key files and variables of the machine that starts it.
"""

from __future__ import annotations

import asyncio
import os

from fleet.errors import NO_SUCH, FleetError, PlanRefused, StartFailed
from fleet.events import StartProxy
from fleet.facts import head_facts
from fleet.model import Node, ServiceKind, ServiceRecord
from fleet.nodes.services import ServiceSpec
from fleet.operations.deaths import raise_if_dead, seen_record
from fleet.operations.hands import Hands
from fleet.operations.plan import Plan, Report, Step
from fleet.operations.proxy_place import Program, PushProxy, find_program
from fleet.operations.proxy_way import StartWay
from fleet.operations.services import Start
from fleet.operations.tunnel_steps import local_node
from fleet.planning.addresses import has_address
from fleet.proxies.of_fleet import head_record, of_fleet
from fleet.proxies.ways import way_to_head
from fleet.proxy.access import check_bind, is_loopback
from fleet.proxy.client import CONTROL_FILE, ProxyClient
from fleet.proxy.exchange import ProxySettings
from fleet.proxy.settings import settings_of
from fleet.proxy.settings_file import to_json

ANSWERS_WITHIN = 30.0     # seconds: a small machine compiles what is in the pushed file at each start
LOOK_EVERY = 0.2
_ALL = ("", "0.0.0.0", "::")


async def plan_start_proxy(hands: Hands, command: StartProxy) -> Plan:
    """The Plan that starts a proxy; one without Steps when it runs already.

    Raises:
        PlanRefused: there is no such node, it has no Python 3.11, it has no such address, or it cannot reach the head.
        ConfigError: a key file cannot be read, or it would be open to a network.
        NodeError: the node does not answer.
    """
    node = _node(hands, command.node)
    settings = await asyncio.to_thread(settings_of, hands.config.proxy, os.environ, control_file=CONTROL_FILE)
    check_bind(settings.host, bool(settings.keys), settings.allow_open)
    if not (is_loopback(settings.host) or settings.host in _ALL or has_address(node, settings.host)):
        raise PlanRefused(f"The proxy is to listen on {settings.host}, which is no address of {node.name}.",
                          "Say `listen: 0.0.0.0:PORT` or an address of that node under proxy: in fleet.yaml.",
                          code="address")
    service = f"proxy-{settings.port}"
    record = seen_record(hands, node.name, service)
    if record is not None and record.alive:
        return Plan("proxy", f"{service} runs on {node.name} already (pid {record.pid})", (), node.name)
    program = await find_program(hands, node)
    steps: list[Step] = [PushProxy(hands, node.name, program)] if program.app else []
    steps += _way(hands, node)
    steps.append(StartProxyService(hands, node.name, service, settings, program))
    return Plan("proxy", f"Start the proxy on {node.name}, port {settings.port}", tuple(steps), node.name,
                _remarks(node, settings, steps))


def _node(hands: Hands, name: str) -> Node:
    nodes = hands.snapshot().nodes
    name = name or local_node(hands)
    if name not in nodes:
        raise PlanRefused(f"No node is called {name}.", f"Nodes: {', '.join(nodes) or 'none'}.", code=NO_SUCH)
    return nodes[name]


def _way(hands: Hands, node: Node) -> list[Step]:
    """What has to be there for the proxy to reach what serves now."""
    deployment = hands.snapshot().deployment
    head = seen_record(hands, deployment.head, deployment.head_service) if deployment.head else None
    if head is None or way_to_head(hands.snapshot().nodes, node.name, deployment.head, head).url:
        return []
    return [StartWay(hands, node.name, deployment.head, head)]


def _remarks(node: Node, settings: ProxySettings, steps: list[Step]) -> tuple[str, ...]:
    found = []
    if any(isinstance(step, StartWay) for step in steps):
        found.append("The head keeps to its loopback, so the proxy reaches it through this machine: while this machine "
                     "is off, it does not. With `bind:` of the head in fleet.yaml it would go directly.")
    if is_loopback(settings.host) and not node.local:
        found.append(f"It listens on the loopback of {node.name} alone. Others reach it with `listen:` and a key under "
                     "proxy: in fleet.yaml.")
    return tuple(found)


class StartProxyService(Start):
    """Write the settings, start it, wait until its control interface answers, and say what the fleet serves."""

    def __init__(self, hands: Hands, node: str, service: str, settings: ProxySettings, program: Program) -> None:
        super().__init__(hands, node)
        self.title = f"Start proxy on {node}, port {settings.port}"
        self._service, self._settings, self._program = service, settings, program

    async def do(self, report: Report) -> None:
        supervisor = self._hands.supervisor(self.node)
        path = await supervisor.write_secret(self._service, to_json(self._settings))
        record = await self.start(ServiceSpec(
            id=self._service, kind=ServiceKind.PROXY, argv=(*self._program.argv, "--settings", path),
            port=self._settings.port, bind=self._settings.host, fleet=self._hands.config.fleet,
            facts={"app": self._program.app}, log_limit=self._hands.config.log_limit), report)
        await self._answers(record)

    async def _answers(self, record: ServiceRecord) -> None:
        client = ProxyClient(self._hands.transport(self.node), record)
        try:
            async with asyncio.timeout(ANSWERS_WITHIN):
                while True:
                    try:
                        await self._tell(client)
                        return
                    except FleetError:
                        await raise_if_dead(self._hands, self.node, self._service)
                    await asyncio.sleep(LOOK_EVERY)
        except TimeoutError as error:
            raise StartFailed(f"The proxy on {self.node} runs, but its control interface did not answer within "
                              f"{ANSWERS_WITHIN:.0f} s.", f"See its log: quarterdeck logs {self.node} {self._service}."
                              ) from error
        finally:
            await client.close()

    async def _tell(self, client: ProxyClient) -> None:
        """What serves now. Who follows proxies tells them whatever changes, and the key of a head that wants one."""
        snapshot = self._hands.snapshot()
        head = head_record(snapshot)
        if head is not None and head_facts(head.facts).api_key_file:
            await client.state()
            return
        said = of_fleet(snapshot, self._hands.config, self.node)
        await client.fleet(said)

    async def undo(self, report: Report) -> None:
        await self.end(self._service, report)
        if self.begun:
            await self._hands.supervisor(self.node).remove_secret(self._service)
