"""Follows every proxy of the fleet: reads it, and tells it what the fleet serves.

A proxy is found by its pid file on its node, whoever started it and when. It lives on without us; what it was told
last holds until somebody tells it something else.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from fleet.config.schema import FleetConfig
from fleet.errors import FleetError, ServiceError
from fleet.facts import head_facts
from fleet.model import Notice, Problem, Proxy, ServiceKind, ServiceRecord, Snapshot
from fleet.nodes.transport import Transport
from fleet.proxies.hands import ProxyHand
from fleet.proxies.inside import found
from fleet.proxies.of_fleet import head_record, kept, of_fleet
from fleet.proxies.readings import reading, wanted
from fleet.proxy.exchange import UpstreamSettings
from fleet.proxy.settings import speculation_of
from fleet.speculation.settings import SpeculationSettings

KEY_FILE_LIMIT = 64 * 1024
LAST = 60                    # ended requests that are shown
EVENTS_AT_ONCE = 50

Place = tuple[str, str, int]     # node, service, pid: another life of it is another proxy


class Tended(Protocol):
    """The engine, as seen from here."""

    config: FleetConfig
    clock: Callable[[], float]

    def snapshot(self) -> Snapshot:
        """The newest Snapshot."""
        ...

    def transport(self, node: str) -> Transport:
        """A connected transport, or a `NodeError`."""
        ...


class Tender:
    """`look` after every reading of a node. With `tells` proxies are told what the fleet serves."""

    def __init__(self, engine: Tended, on_news: Callable[[tuple[Proxy, ...]], None], *, tells: bool,
                 inside: Path | None = None) -> None:
        """`inside`: the folder with control files of proxies that other engines on this machine run in themselves."""
        self._engine = engine
        self._on_news = on_news
        self._tells = tells
        self._inside = inside
        self._proxies: dict[Place, Proxy] = {}
        self._hands: dict[Place, ProxyHand] = {}
        self._tasks: dict[Place, asyncio.Task[None]] = {}
        self._wanted: dict[Place, dict[str, tuple[int, float]]] = {}
        self._moved = asyncio.Event()

    # --- what is there -----------------------------------------------------------------------------

    def look(self, name: str) -> None:
        """A node was read: follow the proxies that live there, forget those that do not."""
        node = self._engine.snapshot().nodes.get(name)
        records = node.reading.services if node is not None and node.reading is not None else ()
        if node is not None and node.local and self._inside is not None:
            records = (*records, *found(self._inside, self._engine.config.fleet))
        alive = {(name, record.id, record.pid): record for record in records
                 if record.kind is ServiceKind.PROXY and record.alive and not record.stopping
                 and record.fleet in ("", self._engine.config.fleet)}
        if ("", "", 0) in self._tasks:                 # our own, seen from outside
            alive = {place: record for place, record in alive.items() if place[2] != os.getpid()}
        for place, record in alive.items():
            if place not in self._tasks:
                self._tasks[place] = asyncio.ensure_future(self._follow_service(place, record))
        for place in [place for place in self._tasks if place[0] == name and place not in alive]:
            self._forget(place)

    def forget(self, name: str) -> None:
        """A node is no longer part of the fleet."""
        for place in [place for place in self._tasks if place[0] == name]:
            self._forget(place)

    def inside(self, hand: ProxyHand, url: str) -> None:
        """The proxy that this engine runs itself."""
        place = ("", "", 0)
        self._tasks[place] = asyncio.ensure_future(self._follow(place, Proxy("", "", url, self._engine.clock()), hand))

    def hand(self, node: str, service: str) -> ProxyHand:
        """Who asks and tells a proxy that is followed. Raises ServiceError where there is none."""
        for place, hand in self._hands.items():
            if place[:2] == (node, service):
                return hand
        raise ServiceError(f"There is no proxy {service or 'inside this engine'}{f' on {node}' if node else ''}.",
                           "`quarterdeck proxy status` lists them.", code="no-service")

    def hands(self) -> dict[tuple[str, str], ProxyHand]:
        """All of them, by node and service."""
        return {place[:2]: hand for place, hand in self._hands.items()}

    def wanted(self) -> dict[str, tuple[int, float]]:
        """Models that clients wait for at any proxy: how many, and for how many seconds."""
        found: dict[str, tuple[int, float]] = {}
        for models in self._wanted.values():
            for model, (count, seconds) in models.items():
                before = found.get(model, (0, 0.0))
                found[model] = (before[0] + count, max(before[1], seconds))
        return found

    def moved(self) -> None:
        """Something has changed that proxies should know at once."""
        self._moved.set()
        self._moved = asyncio.Event()

    async def close(self) -> None:
        """Stop following; the proxies live on."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _forget(self, place: Place) -> None:
        self._tasks.pop(place).cancel()
        self._wanted.pop(place, None)
        if self._proxies.pop(place, None) is not None:
            self._on_news(tuple(self._proxies.values()))

    # --- one proxy ---------------------------------------------------------------------------------

    async def _follow_service(self, place: Place, record: ServiceRecord) -> None:
        from fleet.proxy.client import ALL, ProxyClient, url_of

        url = url_of(ALL.get(record.bind, record.bind), record.port)
        proxy = Proxy(place[0], place[1], url, self._engine.clock(), started_epoch=record.started_epoch)
        client: ProxyClient | None = None
        try:
            while client is None:
                try:
                    client = ProxyClient(self._engine.transport(place[0]), record)
                except FleetError as error:
                    self._show(place, proxy, Problem(error.code, error.what, error.remedy))
                    await self._pause()
            await self._follow(place, proxy, client)
        finally:
            if client is not None:
                with suppress(FleetError, OSError):
                    await client.close()

    async def _follow(self, place: Place, proxy: Proxy, hand: ProxyHand) -> None:
        self._hands[place] = hand
        telling = _Telling(self._engine, place[0] or self._here(), hand)
        try:
            while True:
                moved = self._moved
                try:
                    state = await telling.tell() if self._tells else await hand.state()
                    proxy = reading(proxy, state, await hand.requests(LAST), self._engine.clock())
                    self._wanted[place] = wanted(state)
                    self._show(place, proxy, telling.problem)
                except FleetError as error:
                    self._show(place, proxy, Problem(error.code, error.what, error.remedy))
                await self._pause(moved)
        finally:
            self._hands.pop(place, None)

    def _show(self, place: Place, proxy: Proxy, problem: Problem | None) -> None:
        shown = replace(proxy, problem=problem)
        if self._proxies.get(place) != shown:
            self._proxies[place] = shown
            self._on_news(tuple(self._proxies.values()))

    async def _pause(self, moved: asyncio.Event | None = None) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._engine.config.refresh):
                await (moved or self._moved).wait()

    def _here(self) -> str:
        return next((node.name for node in self._engine.snapshot().nodes.values() if node.local), "")


class _Telling:
    """Tells one proxy what the fleet serves and what has happened, at every look: it may have been started anew."""

    def __init__(self, engine: Tended, node: str, hand: ProxyHand) -> None:
        self.problem: Problem | None = None
        self._engine, self._node, self._hand = engine, node, hand
        self._keys: dict[tuple[str, str, int], str] = {}
        self._last: tuple[UpstreamSettings, ...] = ()
        self._told = engine.snapshot().notices[-1:]

    async def tell(self) -> Mapping[str, object]:
        """Gives the proxy's state. Raises FleetError."""
        snapshot, config = self._engine.snapshot(), self._engine.config
        self.problem = None
        try:
            said = of_fleet(snapshot, config, self._node, await self._key(snapshot), await self._speculation(snapshot))
        except FleetError as error:
            self.problem = Problem(error.code, error.what, error.remedy)
            said = of_fleet(snapshot, config, self._node)
        if said.unreachable:
            self.problem = Problem("no-way", said.unreachable, "Start the proxy again: it is given a way there. Or "
                                   "bind the head to an address of its network (`head: {bind: ...}` in fleet.yaml).")
        said = kept(said, self._last, snapshot, config)
        self._last = said.upstreams
        state = await self._hand.fleet(said)
        await self._events(snapshot)
        return state

    async def _key(self, snapshot: Snapshot) -> str:
        record = head_record(snapshot)
        file = head_facts(record.facts).api_key_file if record is not None else ""
        if record is None or not file:
            return ""
        place = (snapshot.deployment.head, record.id, record.pid)
        if place not in self._keys:
            text = await self._engine.transport(place[0]).read_file(file, 0, KEY_FILE_LIMIT)
            lines = (line.strip() for line in text.decode("utf-8", "replace").splitlines())
            self._keys = {place: next((line for line in lines if line), "")}
        return self._keys[place]

    async def _speculation(self, snapshot: Snapshot) -> SpeculationSettings | None:
        """What fleet.yaml says of drafts for the model that serves. Keys are read here. Raises ConfigError."""
        model = self._engine.config.models.get(snapshot.deployment.model)
        if model is None or model.speculation is None:
            return None
        return await asyncio.to_thread(speculation_of, model.speculation, dict(os.environ))

    async def _events(self, snapshot: Snapshot) -> None:
        """What has happened since the last look, for dashboards that listen to the proxy."""
        new = _after(snapshot.notices, self._told)
        self._told = snapshot.notices[-1:]
        for notice in new[-EVENTS_AT_ONCE:]:
            await self._hand.tell("fleet", {"severity": str(notice.severity), "text": notice.text, "node": notice.node,
                                            "happened": notice.at_epoch})


def _after(notices: tuple[Notice, ...], last: tuple[Notice, ...]) -> tuple[Notice, ...]:
    """Those that came after `last`."""
    for index in range(len(notices) - 1, -1, -1):
        if last and notices[index] == last[0]:
            return notices[index + 1:]
    return notices if last else ()
