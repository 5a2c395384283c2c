"""Running a worker program on its node for a moment, to ask it something that nothing prints."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from importlib import resources
from typing import TypeVar

from fleet.errors import FleetError, StartFailed
from fleet.nodes.transport import Transport

Answer = TypeVar("Answer")

_SCRIPT = resources.files("fleet.runtimes").joinpath("trial.sh").read_text("utf-8")
_PAUSE = 0.05                      # seconds between two knocks; nothing tells that it listens (its banner is buffered)
_LINES_KEPT = 40
_LINE_LIMIT = 300


@dataclass
class Trial:
    """One short life of a ggml-rpc-server on its node's loopback, and what it said. Nothing of it is left behind."""

    transport: Transport
    path: str
    arguments: Sequence[str] = ()
    said: list[str] = field(default_factory=list)
    status: str = ""               # the shell's, once it ended by itself
    _broken: FleetError | None = None
    _ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def text(self) -> str:
        """What it printed, bounded."""
        return "\n".join(self.said)

    async def run(self, port: int, ask: Callable[[], Awaitable[Answer | None]]) -> Answer | None:
        """Start it on `port` and `ask` until that gives an answer; None when it ended before.

        Raises:
            FleetError: the node does not answer.
        """
        async with asyncio.TaskGroup() as group:
            output = group.create_task(self._follow(port))
            answer = await self._knock(ask)
            output.cancel()        # which ends the script, and with it the program
        if answer is None and self._broken is not None:
            raise self._broken
        return answer

    async def _follow(self, port: int) -> None:
        try:
            async with aclosing(self.transport.lines(_SCRIPT, (self.path, str(port), *self.arguments))) as lines:
                async for line in lines:
                    if line.startswith("qd-ended "):
                        self.status = line.removeprefix("qd-ended ").strip()[:8]
                        return
                    if len(self.said) < _LINES_KEPT and line != "qd-started":
                        self.said.append(line[:_LINE_LIMIT])
        except FleetError as error:
            self._broken = error
        finally:
            self._ended.set()

    async def _knock(self, ask: Callable[[], Awaitable[Answer | None]]) -> Answer | None:
        while not self._ended.is_set():
            try:
                answer = await ask()
            except FleetError as error:
                self._broken = error
                return None
            if answer is not None:
                return answer
            try:
                async with asyncio.timeout(_PAUSE):
                    await self._ended.wait()
            except TimeoutError:
                continue
        return None

    def failure(self) -> StartFailed:
        """Why there was no answer."""
        last = next((line.strip() for line in reversed(self.said) if line.strip()), "")
        said = f" It said: {last[:200]}" if last else ""
        where = f"{self.path} on {self.transport.name}"
        if self.status == "132":
            return StartFailed(f"{where} stopped with an illegal instruction: it was built for another "
                               f"processor.{said}", "Use a llama.cpp built on or for that machine, and name its "
                               "folder as `llama:`.")
        how = f"ended with status {self.status}" if self.status else "found no free port to answer on"
        return StartFailed(f"{where} {how} before it could be asked for its protocol.{said}",
                           "Start it there by hand with --help: does it run?")
