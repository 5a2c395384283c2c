"""From the engine to the screens: at most so many times a second, and never faster than the terminal reads.

The bridge runs as an async worker of the app, on the same loop as the engine. It waits for
`changed`, takes `latest`, and posts it; it never asks the engine anything else. Without a change it
still posts once a second, since ages grow while nothing happens; the screens then write nothing
unless a word on them has changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from textual.message import Message

from app import face
from app.messages import SnapshotChanged

TICK = 1.0                     # seconds: how late an age may turn from "live" into "10 s"
DRAIN = 0.05                   # seconds between looks at a terminal that lags behind


class EngineFace(face.EngineFace, Protocol):
    """What the cockpit needs of `fleet.engine.Engine`: what every face does, and what takes a person."""

    def answer(self, question_id: int, answer: str | None) -> None:
        """Answer a question; None declines."""

    def take_over(self) -> None:
        """Act though another cockpit does; that one only looks from then on."""

    def add_node(self, address: str) -> None:
        """Take a machine in by hand: "user@host:port"."""

    def connect(self, node: str) -> None:
        """Try a machine now that was only found, or that waits for its next try."""


class Bridge:
    """Paces an engine's snapshots onto a message queue."""

    def __init__(self, engine: EngineFace, post: Callable[[Message], object], *, rate: float,
                 backlog: Callable[[], int]) -> None:
        """`rate` is the most posts a second, `backlog` counts the writes that the terminal has not taken."""
        self._engine = engine
        self._post = post
        self._interval = 1.0 / rate
        self._backlog = backlog
        self.posted = 0

    async def run(self) -> None:
        """Post what there is, then whatever changes, until cancelled."""
        version = -1
        while True:
            version = await self._next(version)
            while self._backlog() > 0:  # noqa: ASYNC110 (the writer thread has nothing to wait on)
                await asyncio.sleep(DRAIN)
            # Taken after the wait: what came in meanwhile is part of it.
            version = max(version, self._engine.version)
            self._post(SnapshotChanged(self._engine.latest, self._engine.clock()))
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
