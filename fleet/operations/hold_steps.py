"""Steps that keep clients waiting while what serves them is changed: hold, drain, and let them through again.

What is held is the proxies' upstream of the fleet's head. A hold runs out by itself unless it is said again, so that
a cockpit that dies in the middle leaves no client waiting for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from fleet.errors import FleetError, OperationFailed
from fleet.model import Deployment, DeploymentState
from fleet.operations.deaths import LOST
from fleet.operations.hands import Hands
from fleet.operations.plan import Report, Step
from fleet.proxies.hands import ProxyHand
from fleet.proxies.of_fleet import head_record, upstream_name
from fleet.proxies.readings import drain_of

HELD_FOR = 20.0         # seconds that a hold lasts on our word alone
AGAIN_EVERY = 5.0
DRAIN_LOOK = 0.1
FOLLOW_LOOK = 0.05      # clients wait
FOLLOWS_WITHIN = 20.0   # seconds for a proxy to find the new model ready: it asks every 5 s, and is told at once
SERVES_WITHIN = 900.0   # seconds for the old model to load again after a swap that failed
UNDONE_WITHIN = 930.0
ALIVE = (DeploymentState.SERVING, DeploymentState.DEGRADED)


@dataclass
class Held:
    """What the three steps share."""

    hands: Hands
    upstream: str                       # as proxies name the head that is there now
    model: str                          # that comes
    was: Deployment                     # that serves now
    progress: dict[str, object] = field(default_factory=dict)      # what waiting clients are told
    renewal: asyncio.Task[None] | None = None
    holding: bool = False

    def proxies(self) -> Mapping[tuple[str, str], ProxyHand]:
        """Every proxy there is."""
        return self.hands.proxies()

    async def say(self) -> list[str]:
        """Hold at every proxy; gives why one could not be told."""
        wrong = []
        for (node, _), proxy in self.proxies().items():
            try:
                await proxy.hold(self.upstream, self.progress, HELD_FOR)
            except FleetError as error:
                wrong.append(f"{node or 'the proxy inside'}: {error.what}")
        return wrong

    async def begin(self) -> list[str]:
        """Hold from now on, until `end`."""
        self.holding = True
        wrong = await self.say()
        self.renewal = asyncio.ensure_future(self._renew())
        return wrong

    async def end(self) -> None:
        """Let everybody through."""
        self.holding = False
        if self.renewal is not None:
            self.renewal.cancel()
            await asyncio.gather(self.renewal, return_exceptions=True)
            self.renewal = None
        for proxy in self.proxies().values():
            try:
                await proxy.release(self.upstream)
            except FleetError:
                continue            # it does not have that upstream any more, or is gone: nobody waits there

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(AGAIN_EVERY)
            await self.say()


class HoldRequests(Step):
    """Let no new request through. Its undo waits until what served serves again, and lets them through to that."""

    undo_within = UNDONE_WITHIN

    def __init__(self, held: Held) -> None:
        self.title = f"Hold new requests for {held.was.model or 'what serves'}"
        self._held = held

    async def check(self) -> str | None:
        return None if self._held.proxies() else "no proxy serves"

    async def do(self, report: Report) -> None:
        self._held.progress.update(phase="draining", model=self._held.model)
        wrong = await self._held.begin()
        if wrong:
            report("; ".join(wrong))

    async def undo(self, report: Report) -> None:
        if not self._held.holding:
            return
        self._held.progress.update(phase="back to what served", model=self._held.was.model)
        try:
            await self._served_again(report)
        finally:
            await self._held.end()

    async def _served_again(self, report: Report) -> None:
        hands, was = self._held.hands, self._held.was
        async with asyncio.timeout(SERVES_WITHIN):
            while True:
                now = hands.snapshot().deployment
                same = (now.head, now.head_service, now.model) == (was.head, was.head_service, was.model)
                if same and now.state in ALIVE:
                    return
                there = hands.snapshot().nodes.get(was.head)
                if there is None or there.state in LOST:
                    state = there.state.value if there else "gone"
                    raise OperationFailed(f"{was.model} does not come back, since {was.head} is {state}.",
                                          "Bring it up again when the machine is back.")
                if head_record(hands.snapshot()) is None:
                    raise OperationFailed(f"{was.model} did not come back.", "Bring it up again.")
                report(f"{was.model} is {now.state.value}")
                await asyncio.sleep(DRAIN_LOOK)


class DrainRequests(Step):
    """Wait for the requests that run, up to a limit; what runs then still is cut, and its client told."""

    def __init__(self, held: Held, limit: float) -> None:
        self.title = f"Let running requests end, up to {limit:.0f} s"
        self._held, self._limit = held, limit
        self._hurry = asyncio.Event()

    async def check(self) -> str | None:
        return None if self._held.proxies() else "no proxy serves"

    def hurry(self) -> None:
        """Wait no longer."""
        self._hurry.set()

    async def do(self, report: Report) -> None:
        clock = self._held.hands.clock
        deadline = clock() + self._limit
        while True:
            running, longest = await self._running()
            if not running:
                report("none runs")
                return
            if clock() >= deadline or self._hurry.is_set():
                report(f"{running} cut")
                return
            report(f"{running} run{'s' if running == 1 else ''}, the longest for {longest:.0f} s")
            try:
                async with asyncio.timeout(DRAIN_LOOK):
                    await self._hurry.wait()
            except TimeoutError:
                continue

    async def _running(self) -> tuple[int, float]:
        """How many requests run at the head through proxies, and for how many seconds the longest has."""
        count, longest = 0, 0.0
        for proxy in self._held.proxies().values():
            try:
                state, requests = await proxy.state(), await proxy.requests(0)
            except FleetError:
                continue
            here, oldest = drain_of(state, requests, self._held.upstream)
            count, longest = count + here, max(longest, oldest)
        return count, longest


class ReleaseRequests(Step):
    """Let the requests through that wait, in their order, once every proxy finds the new model ready."""

    def __init__(self, held: Held) -> None:
        self.title = f"Let requests through to {held.model}"
        self._held = held

    async def check(self) -> str | None:
        return None if self._held.proxies() else "no proxy serves"

    async def do(self, report: Report) -> None:
        self._held.progress.update(phase="routing")
        deadline = self._held.hands.clock() + FOLLOWS_WITHIN
        while late := [node or "this process" for (node, service), proxy in self._held.proxies().items()
                       if not await self._follows(proxy)]:
            if self._held.hands.snapshot().deployment.state is DeploymentState.BROKEN:
                raise OperationFailed(f"{self._held.model} loaded, but is broken before a request was let through.",
                                      "See the logs of its head and workers.", code="broken")
            if self._held.hands.clock() > deadline:
                report(f"the proxy of {', '.join(late)} does not see it yet")
                break
            await asyncio.sleep(FOLLOW_LOOK)
        await self._held.end()

    async def _follows(self, proxy: ProxyHand) -> bool:
        """Whether a proxy sends what asks for the new model to it. One that cannot be asked holds nobody up."""
        try:
            state = await proxy.state()
        except FleetError:
            return True
        upstreams = state.get("upstreams")
        for upstream in upstreams if isinstance(upstreams, list) else []:
            if isinstance(upstream, dict) and upstream.get("name") == upstream_name(
                    self._held.hands.snapshot().deployment):
                models = upstream.get("models")
                return isinstance(models, list) and self._held.model in models and upstream.get("health") == "ready"
        return False


def held_for(hands: Hands, model: str) -> Held | None:
    """What is held while `model` comes; None where nothing serves, and so nobody can wait."""
    deployment = hands.snapshot().deployment
    if head_record(hands.snapshot()) is None:
        return None
    return Held(hands, upstream_name(deployment), model, deployment)
