"""A stand-in for the engine: serves prepared Snapshots of real records and writes down what it is asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from example_fleets import NOW

from fleet.config.schema import FleetConfig
from fleet.errors import FleetError, ModelFileError
from fleet.events import Command
from fleet.model import Operation, OperationState, Snapshot, StepRecord
from fleet.models.gguf import GgufHeader
from fleet.models.reader import Headers
from fleet.planning.choose import find_model
from fleet.planning.propose import Proposal, WhatIf, propose


class ScriptedEngine:
    """Stands in for `fleet.engine.Engine`: no network, its clock stands still until a test moves it."""

    def __init__(self, snapshot: Snapshot, config: FleetConfig | None = None, *, log: Sequence[str] = ()) -> None:
        self.latest = snapshot
        self.version = 1
        self.config = config or FleetConfig()
        self.now = NOW
        self.submitted: list[Command] = []
        self.planned: list[Command] = []
        self.answers: list[tuple[int, str | None]] = []
        self.added: list[str] = []
        self.connected: list[str] = []
        self.cancelled: list[int] = []
        self.taken_over = 0
        self.reload_problems: tuple[str, ...] = ()
        self.next_plan: Operation | None = None
        self.refuses: FleetError | None = None
        self.breaks_with: Exception | None = None
        self.log = list(log)
        self.headers = Headers()
        self.model_headers: dict[str, GgufHeader] = {}       # by path
        self.asked: list[tuple[str, WhatIf]] = []
        self.no_plan: Exception | None = None
        self.stopped = False
        self._news = asyncio.Event()
        self._broken = asyncio.Event()

    def clock(self) -> float:
        return self.now

    def become(self, snapshot: Snapshot) -> None:
        """The next snapshot."""
        self.latest = snapshot
        self.version += 1
        self._news.set()
        self._news = asyncio.Event()

    def break_down(self, error: Exception) -> None:
        """End `run` with an error."""
        self.breaks_with = error
        self._broken.set()

    async def changed(self, since: int) -> int:
        while self.version <= since:
            await self._news.wait()
        return self.version

    async def run(self) -> None:
        try:
            await self._broken.wait()
            assert self.breaks_with is not None
            raise self.breaks_with
        finally:
            self.stopped = True

    async def settled(self, timeout: float) -> bool:
        return True

    def take_over(self) -> None:
        self.taken_over += 1

    def submit(self, command: Command) -> int:
        if self.refuses is not None:
            raise self.refuses
        self.submitted.append(command)
        return 100 + len(self.submitted)

    async def outcome(self, operation_id: int) -> Operation:
        return next(each for each in self.latest.operations if each.id == operation_id)

    def cancel(self, operation_id: int) -> None:
        self.cancelled.append(operation_id)

    async def plan(self, command: Command) -> Operation:
        self.planned.append(command)
        return self.next_plan or Operation(0, "up", "Bring up", OperationState.PLANNED, (
            StepRecord("Check that builds and protocols match"),
            StepRecord("Start worker on bolt, port 50052", node="bolt"),
            StepRecord("Start head on atlas, port 8080", node="atlas")))

    async def propose(self, wanted: str = "", what_if: WhatIf | None = None) -> Proposal:
        """Real plans, from headers that the test gives."""
        self.asked.append((wanted, what_if or WhatIf()))
        if self.no_plan is not None:
            raise self.no_plan
        header = await self.model_header("", find_model(self.latest, self.config, wanted).file)
        return propose(self.latest, self.config, header, wanted, what_if)

    async def model_header(self, node: str, path: str) -> GgufHeader:
        if path not in self.model_headers:
            raise ModelFileError(f"{path} is no GGUF file.", "Fetch it again.")
        return self.model_headers[path]

    def answer(self, question_id: int, answer: str | None) -> None:
        self.answers.append((question_id, answer))
        self.become(replace(self.latest, questions=tuple(q for q in self.latest.questions if q.id != question_id)))

    async def reload(self) -> tuple[str, ...]:
        return self.reload_problems

    def add_node(self, address: str) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.added.append(address)

    def connect(self, node: str) -> None:
        self.connected.append(node)

    async def log_lines(self, node: str, service: str, *, tail: int = 200, follow: bool = True) -> AsyncIterator[str]:
        for text in self.log[-tail:]:
            yield text
        if follow:
            await asyncio.Event().wait()

    def head_client(self) -> None:
        return None
