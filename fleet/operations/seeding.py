"""Starting a seeder on this machine as a process of its own."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from fleet.errors import PlanRefused, ServiceError
from fleet.events import StartSeeder
from fleet.model import ServiceKind, ServiceRecord
from fleet.node.access import Access, check_exposure, is_loopback
from fleet.node.running import manifest_of
from fleet.node.trouble import SwarmError
from fleet.nodes.services import ServiceSpec
from fleet.operations.deaths import raise_if_dead, seen_record
from fleet.operations.hands import Hands
from fleet.operations.plan import Plan, Report, Step
from fleet.operations.services import Start
from fleet.operations.tunnel_steps import local_node
from fleet.swarm.told import Told

LOOK_EVERY = 0.3
LOG_LIMIT = 4 << 20      # bytes


def plan_start_seeder(hands: Hands, command: StartSeeder) -> Plan:
    """The Plan that starts it; one without Steps when it runs already.

    Raises:
        PlanRefused: a model has no manifest, anybody could fetch it, or the port is another seeder's.
    """
    node, service = local_node(hands), f"seeder-{command.port}"
    try:
        check_exposure(command.host, Access(command.token, command.allowed), command.open)
        manifests = [manifest_of(Path(path)) for path in command.paths]
    except SwarmError as error:
        raise PlanRefused(error.what, error.remedy, code=error.code) from error
    names = ", ".join(manifest.name for manifest in manifests)
    record = seen_record(hands, node, service)
    if record is not None and record.alive:
        if tuple(record.facts.get("swarms") or ()) == tuple(manifest.id for manifest in manifests):
            return Plan("seed", f"{service} gives {names} away already (pid {record.pid})", (), node)
        raise PlanRefused(f"{service} runs and gives {record.facts.get('name') or 'something else'} away.",
                          f"Choose another --port, or stop it first: quarterdeck stop {node} {service}.", code="port")
    step: Step = StartSeederService(hands, node, service, command, [manifest.id for manifest in manifests], names)
    remarks = () if is_loopback(command.host) else (
        f"It listens on {command.host}, so other machines of the network can ask it.",)
    return Plan("seed", f"Give {names} away on port {command.port}", (step,), node, remarks)


class StartSeederService(Start):
    """Start it and wait until it has checked its models and serves them."""

    def __init__(self, hands: Hands, node: str, service: str, command: StartSeeder, ids: list[str],
                 names: str) -> None:
        super().__init__(hands, node)
        self.title = f"Start {service} on {node}"
        self._service, self._command, self._ids, self._names = service, command, ids, names

    async def do(self, report: Report) -> None:
        command, supervisor = self._command, self._hands.supervisor(self.node)
        secret = ""
        if command.token:
            secret = await supervisor.write_secret(self._service, command.token.encode())
        facts = {"swarms": self._ids, "name": self._names[:200], "token_file": secret}
        await self.start(ServiceSpec(
            id=self._service, kind=ServiceKind.SEEDER, argv=self._argv(secret), port=command.port, bind=command.host,
            fleet=self._hands.config.fleet, facts=facts, log_limit=LOG_LIMIT), report)
        await self._serves(report)

    def _argv(self, secret: str) -> tuple[str, ...]:
        command, discovery = self._command, self._hands.config.discovery
        # -P: what lies in the working directory is no module
        argv = [sys.executable, "-P", "-m", "fleet.swarm", "seed", *map(os.path.abspath, command.paths),
                "--host", command.host, "--port", str(command.port)]
        if discovery.mdns and discovery.announce and not is_loopback(command.host):
            argv.append("--announce")
            for interface in discovery.interfaces:
                argv += ["--interface", interface]
        if secret:
            argv += ["--token-file", secret]
        for network in command.allowed:
            argv += ["--allowed-ips", network]
        if command.open:
            argv.append("--open")
        for word, rate in (("--limit-up", command.limit), ("--limit-up-peer", command.limit_each)):
            if rate > 0:
                argv += [word, str(int(rate))]
        return tuple(argv)

    async def _serves(self, report: Report) -> None:
        """Models whose files changed are hashed anew before anything is served; that takes as long as it takes."""
        supervisor, told, offset, said = self._hands.supervisor(self.node), Told(0), 0, ""
        while not told.url:
            await raise_if_dead(self._hands, self.node, self._service)
            chunk = await supervisor.read_log(self._service, offset)
            offset = chunk.offset
            told.feed(chunk.text)
            if told.problem is not None:
                raise ServiceError(told.problem.what, told.problem.remedy, code=told.problem.code)
            if told.phase == "checking" and (now := f"checking, {told.done_bytes // 10**9} GB so far") != said:
                said = now
                report(now)
            if not told.url:
                await asyncio.sleep(LOOK_EVERY)
        report(f"serves at {told.url}")

    async def undo(self, report: Report) -> None:
        await self.end(self._service, report)
        if self.begun:
            await self._hands.supervisor(self.node).remove_secret(self._service)


def swarms_of(record: ServiceRecord) -> tuple[str, ...]:
    """Ids of the manifests that a seeder's record names."""
    said = record.facts.get("swarms")
    ids = said if isinstance(said, list | tuple) else [record.facts.get("swarm")]
    return tuple(word for word in ids if isinstance(word, str))
