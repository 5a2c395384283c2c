"""From a node's name to a connection and a reading: what fleet.yaml, discovery and the engine know, put together."""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from fleet.config.schema import HEAD_PORT, HEAD_PORT_BEHIND_PROXY, PROXY_PORT, WORKER_PORT, FleetConfig
from fleet.discovery.identity import KnownNode
from fleet.errors import NodeUnreachable
from fleet.model import Node, NodeReading, Snapshot
from fleet.nodes.local import LocalTransport
from fleet.nodes.probe import ProbeSettings, probe
from fleet.nodes.questions import Ask
from fleet.nodes.ssh_target import SshTarget
from fleet.nodes.transport import Transport
from fleet.nodes.watcher import Open, Opened, ReadNode
from fleet.planning.choose import node_config
from fleet.runtimes.binaries import bundled

if TYPE_CHECKING:
    from fleet.nodes.ssh import SshTransport


class Context(Protocol):
    """Where the newest knowledge is."""

    config: FleetConfig

    def snapshot(self) -> Snapshot:
        """The newest Snapshot."""
        ...

    def known(self, name: str) -> KnownNode | None:
        """What the sources say of a node: user, key files, hops."""
        ...


def opener(context: Context, name: str, ask: Ask, *, accept_new: bool) -> Open:
    """What opens a connection to a node, with the configuration that is in force at that moment.

    The same SSH transport is connected again after a loss, so that a password or passphrase that was given holds for
    as long as the node is watched, and is kept nowhere else.
    """
    kept: list[tuple[SshTarget, SshTransport]] = []

    async def open_transport() -> Opened:
        node = context.snapshot().nodes.get(name)
        if node is None:
            raise NodeUnreachable(f"{name} is no longer part of the fleet.")
        if node.local:
            return Opened(LocalTransport(name))
        ssh_transport = await _ssh_transport()
        target = target_of(context, node)
        if not kept or kept[0][0] != target:
            kept[:] = [(target, ssh_transport(target, ask=ask, accept_new=accept_new))]
        transport = kept[0][1]
        connected = await transport.connect()
        return Opened(transport, connected.address, connected.fingerprint, connected.round_trip)
    return open_transport


async def _ssh_transport() -> type[SshTransport]:
    """The class. asyncssh takes 0.2 s of processor to import: not for this machine alone, and with the loop running."""
    if not _loaded:
        _loaded[:] = [(await asyncio.to_thread(import_module, "fleet.nodes.ssh")).SshTransport]
    return _loaded[0]


_loaded: list[type[SshTransport]] = []


def target_of(context: Context, node: Node) -> SshTarget:
    """How to sign in on a node: fleet.yaml first, then what the sources say of it, then the fleet's defaults."""
    wishes, ssh, said = node_config(context.config, node), context.config.ssh, context.known(node.name)
    discovery = context.config.discovery
    return SshTarget(
        name=node.name, addresses=node.addresses,
        user=wishes.user or (said.user if said else "") or ssh.user,
        identity_files=wishes.identity_files or (said.identity_files if said else ()) or ssh.identity_files,
        jump=wishes.jump or (said.jump if said else ""),
        ssh_config_files=(discovery.ssh_config_file,) if discovery.ssh_config else (),
        known_hosts=ssh.known_hosts, connect_timeout=ssh.connect_timeout, agent=ssh.agent)


def reader(context: Context, name: str) -> ReadNode:
    """What reads a node."""
    async def read(transport: Transport, previous: NodeReading | None, full: bool, timeout: float) -> NodeReading:
        node = context.snapshot().nodes.get(name)
        if node is None:
            raise NodeUnreachable(f"{name} is no longer part of the fleet.")
        settings = probe_settings(context.config, node)
        return await probe(transport, settings, previous, full=full, timeout=timeout)
    return read


def probe_settings(config: FleetConfig, node: Node) -> ProbeSettings:
    """What to look for on a node: its model folders, its binaries, the ports that matter."""
    wishes = node_config(config, node)
    extra = bundled() if node.local else None
    ports = {WORKER_PORT, HEAD_PORT, HEAD_PORT_BEHIND_PROXY, PROXY_PORT, wishes.head.port,
             *(worker.port for worker in wishes.workers)}
    return ProbeSettings(
        model_dirs=wishes.model_dirs or config.model_dirs, llama_dirs=(wishes.llama,) if wishes.llama else (),
        extra_llama_dirs=(extra,) if extra else (), state_dir=wishes.state_dir, ports=tuple(sorted(ports)),
        log_limit=config.log_limit)
