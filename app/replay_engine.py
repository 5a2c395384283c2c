"""A recording that plays, in the shape of an engine: every face shows it as if it happened now."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from fleet.config.schema import FleetConfig
from fleet.errors import FleetError
from fleet.events import Command
from fleet.model import Operation, OperationState, Problem, Snapshot
from fleet.models.header import GgufHeader
from fleet.models.reader import Headers
from fleet.planning.propose import Proposal, WhatIf
from fleet.proxies.hands import ProxyHand
from fleet.reduce import reduce
from fleet.runtimes.head_http import HeadClient
from fleet.telemetry.codec import Recorded

if TYPE_CHECKING:
    from fleet.swarm.asking import SeederSeen

LONGEST_PAUSE = 3.0      # seconds that a replay stands still where nothing was recorded for longer


class OnlyARecording(FleetError):
    """Something was asked that only a living fleet can do."""

    code = "recording"

    def __init__(self, what: str) -> None:
        super().__init__(f"This is a recording: {what}.", "Leave it with q; `quarterdeck` opens the fleet itself.")


class ReplayEngine:
    """Plays `recorded` at `speed` times the pace at which it happened. Its clock is the recorded engine's."""

    def __init__(self, recorded: Sequence[Recorded], *, speed: float = 1.0) -> None:
        self.latest = Snapshot(fleet="recording")
        self.version = 0
        self.config = FleetConfig()
        self.headers = Headers()
        self.over = asyncio.Event()
        self._recorded = recorded
        self._speed = speed
        self._now = 0.0
        self._news = asyncio.Event()
        self._first = asyncio.Event()

    def clock(self) -> float:
        """The recorded engine's clock at the place that is shown."""
        return self._now

    async def run(self) -> None:
        """Play to the end, then stand still until cancelled."""
        before: float | None = None
        for recorded in self._recorded:
            if before is not None and recorded.at_epoch > before:
                await asyncio.sleep(min((recorded.at_epoch - before) / self._speed, LONGEST_PAUSE))
            before = recorded.at_epoch
            self._show(recorded)
            self._first.set()
        self._first.set()
        self.over.set()
        await asyncio.Event().wait()

    def _show(self, recorded: Recorded) -> None:
        item = recorded.item
        if isinstance(item, Snapshot):
            self.latest = item
            self._now = max([self._now, *(node.read_at or 0.0 for node in item.nodes.values())])
        else:
            self.latest = reduce(self.latest, item)
            self._now = max(self._now, item.at)
        self.config = replace(self.config, fleet=self.latest.fleet)
        self.version += 1
        self._news.set()
        self._news = asyncio.Event()

    async def changed(self, since: int) -> int:
        """Wait for the next line."""
        while self.version <= since:
            await self._news.wait()
        return self.version

    async def settled(self, timeout: float) -> bool:
        """The first line was shown."""
        try:
            async with asyncio.timeout(timeout):
                await self._first.wait()
        except TimeoutError:
            return False
        return True

    def submit(self, command: Command) -> int:
        """Nothing can be done to what is past."""
        raise OnlyARecording("nothing can be started or ended in it")

    async def plan(self, command: Command) -> Operation:
        """A refusal."""
        error = OnlyARecording("nothing can be started or ended in it")
        return Operation(0, "replay", "Replay", OperationState.REFUSED,
                         problem=Problem(error.code, error.what, error.remedy))

    async def outcome(self, operation_id: int) -> Operation:
        """The operation as it was recorded."""
        while True:
            found = next((o for o in self.latest.operations if o.id == operation_id and o.ended is not None), None)
            if found is not None:
                return found
            await self.changed(self.version)

    def cancel(self, operation_id: int) -> None:
        """Nothing can be done to what is past."""
        raise OnlyARecording("nothing can be cancelled in it")

    async def propose(self, wanted: str = "", what_if: WhatIf | None = None) -> Proposal:
        """No plan: the files are not here."""
        raise OnlyARecording("nothing can be planned in it")

    async def reload(self) -> Sequence[str]:
        """There is no file."""
        return ()

    async def log_lines(self, node: str, service: str, *, tail: int = 200, follow: bool = True) -> AsyncIterator[str]:
        """No logs: only what was quoted of them is recorded."""
        raise OnlyARecording("it holds no logs but what its events quote")
        yield ""

    async def model_header(self, node: str, path: str) -> GgufHeader:
        """No headers: the files are not here."""
        raise OnlyARecording("the model files are not part of it")

    async def seeders(self) -> tuple[SeederSeen, ...]:
        """Nobody answers in a recording."""
        return ()

    def run_inside(self, proxy: ProxyHand, url: str) -> None:
        """No proxy: there are no clients in what is past."""

    def head_client(self) -> HeadClient | None:
        """Nobody answers in a recording."""
        return None

    def answer(self, question_id: int, answer: str | None) -> None:
        """Its questions were answered, or not, when it was made."""

    def take_over(self) -> None:
        """There is nothing to act on."""

    def add_node(self, address: str) -> None:
        """Nothing can be added to what is past."""
        raise OnlyARecording("no machine can be added to it")

    def connect(self, node: str) -> None:
        """Nothing can be connected to in what is past."""
        raise OnlyARecording("no machine can be connected to in it")
