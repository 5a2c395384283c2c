"""Who is let through to an upstream, and who waits: in order, and bounded by count, bytes and time.

Requests wait while what they want is held (a swap), full, loading, or gone for a moment. `hold`, `release` and `drain`
are what a swap needs: stop admitting, wait for the running ones, let the new ones through to whatever serves then.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from fleet.proxy.exchange import Exchange, ExchangeState, HoldSettings, Problem
from fleet.proxy.routing import Routes, choose
from fleet.proxy.upstream import Health, Upstream

RETRY_AFTER = 5.0              # seconds, where nobody knows better


class Refused(Exception):
    """A request is not let through; `problem` is what its client is told."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


@dataclass(slots=True, eq=False)
class Wanted:
    """What one request needs."""

    name: str                          # of the model, as the client named it
    exchange: Exchange
    size: int = 0                      # bytes that are kept while it waits
    sticky: str = ""
    tried: set[str] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class _Waiter:
    wanted: Wanted
    granted: asyncio.Future[Upstream]
    since: float


class Gate:
    """Lets requests through to upstreams."""

    def __init__(self, routes: Routes, settings: HoldSettings, clock: Callable[[], float]) -> None:
        self._routes = routes
        self._settings = settings
        self._clock = clock
        self._queues: dict[str, deque[_Waiter]] = {}
        self._hopeless: dict[str, float] = {}
        self._moved: set[asyncio.Future[None]] = set()
        self._until: dict[str, float] = {}           # when a hold ends by itself
        self.held_models: dict[str, dict[str, object]] = {}
        self.waiting = 0
        self.waiting_bytes = 0

    # --- one request -----------------------------------------------------------------------------

    async def admit(self, wanted: Wanted, *, again: bool = False) -> Upstream:
        """Wait until an upstream takes `wanted`. It has to be given back with `done`. Raises Refused."""
        queue = self._queues.get(wanted.name)
        if (not queue or again) and (found := self._find(wanted)):
            found.take(self._clock())
            return found
        target = self._routes.target(wanted.name)
        if not target.upstreams and not self._comes(target.model):
            raise Refused(self._no_such_model(wanted.name))
        self._check_bounds(wanted)
        waiter = _Waiter(wanted, asyncio.get_running_loop().create_future(), self._clock())
        queue = self._queues.setdefault(wanted.name, deque())
        (queue.appendleft if again else queue.append)(waiter)
        self.waiting += 1
        self.waiting_bytes += wanted.size
        before, wanted.exchange.state = wanted.exchange.state, ExchangeState.HELD
        wanted.exchange.cancel = lambda: self._refuse(waiter, _cancelled())
        try:
            return await waiter.granted
        except BaseException:
            if waiter.granted.done() and not waiter.granted.cancelled() and waiter.granted.exception() is None:
                self.done(waiter.granted.result())          # let through and cancelled in the same moment
            raise
        finally:
            self._remove(waiter)
            wanted.exchange.cancel = None
            wanted.exchange.state = before
            wanted.exchange.held += self._clock() - waiter.since

    def done(self, upstream: Upstream) -> None:
        """A request has left its upstream."""
        upstream.give_back()
        self.wake()

    def _find(self, wanted: Wanted) -> Upstream | None:
        target = self._routes.target(wanted.name)
        if self.held_models and (target.model in self.held_models or wanted.name in self.held_models):
            return None
        return choose(target.upstreams, sticky=wanted.sticky, tried=wanted.tried)

    def _check_bounds(self, wanted: Wanted) -> None:
        if self.waiting >= self._settings.count or self.waiting_bytes + wanted.size > self._settings.size:
            raise Refused(self._problem(wanted.name, "queue_full",
                                        f"{self.waiting} requests wait already. Try again later."))

    def _remove(self, waiter: _Waiter) -> None:
        self.waiting -= 1
        self.waiting_bytes -= waiter.wanted.size
        name = waiter.wanted.name
        queue = self._queues.get(name)
        if queue is not None:
            if queue and queue[0] is waiter:
                queue.popleft()
            elif waiter in queue:
                queue.remove(waiter)
            if not queue:
                del self._queues[name]
                self._hopeless.pop(name, None)

    # --- what changes ----------------------------------------------------------------------------

    def wake(self) -> None:
        """Let through whoever may go now: a slot is free, an upstream is back, a hold has ended."""
        for queue in tuple(self._queues.values()):
            while queue:
                waiter = queue[0]
                if waiter.granted.done():
                    queue.popleft()
                    continue
                found = self._find(waiter.wanted)
                if found is None:
                    break
                found.take(self._clock())
                queue.popleft()
                waiter.granted.set_result(found)
        for moved in self._moved:
            if not moved.done():
                moved.set_result(None)
        self._moved.clear()

    def tick(self) -> None:
        """Twice a second: whoever waited too long is told so, and breakers whose time is over are tried."""
        now = self._clock()
        for name in [name for name, until in self._until.items() if now >= until]:
            self._release(name)
        self.wake()
        for name, queue in tuple(self._queues.items()):
            for waiter in tuple(queue):
                if now - waiter.since < self._settings.seconds:
                    break
                self._refuse(waiter, self._problem(name, "held_too_long",
                                                   f"Nothing served {name!r} within {self._settings.seconds:g} s."))
            target = self._routes.target(name)
            if self._comes(target.model):
                continue
            if not target.upstreams:
                for waiter in tuple(queue):
                    self._refuse(waiter, self._no_such_model(name))
            elif self._hope(name):
                self._hopeless.pop(name, None)
            elif now - self._hopeless.setdefault(name, now) >= self._settings.gone_seconds:
                reason = next((up.lost or up.health.reason for up in target.upstreams
                               if up.lost or up.health.reason), "")
                for waiter in tuple(queue):
                    self._refuse(waiter, self._problem(name, "upstream_unavailable",
                                                       f"No server of {name!r} answers. {reason}".strip()))

    def _comes(self, model: str) -> bool:
        """Whether a model that nobody serves is brought up because somebody asks for it."""
        return self._routes.catalogue.get(model, False) and not self._routes.target(model).upstreams

    def _hope(self, name: str) -> bool:
        """Whether waiting makes sense: somebody holds it, or serves it, or is about to."""
        target = self._routes.target(name)
        return target.model in self.held_models or name in self.held_models or any(
            up.held or up.waits or not (up.lost or up.health.state is Health.BROKEN)
            for up in target.upstreams)

    def _refuse(self, waiter: _Waiter, problem: Problem) -> None:
        if not waiter.granted.done():
            waiter.granted.set_exception(Refused(problem))

    # --- for a swap ------------------------------------------------------------------------------

    def hold(self, name: str, progress: dict[str, object] | None = None, seconds: float | None = None) -> None:
        """Admit nothing more to an upstream, or for a model; `progress` is shown to whoever waits.

        With `seconds` the hold ends by itself unless it is said again before: whoever holds may die.

        Raises:
            KeyError: there is neither.
        """
        self._hold(name, progress)
        self._until.pop(name, None)
        if seconds is not None:
            self._until[name] = self._clock() + seconds

    def _hold(self, name: str, progress: dict[str, object] | None) -> None:
        upstream = self._routes.upstreams.get(name)
        if upstream is not None:
            upstream.held, upstream.progress = True, dict(progress or {})
        elif name in self._routes.models() or name in self.held_models:
            self.held_models[name] = dict(progress or {})
        else:
            raise KeyError(name)

    def release(self, name: str) -> None:
        """Admit again, in the order of arrival. Raises KeyError where nothing has that name."""
        upstream = self._routes.upstreams.get(name)
        if upstream is None and name not in self.held_models and name not in self._routes.models():
            raise KeyError(name)
        self._release(name)
        self.wake()

    def _release(self, name: str) -> None:
        self._until.pop(name, None)
        upstream = self._routes.upstreams.get(name)
        if upstream is not None:
            upstream.held, upstream.progress = False, {}
        self.held_models.pop(name, None)

    def wanted(self) -> dict[str, tuple[int, float]]:
        """Models of the catalogue that nobody serves and requests wait for: how many, and for how many seconds."""
        now, found = self._clock(), {}
        for name, queue in self._queues.items():
            target = self._routes.target(name)
            if queue and not target.upstreams:
                count, longest = found.get(target.model, (0, 0.0))
                found[target.model] = (count + len(queue), max(longest, now - queue[0].since))
        return found

    async def drain(self, name: str, limit: float, progress: dict[str, object] | None = None,
                    seconds: float | None = None) -> int:
        """Hold, and wait up to `limit` seconds for what runs there. Returns how many still run; it stays held."""
        self.hold(name, progress, seconds)
        upstreams = self._concerned(name)
        try:
            async with asyncio.timeout(limit):
                while any(upstream.taken for upstream in upstreams):
                    moved = asyncio.get_running_loop().create_future()
                    self._moved.add(moved)
                    await moved
        except TimeoutError:
            pass
        return sum(upstream.taken for upstream in upstreams)

    def _concerned(self, name: str) -> tuple[Upstream, ...]:
        upstream = self._routes.upstreams.get(name)
        return (upstream,) if upstream is not None else self._routes.target(name).upstreams

    # --- words -----------------------------------------------------------------------------------

    def _problem(self, name: str, code: str, message: str) -> Problem:
        progress = self.progress(name)
        wait = progress.get("retry_after")
        return Problem(503, code, message, retry_after=wait if isinstance(wait, int | float) else RETRY_AFTER,
                       progress=progress)

    def progress(self, name: str) -> dict[str, object]:
        """What a waiting client can be told: state, how many wait, and what the operation that holds it says."""
        target = self._routes.target(name)
        said = self.held_models.get(target.model) or self.held_models.get(name) or next(
            (up.progress for up in target.upstreams if up.progress), {})
        if self._comes(target.model):
            state = "swapping"
        elif any(up.held for up in target.upstreams) or target.model in self.held_models or name in self.held_models:
            state = "held"
        elif any(up.lost and up.waits for up in target.upstreams):
            state = "recovering"
        elif any(up.health.state is Health.LOADING for up in target.upstreams):
            state = "loading"
        elif any(not up.lost and up.health.state is not Health.BROKEN for up in target.upstreams):
            state = "full"
        else:
            state = "unavailable"
        return {"state": state, "waiting": len(self._queues.get(name, ())), **said}

    def _no_such_model(self, name: str) -> Problem:
        if self._routes.target(name).model in self._routes.catalogue:
            return Problem(404, "model_not_loaded", f"The model {name!r} is there but not loaded, and no "
                           "request brings it up.", "invalid_request_error", param="model")
        names = ", ".join(list(self._routes.models())[:20])
        return Problem(404, "model_not_found", f"No model {name!r} is served here."
                       + (f" There are: {names}." if names else " No server is configured, or none has answered yet."),
                       "invalid_request_error", param="model")


def _cancelled() -> Problem:
    return Problem(499, "cancelled", "The request was cancelled at the proxy.", "cancelled")
