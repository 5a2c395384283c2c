"""One node watched: states by events alone, on a clock that the test moves by hand."""

import asyncio
from contextlib import suppress

import pytest

from fleet.errors import CommandTimeout, ConnectionDropped, HostKeyChanged, NodeUnreachable, SignInFailed
from fleet.events import NodeRead, NodeStateChanged
from fleet.model import NodeReading, NodeState
from fleet.nodes.transport import Completed
from fleet.nodes.watcher import (
    MISSES_ALLOWED,
    POLL_SHORTEST,
    POLL_TIMEOUT,
    NodeWatcher,
    Opened,
    back_off,
    state_of,
)


class ScriptedTransport:
    """A stand-in for a connection: every command succeeds, and closing is written down."""

    name, is_local = "bolt", False

    def __init__(self):
        self.closed = 0

    async def run(self, script, arguments=(), **options):
        return Completed(0, b"", b"", 0.004)

    async def close(self):
        self.closed += 1


class Watch:
    """A watcher whose connections and readings come from lists; the last of each is repeated."""

    def __init__(self, opens, reads=None, refresh=0.001):
        self.transport = ScriptedTransport()
        self.opens, self.reads = list(opens), list(reads or [NodeReading()])
        self.events, self.fulls = [], []
        self.news = asyncio.Event()
        self.watcher = NodeWatcher("bolt", self.open, self.read, refresh=lambda: refresh, clock=lambda: 0.0,
                                   emit=self.emit)

    def emit(self, event):
        self.events.append(event)
        self.news.set()

    async def open(self):
        outcome = self.opens.pop(0) if len(self.opens) > 1 else self.opens[0]
        if isinstance(outcome, Exception):
            raise outcome
        return Opened(self.transport, None, "SHA256:x", 0.003)

    async def read(self, transport, previous, full, timeout):
        self.fulls.append(full)
        await asyncio.sleep(0)
        outcome = self.reads.pop(0) if len(self.reads) > 1 else self.reads[0]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    @property
    def states(self):
        return [event.state for event in self.events if isinstance(event, NodeStateChanged)]

    async def run_until(self, holds):
        task = asyncio.ensure_future(self.watcher.run())
        try:
            async with asyncio.timeout(10):
                while not holds(self):
                    self.news.clear()
                    await self.news.wait()
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def test_a_node_is_up_before_its_reading_is_told():
    watch = Watch([None])
    await watch.run_until(lambda w: any(isinstance(e, NodeRead) for e in w.events))
    kinds = [type(event) if isinstance(event, NodeRead) else event.state for event in watch.events[:3]]
    assert kinds == [NodeState.CONNECTING, NodeState.UP, NodeRead]
    assert watch.watcher.tried.is_set() and watch.fulls[0] is True


@pytest.mark.parametrize(("error", "state"), [
    (NodeUnreachable("x"), NodeState.UNREACHABLE), (SignInFailed("x"), NodeState.LOCKED),
    (HostKeyChanged("x"), NodeState.CHANGED_KEY),
])
async def test_a_failed_try_gives_its_state_its_reason_and_the_next_try(error, state):
    watch = Watch([error])
    await watch.run_until(lambda w: w.watcher.tried.is_set())
    last = watch.events[-1]
    assert (last.state, last.problem.what, last.attempts, last.next_try) == (state, "x", 1, back_off(1))
    assert state_of(error) is state


async def test_a_kick_tries_again_at_once():
    watch = Watch([NodeUnreachable("x"), None])

    def kicked(w):
        w.watcher.kick()
        return NodeState.UP in w.states
    await watch.run_until(kicked)
    assert watch.states == [NodeState.CONNECTING, NodeState.UNREACHABLE, NodeState.UP]


async def test_polls_without_an_answer_make_it_silent_then_unreachable():
    watch = Watch([None, NodeUnreachable("x")], [NodeReading(), CommandTimeout("slow")])
    await watch.run_until(lambda w: NodeState.UNREACHABLE in w.states)
    assert watch.states[2:] == [NodeState.SILENT] * (MISSES_ALLOWED - 1) + [NodeState.UNREACHABLE]
    assert watch.transport.closed == 1


async def test_a_silent_node_that_answers_again_is_up():
    watch = Watch([None], [NodeReading(), CommandTimeout("slow"), NodeReading()])
    await watch.run_until(lambda w: w.states.count(NodeState.UP) == 2)
    assert watch.states == [NodeState.CONNECTING, NodeState.UP, NodeState.SILENT, NodeState.UP]


async def test_a_lost_connection_is_closed_and_the_reason_kept_for_whoever_asks():
    watch = Watch([None], [NodeReading(), ConnectionDropped("gone")])
    await watch.run_until(lambda w: NodeState.UNREACHABLE in w.states)
    assert watch.transport.closed == 1
    with pytest.raises(ConnectionDropped, match="gone"):
        await watch.watcher.reread()


def test_the_back_off_grows_to_a_minute_and_stays():
    assert [back_off(n) for n in (0, 1, 2, 3, 4, 100)] == [3.0, 3.0, 15.0, 60.0, 60.0, 60.0]


async def test_on_a_fast_link_a_poll_is_given_up_soon_and_on_a_slow_one_later():
    class Timed(Watch):
        def __init__(self, takes: float) -> None:
            self.now, self.takes, self.patience = 0.0, takes, []
            super().__init__([None])
            self.watcher._clock = lambda: self.now

        async def read(self, transport, previous, full, timeout):
            if not full:
                self.patience.append(timeout)
                self.now += self.takes
            return await super().read(transport, previous, full, timeout)

    fast, slow = Timed(0.03), Timed(0.8)
    for watch in (fast, slow):
        await watch.run_until(lambda w: len(w.patience) > 12)
    assert (fast.patience[0], fast.patience[12]) == (POLL_TIMEOUT, POLL_SHORTEST)
    assert slow.patience[12] == pytest.approx(4.0)
