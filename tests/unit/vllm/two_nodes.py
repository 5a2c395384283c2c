"""Two nodes that are both this machine: their own state folders, addresses and real processes, one Snapshot."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import psutil

from fleet.config.schema import FleetConfig, HeadConfig, ModelConfig, NodeConfig, RuntimeName, VllmConfig
from fleet.events import BringUp, Command
from fleet.judge import judge_deployment, judge_services
from fleet.model import (
    Binary,
    Device,
    DeviceKind,
    Interface,
    LinkKind,
    Node,
    NodeReading,
    NodeState,
    Operation,
    OperationState,
    Process,
    Snapshot,
    Socket,
)
from fleet.nodes.local import LocalTransport
from fleet.nodes.supervisor import Supervisor
from fleet.operations.bring_up import plan_bring_up
from fleet.operations.hands import Known
from fleet.operations.plan import Runner
from fleet.operations.tear_down import plan_tear_down
from fleet.runtimes.witness import Witness

HEAD, OTHER = "atlas", "bolt"
ADDRESSES = {HEAD: "127.0.0.1", OTHER: "127.0.0.2"}
MODEL = "big"
DATA = Path(__file__).resolve().parents[2] / "data" / "vllm" / "arguments.json"


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def stand_ins(folder: Path) -> Path:
    """`vllm` and `ray` in a folder, with the options of the real ones beside them."""
    folder.mkdir()
    text = (Path(__file__).parent / "stand_in.py").read_text().replace("/usr/bin/env python3", sys.executable)
    for name in ("vllm", "ray"):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    shutil.copy(DATA, folder / "arguments.json")
    return folder / "vllm"


def fleet_of_two(program: Path, weights: Path, **vllm: object) -> FleetConfig:
    """One model over both nodes, every port a free one."""
    settings = VllmConfig(**{"master_port": free_port(), "ray_port": free_port(), "program": str(program), **vllm})
    return FleetConfig(
        fleet="test",
        nodes={name: NodeConfig(name, local=True, rpc_address=address, head=HeadConfig(port=free_port()))
               for name, address in ADDRESSES.items()},
        models={MODEL: ModelConfig(MODEL, str(weights), head=HEAD, workers=(OTHER,), context=4096,
                                   runtime=RuntimeName.VLLM, vllm=settings)})


class TwoNodes:
    """What operations may touch of these two."""

    def __init__(self, config: FleetConfig, state: Path, *, stalled_after: float = 60.0) -> None:
        self.config = config
        self.clock: Callable[[], float] = time.monotonic
        self.stalled_after = stalled_after
        self._transports = {name: LocalTransport(name) for name in config.nodes}
        self._supervisors = {name: Supervisor(self._transports[name], str(state / name), settle=0.3, grace=1.0)
                             for name in config.nodes}
        self._snapshot = Snapshot(nodes={name: Node(name, NodeState.UP, local=True, configured=True)
                                         for name in config.nodes})
        self._numbers = itertools.count(1)
        self._known = Known()
        self.vendor = dict.fromkeys(config.nodes, DeviceKind.CUDA)
        self.witness = Witness(self, lambda name: None)
        self.told: list[Operation] = []

    def snapshot(self) -> Snapshot:
        nodes = {name: replace(node, services=judge_services(node, self.witness.evidence, self.clock()))
                 for name, node in self._snapshot.nodes.items()}
        deployment = judge_deployment(nodes, self.witness.evidence, self._snapshot.deployment, self.clock())
        self._snapshot = replace(self._snapshot, nodes=nodes, deployment=deployment)
        return self._snapshot

    def transport(self, node: str) -> LocalTransport:
        return self._transports[node]

    def supervisor(self, node: str) -> Supervisor:
        return self._supervisors[node]

    def known(self, name: str) -> None:
        return None

    def proxies(self) -> dict:
        return {}

    async def reread(self, node: str, *, quick: bool = False) -> NodeReading:
        records = await self._supervisors[node].records()
        pids = {record.pid for record in records}
        program = next(iter(self.config.models.values())).vllm.program
        folder = program.rpartition("/")[0]
        reading = NodeReading(
            os="Linux", services=records, interfaces=(Interface("lo", LinkKind.WIRED, (f"{ADDRESSES[node]}/8",)),),
            devices=(Device("CUDA0", self.vendor[node], memory_total=16 << 30), Device("CPU", DeviceKind.CPU)),
            binaries=(Binary(program, "vllm", version="0.33.0"), Binary(f"{folder}/ray", "ray", version="2.60.0")),
            sockets=tuple(Socket(c.laddr.ip, c.laddr.port, listening=True, pid=c.pid)
                          for c in psutil.net_connections("tcp4")
                          if c.status == psutil.CONN_LISTEN and c.laddr.ip == ADDRESSES[node]),
            processes=tuple(Process(p.pid, "", "S", ("vllm",), cpu_seconds=sum(p.cpu_times()[:2]))
                            for p in map(_process, pids) if p is not None))
        self._snapshot = replace(self._snapshot, nodes={
            **self._snapshot.nodes, node: replace(self._snapshot.nodes[node], reading=reading)})
        self.witness.look(node)
        return reading

    async def do(self, command: Command) -> Operation:
        """Plan and run a command to its end; a refusal is raised."""
        if isinstance(command, BringUp):
            plan = await plan_bring_up(self, self._known, command)
        else:
            plan = plan_tear_down(self)
        operation = await Runner(plan, next(self._numbers), self.clock, self.told.append).run()
        for name in self.config.nodes:
            await self.reread(name)
        return operation

    async def until(self, holds: Callable[[Snapshot], object]) -> Snapshot:
        """Look until something is true."""
        async with asyncio.timeout(30):
            while not holds(self.snapshot()):
                for name in self.config.nodes:
                    await self.reread(name)
                await asyncio.sleep(0.1)
        return self.snapshot()


def _process(pid: int) -> psutil.Process | None:
    try:
        process = psutil.Process(pid)
        process.cpu_times()
    except psutil.Error:
        return None
    return process


@asynccontextmanager
async def two_nodes(config: FleetConfig, state: Path, **options: float) -> AsyncIterator[TwoNodes]:
    """Both nodes, read once; nothing is left running of them."""
    hands = TwoNodes(config, state, **options)
    try:
        for name in config.nodes:
            await hands.reread(name)
        yield hands
    finally:
        await hands.witness.close()
        for name in config.nodes:
            supervisor = hands.supervisor(name)
            for record in await supervisor.records():
                await supervisor.stop(record.id)
                await supervisor.forget(record.id)


async def brought_up(hands: TwoNodes) -> Operation:
    operation = await hands.do(BringUp(MODEL))
    assert operation.state is OperationState.DONE, (operation.problem, operation.steps)
    return operation
