"""Carries out what `decide` says, for as long as the engine runs; and says to proxies which server is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from fleet.config.schema import FleetConfig, RecoverPolicy
from fleet.desk import QuestionDesk
from fleet.events import BringUp, Command
from fleet.model import Operation, OperationState, QuestionKind, Severity, Snapshot
from fleet.recovery.decide import Act, Decision, Memory, decide, tried


class Watched(Protocol):
    """The engine, as recovery sees it."""

    @property
    def latest(self) -> Snapshot:
        """The newest Snapshot."""

    @property
    def version(self) -> int:
        """Grows with every change."""

    @property
    def config(self) -> FleetConfig:
        """What is in force."""

    def clock(self) -> float:
        """Seconds."""

    async def changed(self, since: int) -> int:
        """Wait until `version` is past `since`."""

    def submit(self, command: Command) -> int:
        """Have it carried out."""

    async def outcome(self, operation_id: int) -> Operation:
        """The operation, when it is over."""


Note = Callable[[Severity, str], None]


class Recovery:
    """Brings what has broken up again, or asks whether it should. `run` has to run."""

    def __init__(self, engine: Watched, desk: QuestionDesk, note: Note) -> None:
        self._engine, self._desk, self._note = engine, desk, note
        self._memory = Memory()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                version = self._engine.version
                decision = decide(self._memory, self._engine.latest, self._engine.clock(), self._policy())
                self._memory = decision.memory
                match decision.act:
                    case Act.BRING_UP:
                        await self._bring_up(decision)
                    case Act.ASK:
                        group.create_task(self._ask(decision))
                await self._next(version, decision.wait)

    def _policy(self) -> RecoverPolicy:
        return self._engine.config.recover

    async def _next(self, version: int, wait: float | None) -> None:
        try:
            async with asyncio.timeout(wait):
                await self._engine.changed(version)
        except TimeoutError:
            return

    async def _bring_up(self, decision: Decision) -> None:
        self._note(Severity.WARNING, f"Recovering: {decision.sentence} {decision.model} is brought up again.")
        command = BringUp(decision.model, decision.without, spare=True)
        operation = await self._engine.outcome(self._engine.submit(command))
        self._memory = tried(self._memory, well=operation.state is OperationState.DONE)

    async def _ask(self, decision: Decision) -> None:
        answer = await self._desk.ask(QuestionKind.RECOVER, self._engine.latest.deployment.head,
                                      f"{decision.sentence} Bring {decision.model} up again on what is there?",
                                      f"without {', '.join(decision.without)}" if decision.without else "")
        if answer == "yes":
            await self._bring_up(decision)
