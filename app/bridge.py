"""From the engine to the screens: at most so many times a second, and never faster than the terminal reads.

The bridge runs as an async worker of the app, on the same loop as the engine. It waits for
`changed`, takes `latest`, and posts it; it never asks the engine anything else. Without a change it
still posts once a second, since ages grow while nothing happens; the screens then write nothing
unless a word on them has changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol

from textual.message import Message

from app.messages import SnapshotChanged
from fleet.config.schema import FleetConfig
from fleet.events import Command
from fleet.model import Operation, Snapshot

TICK = 1.0                     # seconds: how late an age may turn from "live" into "10 s"
DRAIN = 0.05                   # seconds between looks at a terminal that lags behind


class EngineFace(Protocol):
    """What the cockpit needs of `fleet.engine.Engine`, and nothing more."""

    @property
    def latest(self) -> Snapshot:
        """All that is known now."""

    @property
    def version(self) -> int:
        """Grows by one with every change of `latest`."""

    @property
    def config(self) -> FleetConfig:
        """What is in force: the models that can be brought up."""

    async def changed(self, since: int) -> int:
        """Wait until `version` is above `since`; gives it."""

    async def run(self) -> None:
        """Watch the fleet until cancelled. Services keep running."""

    def submit(self, command: Command) -> int:
        """Begin to do something; the operation of that id appears in `latest`."""

    async def plan(self, command: Command) -> Operation:
        """What would be done, and nothing done: PLANNED, or REFUSED with the reason."""

    def answer(self, question_id: int, answer: str | None) -> None:
        """Answer a question; None declines."""

    async def reload(self) -> Sequence[str]:
        """Read the configuration again; problems, () when the new one is in force."""

    def add_node(self, address: str) -> None:
        """Take a machine in by hand: "user@host:port"."""

    def log_lines(self, node: str, service: str, *, tail: int = 200, follow: bool = True) -> AsyncIterator[str]:
        """The last lines of a service's log, then those that come."""


class Bridge:
    """Paces an engine's snapshots onto a message queue."""

    def __init__(self, engine: EngineFace, post: Callable[[Message], object], *, rate: float,
                 backlog: Callable[[], int], clock: Callable[[], float]) -> None:
        """`rate` is the most posts a second, `backlog` counts the writes that the terminal has not taken."""
        self._engine = engine
        self._post = post
        self._interval = 1.0 / rate
        self._backlog = backlog
        self._clock = clock
        self.posted = 0

    async def run(self) -> None:
        """Post what there is, then whatever changes, until cancelled."""
        version = -1
        while True:
            version = await self._next(version)
            while self._backlog() > 0:
                await asyncio.sleep(DRAIN)
            # Taken after the wait: what came in meanwhile is part of it.
            version = max(version, self._engine.version)
            self._post(SnapshotChanged(self._engine.latest, self._clock()))
            self.posted += 1
            await asyncio.sleep(self._interval)

    async def _next(self, version: int) -> int:
        """The engine's next version, or the same one after a tick."""
        if self._engine.version > version:
            return self._engine.version
        try:
            return await asyncio.wait_for(self._engine.changed(version), TICK)
        except TimeoutError:
            return version
