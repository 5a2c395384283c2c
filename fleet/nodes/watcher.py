"""One node, watched: connect, probe, notice that it is gone, try again. No node ever waits for another."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from fleet.errors import (
    CommandTimeout,
    ConnectionDropped,
    FleetError,
    HostKeyChanged,
    HostKeyUnknown,
    NodeError,
    NodeRefused,
    NodeUnreachable,
    ShellUnusable,
    SignInFailed,
)
from fleet.events import Event, NodeRead, NodeStateChanged
from fleet.model import Address, NodeReading, NodeState, Problem
from fleet.nodes.transport import Transport

FULL_EVERY = 60.0        # seconds between probes that also look for binaries, GPUs and model files anew
MISSES_ALLOWED = 3       # polls without an answer before the connection is given up
PING_EVERY = 5           # polls between two measurements of the round trip
PROBE_TIMEOUT = 15.0     # of a full probe, on a slow link
POLL_TIMEOUT = 5.0
POLL_SHORTEST = 2.0      # seconds: a host that lost its power is noticed within this and the time between two polls
POLL_SPREAD = 5.0        # times as long as a poll usually takes here: more is no answer
POLLS_KEPT = 8           # by which that is known
BACK_OFF = (3.0, 15.0, 60.0)

STATES: dict[type[NodeError], NodeState] = {
    NodeUnreachable: NodeState.UNREACHABLE,
    NodeRefused: NodeState.REFUSED,
    SignInFailed: NodeState.LOCKED,
    HostKeyUnknown: NodeState.NEW_KEY,
    HostKeyChanged: NodeState.CHANGED_KEY,
    ShellUnusable: NodeState.BROKEN,
    CommandTimeout: NodeState.SILENT,
    ConnectionDropped: NodeState.UNREACHABLE,
}


def state_of(error: NodeError) -> NodeState:
    """The state that an error puts a node into."""
    return next((state for kind, state in STATES.items() if isinstance(error, kind)), NodeState.BROKEN)


def back_off(attempts: int) -> float:
    """Seconds to wait after the `attempts`-th failure in a row (1, 2, ...): 3, 15, then 60 for ever."""
    return BACK_OFF[min(max(attempts, 1), len(BACK_OFF)) - 1]




@dataclass(frozen=True, slots=True)
class Opened:
    """A connection to a node, and how it came about."""

    transport: Transport
    address: Address | None = None         # the one that answered; None for this machine
    fingerprint: str = ""                  # of the host key
    round_trip: float | None = None        # seconds that the smallest command took, where one was run


Open = Callable[[], Awaitable[Opened]]
ReadNode = Callable[[Transport, NodeReading | None, bool, float], Awaitable[NodeReading]]


class NodeWatcher:
    """Keeps one node connected and read. Everything it learns goes out as events."""

    def __init__(self, name: str, open_transport: Open, read_node: ReadNode, *, refresh: Callable[[], float],
                 clock: Callable[[], float], emit: Callable[[Event], None]) -> None:
        self.name = name
        self.transport: Transport | None = None
        self.tried = asyncio.Event()      # set once the first try has ended, well or not
        self.error: NodeError | None = None
        self._open = open_transport
        self._read_node = read_node
        self._refresh = refresh
        self._clock = clock
        self._emit = emit
        self._reading: NodeReading | None = None
        self._full_at = float("-inf")
        self._kicked = asyncio.Event()
        self._reading_lock = asyncio.Lock()
        self._attempts = 0
        self._took: deque[float] = deque(maxlen=POLLS_KEPT)      # seconds of the last polls

    def kick(self) -> None:
        """Do not wait for the back-off or the next poll: try now."""
        self._kicked.set()

    async def run(self) -> None:
        """Watch until cancelled; the connection is closed then, services on the node run on."""
        try:
            while True:
                try:
                    await self._connect()
                    await self._poll()
                except NodeError as error:
                    self._fail(error)
                await self._drop()
                await self._pause(back_off(self._attempts))
        finally:
            await self._drop()

    async def reread(self, *, quick: bool = False) -> NodeReading:
        """A probe now: a full one, or what changes from moment to moment (services, sockets, memory).

        Raises:
            NodeError: the node is not connected, or does not answer.
        """
        if self.transport is None:
            raise self.error or NodeUnreachable(f"{self.name} is not connected.", "Wait for it, or see its state.")
        return await self._read(full=not quick, ping=not quick)

    async def _connect(self) -> None:
        if self._attempts == 0:
            self._emit(NodeStateChanged(self._clock(), self.name, NodeState.CONNECTING))
        opened = await self._open()
        self.transport = opened.transport
        up = NodeStateChanged(self._clock(), self.name, NodeState.UP, address=opened.address,
                              host_key=opened.fingerprint)
        await self._read(full=True, ping=opened.round_trip is None, round_trip=opened.round_trip, becomes=up)
        self._attempts = 0
        self.error = None
        self.tried.set()

    async def _poll(self) -> None:
        """Read again and again; raises when the node is lost."""
        misses, polls = 0, 0
        while True:
            await self._pause(self._refresh())
            polls += 1
            try:
                back = NodeStateChanged(self._clock(), self.name, NodeState.UP) if misses else None
                await self._read(full=self._clock() - self._full_at >= FULL_EVERY, ping=polls % PING_EVERY == 1,
                                 becomes=back)
            except CommandTimeout as error:
                misses += 1
                if misses >= MISSES_ALLOWED:
                    raise NodeUnreachable(f"{self.name} has not answered its last {misses} polls.",
                                          "Is it asleep, or off the network? It is tried again.") from error
                problem = Problem(error.code, error.what, error.remedy)
                self._emit(NodeStateChanged(self._clock(), self.name, NodeState.SILENT, problem))
                continue
            misses = 0

    async def _read(self, *, full: bool, ping: bool = True, round_trip: float | None = None,
                    becomes: NodeStateChanged | None = None) -> NodeReading:
        """Probe. `becomes` goes out before what was read: services are judged by a node that is up, not unseen."""
        transport = self.transport
        if transport is None:
            raise ConnectionDropped(f"{self.name} is not connected.")
        async with self._reading_lock:
            if ping:
                round_trip = (await transport.run(":", timeout=POLL_TIMEOUT if full else self._patience())).seconds
            began = self._clock()
            reading = await self._read_node(transport, self._reading, full, PROBE_TIMEOUT if full else self._patience())
            if not full:
                self._took.append(self._clock() - began)
            self._reading = reading
            if full:
                self._full_at = self._clock()
            if becomes is not None:
                self._emit(becomes)
            self._emit(NodeRead(self._clock(), self.name, reading, round_trip))
            return reading

    def _patience(self) -> float:
        """Seconds that a poll may take: on a fast link little, so that a lost host is noticed soon."""
        if len(self._took) < POLLS_KEPT:
            return POLL_TIMEOUT
        return min(POLL_TIMEOUT, max(POLL_SHORTEST, POLL_SPREAD * max(self._took)))

    def _fail(self, error: NodeError) -> None:
        self._attempts += 1
        self.error = error
        problem = Problem(error.code, error.what, error.remedy)
        self._emit(NodeStateChanged(self._clock(), self.name, state_of(error), problem, attempts=self._attempts,
                                    next_try=self._clock() + back_off(self._attempts)))
        self.tried.set()

    async def _pause(self, seconds: float) -> None:
        """Sleep, or wake early by a kick."""
        try:
            async with asyncio.timeout(seconds):
                await self._kicked.wait()
        except TimeoutError:
            return
        finally:
            self._kicked.clear()

    async def _drop(self) -> None:
        transport, self.transport = self.transport, None
        if transport is None:
            return
        try:
            async with asyncio.timeout(2.0):
                await transport.close()
        except (TimeoutError, FleetError):
            return   # it was lost already: nothing is left to close in good order
