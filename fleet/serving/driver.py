"""Carries out what `decide` says, for as long as the engine runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from fleet.config.schema import FleetConfig
from fleet.events import BringUp, Command, StopService
from fleet.model import Operation, OperationState, Severity, Snapshot
from fleet.serving.decide import Decision, Memory, Wanted, decide, failed


class Serves(Protocol):
    """The engine, as seen from here."""

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


class Serving:
    """Brings up what is asked for and ends what nobody uses. `run` has to run."""

    def __init__(self, engine: Serves, wanted: Callable[[], Wanted], note: Callable[[Severity, str], None]) -> None:
        self._engine, self._wanted, self._note = engine, wanted, note
        self._memory = Memory()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            version, serving = self._engine.version, self._engine.config.serving
            wait: float | None = None
            if serving.on_request or serving.idle:
                decision = decide(self._memory, self._engine.latest, self._engine.config, self._wanted(),
                                  self._engine.clock())
                self._memory, wait = decision.memory, decision.wait
                if decision.model or decision.unload:
                    await self._act(decision)
                    continue
            try:
                async with asyncio.timeout(wait):
                    await self._engine.changed(version)
            except TimeoutError:
                continue

    async def _act(self, decision: Decision) -> None:
        deployment = self._engine.latest.deployment
        command: Command = StopService(deployment.head, deployment.head_service)
        what = f"{deployment.model} is ended."
        if decision.model:
            command, what = BringUp(decision.model, spare=True), f"{decision.model} is brought up."
        self._note(Severity.INFO, f"{decision.sentence} {what}")
        operation = await self._engine.outcome(self._engine.submit(command))
        if operation.state is not OperationState.DONE and decision.model:
            self._memory = failed(self._memory, decision.model, self._engine.clock())
