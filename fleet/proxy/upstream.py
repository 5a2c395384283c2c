"""One server behind the proxy: what is known of it, by two kinds of evidence, in one state machine.

Traffic (what requests met) and probes (what it answers when asked how it is) move the same `Health`. A server that
reads a long prompt may answer no probe: while requests run there, silence is no evidence. Nothing listens, or it dies
in the middle, is evidence at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from fleet.proxy.exchange import BackendKind, UpstreamSettings
from fleet.proxy.pool import MOST_IDLE, Pool, place_of
from fleet.proxy.wire import Connection, WireError
from fleet.speculation.spoken import Spoken

BREAKER_LONGEST = 60.0      # seconds between two tries, however often it failed


class Health(StrEnum):
    """What an upstream is taken to be."""

    UNKNOWN = "unknown"        # not asked yet
    READY = "ready"
    LOADING = "loading"        # answers 503: its model loads
    TRIAL = "trial"            # failed before; one request may try it
    BROKEN = "broken"          # nothing is sent until its time is over


@dataclass(frozen=True, slots=True)
class Breaker:
    """When an upstream counts as broken, and for how long (seconds)."""

    failures: int = 3
    seconds: float = 5.0


class HealthMachine:
    """READY, LOADING, BROKEN, TRIAL and back, from traffic and probes. `clock` gives seconds."""

    def __init__(self, breaker: Breaker, clock: Callable[[], float]) -> None:
        self.state = Health.UNKNOWN
        self.reason = ""
        self.failures = 0
        self.broken_until = 0.0
        self._breaker = breaker
        self._clock = clock
        self._trips = 0
        self._trial_runs = False

    # --- evidence --------------------------------------------------------------------------------

    def answered(self) -> None:
        """Traffic: a request got the start of an answer."""
        self.failures = self._trips = 0
        self._trial_runs = False
        self._be(Health.READY, "")

    def failed(self, code: str, message: str) -> None:
        """Traffic: a request met a closed door (refused, unreachable) or was broken off."""
        self.failures += 1
        trial, self._trial_runs = self.state is Health.TRIAL, False
        if trial or code in ("refused", "unreachable") or self.failures >= self._breaker.failures:
            self._break(message)

    def loading(self, message: str) -> None:
        """Either: it answers that its model loads."""
        self.failures = 0
        self._trial_runs = False
        self._be(Health.LOADING, message)

    def probe_answered(self) -> None:
        """A probe got its answer. That heals a closed door; who broke off requests has to show it can answer one."""
        if self.state is Health.BROKEN:
            if self.failures < self._breaker.failures:
                self.failures = self._trips = 0
                self._be(Health.READY, "")
            else:
                self._be(Health.TRIAL, self.reason)
        elif self.state is not Health.TRIAL:
            self._be(Health.READY, "")

    def probe_failed(self, code: str, message: str, *, running: int) -> None:
        """A probe got none. With requests running there it is busy, unless nobody listens any more."""
        if running:
            return
        if code in ("refused", "unreachable"):
            self._break(message)
        else:
            self.failures += 1
            if self.failures >= self._breaker.failures:
                self._break(message)

    def begin_trial(self) -> None:
        """A request is sent; the only one where this is a trial."""
        if self.available() and self.state in (Health.TRIAL, Health.BROKEN):
            self._be(Health.TRIAL, self.reason)
            self._trial_runs = True

    def end_trial(self) -> None:
        """That request ended without evidence: cancelled before an answer."""
        self._trial_runs = False

    # --- what follows ----------------------------------------------------------------------------

    def available(self) -> bool:
        """Whether a request may be sent."""
        match self.state:
            case Health.READY | Health.UNKNOWN:
                return True
            case Health.TRIAL:
                return not self._trial_runs
            case Health.BROKEN:
                return self._clock() >= self.broken_until
            case _:
                return False

    def _break(self, message: str) -> None:
        self._trips += 1
        self.broken_until = self._clock() + min(BREAKER_LONGEST, self._breaker.seconds * 2 ** min(self._trips - 1, 8))
        self._be(Health.BROKEN, message)

    def _be(self, state: Health, reason: str) -> None:
        self.state, self.reason = state, reason


class Upstream:
    """One upstream with its connections, its requests, and what it said of itself."""

    def __init__(self, settings: UpstreamSettings, breaker: Breaker, clock: Callable[[], float]) -> None:
        self.settings = settings
        self.name = settings.name
        self.place = place_of(settings.url)
        self.health = HealthMachine(breaker, clock)
        self.pool = Pool(self.place, connect_timeout=settings.connect_timeout, most_idle=self._most_idle())
        self.slots = settings.slots
        self.context: int | None = None
        self.build = ""
        self.told_models: tuple[str, ...] = ()
        self.running = 0                   # requests that hold a slot here
        self.held = False                  # nothing new is admitted
        self.progress: dict[str, object] = {}     # of the operation that holds it, for who waits
        self.lost = ""                     # somebody knows that it will never answer again, and why
        self.look = asyncio.Event()        # there may be news of it: probe it now
        self.waits = False                 # it comes back: requests wait for it
        self.sleeping = False
        self.removed = False
        self.requests = self.failures = self.tokens = 0      # since the start
        self.last_used = 0.0
        self.connections: set[Connection | Spoken] = set()   # of running requests
        self._before: Upstream | None = None      # the same server by its former settings, while requests run there

    def follow(self, before: Upstream) -> None:
        """Take the place of `before`: a hold goes on, and of the same server all that is known stays true.

        Else a change of its settings would send it everything that waits, until it says again how much it takes.
        """
        self.held, self.progress = before.held, before.progress
        if (self.place, self.settings.backend) != (before.place, before.settings.backend):
            return
        self.health, self.lost, self._before = before.health, before.lost, before
        self.learn(slots=before.slots, context=before.context, build=before.build, models=before.told_models,
                   sleeping=before.sleeping)
        self.requests, self.failures, self.tokens = before.requests, before.failures, before.tokens
        self.last_used = before.last_used

    def _most_idle(self) -> int:
        # Every idle connection keeps one of llama-server's few HTTP threads (at least slots + 2).
        return 2 if self.settings.backend is BackendKind.LLAMA_SERVER else MOST_IDLE

    @property
    def models(self) -> tuple[str, ...]:
        """What it serves: as configured, else as it said."""
        return self.settings.models or self.told_models

    @property
    def free(self) -> int | None:
        """Requests that it could still take; None = no limit known."""
        return None if self.slots is None else max(0, self.slots - self.taken)

    @property
    def taken(self) -> int:
        """Slots in use, also by requests that came by its former settings."""
        if self._before is not None and not self._before.taken:
            self._before = None
        return self.running + (self._before.taken if self._before is not None else 0)

    @property
    def busy(self) -> bool:
        """Every slot is in use."""
        return self.free == 0

    def may_take(self) -> bool:
        """Whether a request may be sent now."""
        return (not self.held and not self.removed and not self.lost and self.free != 0
                and self.health.available())

    def take(self, now: float) -> None:
        """A request is sent here."""
        self.health.begin_trial()
        self.running += 1
        self.requests += 1
        self.last_used = now

    def give_back(self) -> None:
        """It has ended."""
        self.running -= 1

    def learn(self, *, slots: int | None = None, context: int | None = None, build: str = "",
              models: tuple[str, ...] = (), sleeping: bool = False) -> None:
        """What it said of itself."""
        if self.settings.slots is None and slots:
            self.slots = slots
            if self.settings.backend is BackendKind.LLAMA_SERVER:
                self.pool.most_idle = max(1, min(MOST_IDLE, slots))
        self.context = context or self.context
        self.build = build or self.build
        self.told_models = models or self.told_models
        self.sleeping = sleeping

    def cut_stalled(self, now: float) -> None:
        """End the connections on which nothing has come for too long; who reads them is told."""
        settings = self.settings
        for connection in tuple(self.connections):
            limit = settings.stall_timeout if connection.begun else settings.first_byte_timeout
            if connection.waits_for_client:
                connection.moved_at = now
            elif now - connection.moved_at > limit:
                code = "stalled" if connection.begun else "silent"
                connection.abort(WireError(code, f"Nothing came for {limit:g} s.", started=connection.begun))

    def state(self) -> dict[str, object]:
        """As JSON, without its key."""
        return {
            "name": self.name, "url": self.settings.url, "backend": str(self.settings.backend),
            "health": str(self.health.state), "reason": self.health.reason, "held": self.held, "busy": self.busy,
            "progress": self.progress, "lost": self.lost, "models": list(self.models), "group": self.settings.group,
            "slots": self.slots, "running": self.running, "context": self.context, "build": self.build,
            "sleeping": self.sleeping, "requests": self.requests, "failures": self.failures, "tokens": self.tokens,
            "connections": self.pool.open,
        }
