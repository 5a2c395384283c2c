"""The proxy without its HTTP: upstreams and their probes, the gate, what is remembered, and what may be told to do.

`Proxy` is the control interface itself: a headless engine that runs the proxy inside calls these methods; a cockpit
beside it reaches the same ones through `control.py`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import asdict

from fleet.errors import NO_SUCH, ConfigError, FleetError
from fleet.proxy.exchange import BackendKind, Call, ProxySettings, UpstreamSettings
from fleet.proxy.forward import Forwarder
from fleet.proxy.hold import Gate
from fleet.proxy.metrics import prometheus
from fleet.proxy.probes import keep_probing
from fleet.proxy.records import Records, live_of
from fleet.proxy.routing import Routes
from fleet.proxy.upstream import Breaker, Upstream
from fleet.proxy.wire import WireError
from fleet.speculation.session import TargetSession, drafting_state
from fleet.speculation.spoken import Spoken

LOST_STILL = 3.0               # seconds without a byte from a server that is said to be lost, until it is believed
TICK = 0.5                     # seconds between two looks at what waits and what stands still
MOST_UPSTREAMS = 256


class Proxy:
    """Everything behind the surface. `run` has to run beside whoever calls the rest."""

    def __init__(self, settings: ProxySettings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.settings = settings
        self.clock = clock
        self.routes = Routes(settings.aliases, settings.default_model)
        self.gate = Gate(self.routes, settings.hold, clock)
        self.records = Records(settings.records, clock, keep_bodies=settings.keep_bodies)
        self.forward = Forwarder(settings, self.routes, self.gate, self.records, clock=clock, spawn=self._spawn,
                                 speculate=self._speculate)
        self.sessions: dict[Upstream, TargetSession] = {}
        self.stopping = False
        self._group: asyncio.TaskGroup | None = None
        self._leaving: set[Upstream] = set()         # taken out of the configuration, with requests that still run
        self._probes: dict[str, asyncio.Task[None]] = {}
        self._breaker = Breaker(settings.breaker_failures, settings.breaker_seconds)
        self._of_fleet: tuple[UpstreamSettings, ...] = ()
        self.set_upstreams(settings.upstreams)

    async def run(self) -> None:
        """Probe, and see to what waits, until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                for upstream in self.routes.upstreams.values():
                    self._watch(upstream)
                while True:
                    self.tick()
                    await asyncio.sleep(TICK)
        finally:
            self._group = None
            self._probes.clear()
            for session in self.sessions.values():
                session.close()
            for upstream in (*self.routes.upstreams.values(), *self._leaving):
                upstream.pool.close()

    def tick(self) -> None:
        """What time alone changes."""
        self.gate.tick()
        now = self.clock()
        self._leaving = {upstream for upstream in self._leaving if upstream.running}
        for upstream in (*self.routes.upstreams.values(), *self._leaving):
            upstream.cut_stalled(now)
            if upstream.lost:
                self._fail(upstream, upstream.lost, LOST_STILL)
        limit = self.settings.limits.write_timeout
        for exchange in tuple(self.records.live.values()):
            if exchange.sending_since is not None and now - exchange.sending_since > limit and exchange.drop:
                exchange.problem = "client_stalled"
                exchange.drop()

    # --- what is there -----------------------------------------------------------------------------

    def state(self) -> dict[str, object]:
        """Everything but the requests, as JSON."""
        return {
            "started": self.records.started, "stopping": self.stopping, "requests": self.records.total,
            "live": len(self.records.live), "waiting": self.gate.waiting, "waiting_bytes": self.gate.waiting_bytes,
            "held_models": self.gate.held_models, "aliases": self.routes.aliases,
            "models": {name: [up.name for up in ups] for name, ups in self.routes.models().items()},
            "upstreams": [up.state() for up in self.routes.upstreams.values()],
            "drafting": drafting_state(self.sessions.values(), self.records.drafts),
            "wanted": {model: {"waiting": count, "seconds": seconds}
                       for model, (count, seconds) in self.gate.wanted().items()},
        }

    def requests(self, last: int = 100) -> dict[str, object]:
        """Live requests and the last ended ones, as JSON."""
        now = self.clock()
        ended = list(self.records.ring)[-last:] if last > 0 else []
        return {"live": [live_of(exchange, now) for exchange in self.records.live.values()],
                "ended": [asdict(record) for record in ended]}

    def body(self, id: str) -> bytes | None:
        """The body of a request, where bodies are kept."""
        live = self.records.live.get(id)
        return (live.body or None) if live is not None else self.records.bodies.get(id)

    def metrics(self) -> bytes:
        """Prometheus text."""
        return prometheus(self.records, self.routes, self.gate)

    # --- what may be done --------------------------------------------------------------------------

    def cancel(self, id: str) -> bool:
        """End a live request: its client gets an error and an end. False where it has ended, or just begins."""
        exchange = self.records.live.get(id)
        if exchange is None or exchange.cancel is None:
            return False
        exchange.cancel()
        return True

    def hold(self, name: str, progress: dict[str, object] | None = None, seconds: float | None = None) -> None:
        """Admit nothing more to an upstream or for a model, for so many `seconds` unless it is said again.

        Raises FleetError where nothing has that name.
        """
        self._named(name, lambda: self.gate.hold(name, progress, seconds))
        self._tell("held", name)

    def release(self, name: str) -> None:
        """Admit again. Raises FleetError where nothing has that name."""
        self._named(name, lambda: self.gate.release(name))
        self._tell("released", name)

    async def drain(self, name: str, limit: float, progress: dict[str, object] | None = None,
                    seconds: float | None = None) -> int:
        """Hold, and wait up to `limit` seconds for the running requests. Returns how many still run."""
        self.hold(name, progress, seconds)
        left = await self.gate.drain(name, limit, progress, seconds)
        self._tell("drained", name, left=left)
        return left

    def fail(self, name: str, reason: str, still: float = 0.0) -> int:
        """End what runs on an upstream and has not moved for `still` seconds: somebody knows that it never will.

        A head whose worker lost its power computes for ever and looks healthy. Clients that have seen nothing of
        their answer wait for a server that can give it; the others get an error event. Returns how many were ended.
        Raises FleetError where no upstream has that name.
        """
        found: list[Upstream] = []
        self._named(name, lambda: found.append(self.routes.upstreams[name]))
        return self._fail(found[0], reason, still)

    def _fail(self, upstream: Upstream, reason: str, still: float) -> int:
        now, ended = self.clock(), 0
        for connection in tuple(upstream.connections):
            if now - connection.moved_at >= still:
                connection.abort(WireError("died", reason, started=connection.begun))
                ended += 1
        if ended:
            self._tell("failed", upstream.name, ended=ended, reason=reason)
        return ended

    def set_fleet(self, upstreams: Iterable[UpstreamSettings], lost: Mapping[str, str],
                  catalogue: Mapping[str, bool], aliases: Mapping[str, str], *, waits: bool = False) -> None:
        """What the fleet serves now, beside the configured upstreams; which of it is lost, and why.

        With `waits` what is lost comes back, and requests for it wait.

        Raises ConfigError, and then changes nothing.
        """
        wanted = tuple(upstreams)
        if wanted != self._of_fleet:
            configured = {settings.name for settings in self.settings.upstreams}
            if taken := [settings.name for settings in wanted if settings.name in configured]:
                raise ConfigError(f"The upstream {taken[0][:100]!r} is configured already.", "Give it another name.")
            self.set_upstreams((*self.settings.upstreams, *wanted))
            self._of_fleet = wanted
        for settings in wanted:
            upstream, reason = self.routes.upstreams[settings.name], lost.get(settings.name, "")
            if (upstream.lost, upstream.waits) != (reason, waits):
                upstream.lost, upstream.waits = reason, waits
                self._changed(upstream)
            if upstream.health.state != "ready":
                upstream.look.set()
        names = {**aliases, **self.settings.aliases}
        if names != self.routes.aliases:
            self.routes.aliases = names
            self._changed(None)
        self.set_catalogue(catalogue)

    def set_catalogue(self, models: Mapping[str, bool]) -> None:
        """Which models could be served, and whether a request for one that is not has it brought up."""
        if dict(models) != self.routes.catalogue:
            self.routes.catalogue = dict(models)
            self._changed(None)

    def set_upstreams(self, upstreams: Iterable[UpstreamSettings]) -> None:
        """Have these upstreams and no others. One that stays as it was keeps all that is known of it.

        What runs on one that goes runs to its end. Raises ConfigError, and then changes nothing.
        """
        wanted: dict[str, UpstreamSettings] = {}
        for settings in upstreams:
            if not settings.name or settings.name in wanted or len(wanted) >= MOST_UPSTREAMS:
                raise ConfigError(f"The upstream {settings.name[:100]!r} has no name of its own.",
                                  "Give every upstream a name, each another one.")
            wanted[settings.name] = settings
        made = {name: Upstream(settings, self._breaker, self.clock) for name, settings in wanted.items()
                if name not in self.routes.upstreams or self.routes.upstreams[name].settings != settings}
        for name, upstream in tuple(self.routes.upstreams.items()):
            if name not in wanted or name in made:
                upstream.removed = True
                self._leaving.add(upstream)
                upstream.pool.close_idle()
                upstream.pool.most_idle = 0
                self.forward.conversations.forget(name)
                if name in made:
                    made[name].follow(upstream)
                if (probe := self._probes.pop(name, None)) is not None:
                    probe.cancel()
        self.routes.upstreams = {name: made.get(name) or self.routes.upstreams[name] for name in wanted}
        self._begin_sessions()
        self._changed(None)
        if self._group is not None:
            for upstream in made.values():
                self._watch(upstream)

    # --- plumbing ----------------------------------------------------------------------------------

    async def _speculate(self, call: Call, upstream: Upstream) -> Spoken | None:
        """An answer with drafts, where this upstream has them and the request allows it."""
        session = self.sessions.get(upstream)
        return await session.open(call) if session is not None else None

    def _begin_sessions(self) -> None:
        """One for each upstream that has drafts in front of it."""
        serving = set(self.routes.upstreams.values())
        for upstream in [upstream for upstream in self.sessions if upstream not in serving]:
            self.sessions.pop(upstream).close()
        for upstream in serving:
            settings = upstream.settings.speculation
            if settings is not None and upstream not in self.sessions \
                    and upstream.settings.backend is BackendKind.LLAMA_SERVER:
                self.sessions[upstream] = TargetSession(upstream, settings, clock=self.clock, spawn=self._spawn)

    def _watch(self, upstream: Upstream) -> None:
        assert self._group is not None
        self._probes[upstream.name] = self._group.create_task(
            keep_probing(upstream, self.settings.probe_interval, self._changed))

    def _changed(self, upstream: Upstream | None) -> None:
        self.routes.changed()
        self.gate.wake()
        if upstream is not None:
            self._tell("upstream", upstream.name, state=str(upstream.health.state), reason=upstream.health.reason)

    def _tell(self, kind: str, name: str, **facts: object) -> None:
        self.records.events.tell(kind, {"name": name, **facts})

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        if self._group is None:
            work.close()
            return
        self._group.create_task(work)

    def _named(self, name: str, act: Callable[[], None]) -> None:
        try:
            act()
        except KeyError as error:
            raise FleetError(f"The proxy knows no upstream and no model {name[:100]!r}.",
                             f"It has: {', '.join([*self.routes.upstreams, *self.routes.models()][:20]) or 'none'}.",
                             code=NO_SUCH) from error
