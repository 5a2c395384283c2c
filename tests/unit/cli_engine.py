"""An engine that does what a test tells it: the face of `fleet.engine.Engine`, and no fleet behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace

from fleet.config.schema import FleetConfig
from fleet.events import Command
from fleet.model import (
    Deployment,
    DeploymentState,
    Node,
    NodeReading,
    NodeState,
    Operation,
    OperationState,
    Service,
    ServiceKind,
    ServiceRecord,
    ServiceState,
    Snapshot,
    StepRecord,
)

Script = Callable[["ScriptedEngine", Operation], Awaitable[None]]


class ScriptedEngine:
    """Shows `snapshot`; each submitted command runs the next script of `scripts`."""

    def __init__(self, snapshot: Snapshot | None = None, scripts: Sequence[Script] = (), *,
                 plan: Operation | None = None, log: Sequence[str] = (), reloads: Sequence[Sequence[str]] = (),
                 client: object = None) -> None:
        self.latest = snapshot or Snapshot()
        self.config = FleetConfig()
        self.version = 0
        self.submitted: list[Command] = []
        self.cancelled: list[int] = []
        self.ended = False
        self.now = 100.0
        self._scripts = list(scripts)
        self._plan = plan
        self._log = log
        self._reloads = list(reloads)
        self._client = client
        self._news = asyncio.Event()
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def clock(self) -> float:
        return self.now

    async def run(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.ended = True

    async def changed(self, since: int) -> int:
        while self.version <= since:
            await self._news.wait()
        return self.version

    async def settled(self, timeout: float) -> bool:
        return True

    def show(self, **parts: object) -> None:
        """Change parts of the snapshot and wake who waits."""
        self.latest = replace(self.latest, **parts)
        self.version += 1
        self._news.set()
        self._news = asyncio.Event()

    def tell(self, operation: Operation) -> None:
        """Show an operation as it is now."""
        others = [known for known in self.latest.operations if known.id != operation.id]
        self.show(operations=tuple(sorted((*others, operation), key=lambda o: o.id)))

    def operation(self, number: int) -> Operation:
        return next(known for known in self.latest.operations if known.id == number)

    def submit(self, command: Command) -> int:
        self.submitted.append(command)
        number = len(self.submitted)
        operation = Operation(number, "up", "Bring up tiny", OperationState.RUNNING, started=self.now)
        self.tell(operation)
        self._tasks[number] = asyncio.ensure_future(self._scripts.pop(0)(self, operation))
        return number

    async def outcome(self, operation_id: int) -> Operation:
        while self.operation(operation_id).state in (OperationState.PLANNED, OperationState.RUNNING):
            await self.changed(self.version)
        return self.operation(operation_id)

    def cancel(self, operation_id: int) -> None:
        self.cancelled.append(operation_id)
        self._tasks[operation_id].cancel()
        steps = tuple(replace(step, state="undone") for step in self.operation(operation_id).steps)
        self.tell(replace(self.operation(operation_id), state=OperationState.CANCELLED, steps=steps))

    async def plan(self, command: Command) -> Operation:
        assert self._plan is not None
        return self._plan

    async def reload(self) -> Sequence[str]:
        return self._reloads.pop(0)

    async def log_lines(self, node: str, service: str, *, tail: int = 200, follow: bool = True) -> AsyncIterator[str]:
        for line in self._log[-tail:]:
            yield line

    def head_client(self) -> object:
        return self._client


def ends(state: OperationState, *steps: StepRecord, **more: object) -> Script:
    """A script that shows `steps` and ends."""
    async def script(engine: ScriptedEngine, operation: Operation) -> None:
        engine.tell(replace(operation, state=state, steps=steps, ended=engine.now + 4, **more))
    return script


def hangs(*steps: StepRecord, begun: asyncio.Event | None = None) -> Script:
    """A script that shows `steps` and never ends by itself."""
    async def script(engine: ScriptedEngine, operation: Operation) -> None:
        engine.tell(replace(operation, steps=steps))
        if begun is not None:
            begun.set()
        await asyncio.Event().wait()
    return script


def service(kind: ServiceKind = ServiceKind.COORDINATOR, state: ServiceState = ServiceState.READY, *,
            node: str = "atlas", port: int = 8080, **more: object) -> Service:
    name = f"{kind.value}-{port}"
    record = ServiceRecord(id=name, kind=kind, pid=4711, start_time="b:1", argv=("llama-server", "--api-key", "s3cret"),
                           port=port, bind="127.0.0.1", alive=state is not ServiceState.FAILED, started_epoch=1.0,
                           folder=f"/state/services/{name}")
    return Service(record, node, state, since=40.0, **more)


def node(name: str = "atlas", *services: Service, state: NodeState = NodeState.UP, **more: object) -> Node:
    return Node(name=name, state=state, services=services, reading=NodeReading(os="Linux", arch="x86_64"), **more)


def serving(*nodes: Node, state: DeploymentState = DeploymentState.SERVING) -> Snapshot:
    return Snapshot(nodes={n.name: n for n in nodes}, deployment=Deployment(
        state=state, since=40.0, model="tiny", head="atlas", head_service="coordinator-8080",
        endpoint="http://127.0.0.1:8080", context=4096))
