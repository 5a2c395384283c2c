"""Machines that announce themselves on the home's network, by python-zeroconf; and ourselves announced.

An answer that was good once is asked for again every minute: a machine that loses its power says no
goodbye, and its service record alone would live for 75 minutes more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import zlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import TracebackType

from zeroconf import (
    DNSPointer,
    Error,
    IPVersion,
    NonUniqueNameException,
    RecordUpdate,
    RecordUpdateListener,
    ServiceInfo,
    ServiceStateChange,
    Zeroconf,
)
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

from fleet.discovery.interfaces import own_interfaces
from fleet.discovery.multicast import cannot_open, named_scope, opened, usable
from fleet.discovery.services import NAME_LIMIT, OWN_SERVICE, SERVICES, Found, Lost, choose_interfaces, found
from fleet.model import Interface, Problem

RESOLVE_TIMEOUT = 3.0        # seconds for one answer
RESOLVE_PAUSES = (1.0, 5.0, 15.0)   # seconds before the next try while a service has never answered
RECHECK = 60.0               # seconds between two looks at a service that answered
MISSES = 2                   # unanswered looks until it counts as lost
INSTANCES_KEPT = 512         # services watched at once: a flood is not the home's machines
RESOLVES_AT_ONCE = 16
UNREAD_KEPT = 4096
INTERFACES_EVERY = 15.0      # seconds between two looks at this machine's interfaces

_LOG = logging.getLogger(__name__)


class Browser:
    """Found and Lost of all services that tell of machines (or of those in `services`), as they come.

    `async with Browser(settings) as browser: async for heard in browser: ...`. When no interface can
    be used, `problems` says why and the iterator waits: the interfaces are looked at again from time
    to time, so that a laptop that joins a network hears its machines.
    """

    def __init__(self, interfaces: Sequence[str] = (), *, own: Callable[[], Sequence[Interface]] = own_interfaces,
                 recheck: float = RECHECK, resolve_timeout: float = RESOLVE_TIMEOUT,
                 interfaces_every: float = INTERFACES_EVERY, services: Sequence[str] = SERVICES) -> None:
        self.problems: tuple[Problem, ...] = ()
        self._services = tuple(services)
        self._wanted = tuple(interfaces)
        self._own = own
        self._recheck = recheck
        self._resolve_timeout = resolve_timeout
        self._interfaces_every = interfaces_every
        self._ready = asyncio.Event()
        self._heard: asyncio.Queue[Found | Lost] = asyncio.Queue()
        self._watched: dict[str, tuple[str, asyncio.Task[None]]] = {}     # instance name -> service, its watch
        self._slots = asyncio.Semaphore(RESOLVES_AT_ONCE)
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Browser:
        async with self._stack:
            group = await self._stack.enter_async_context(asyncio.TaskGroup())
            follow = group.create_task(self._follow(), name="mdns interfaces")
            self._stack.callback(follow.cancel)
            await self._ready.wait()
            self._stack = self._stack.pop_all()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        await self._stack.aclose()

    async def __aiter__(self) -> AsyncIterator[Found | Lost]:
        while True:
            yield await self._heard.get()

    async def _follow(self) -> None:
        """Listen on the interfaces that there are, anew whenever they are others."""
        while True:
            own = await asyncio.to_thread(self._own)
            chosen = choose_interfaces(self._wanted, own)[0]
            addresses, problems = await asyncio.to_thread(usable, self._wanted, own)
            works = bool(addresses) or not chosen     # else it is tried again
            async with contextlib.AsyncExitStack() as session:
                if addresses:
                    try:
                        await self._open(session, addresses)
                    except (OSError, Error) as error:
                        problems, works = (*problems, cannot_open(error)), False
                self.problems = problems
                self._ready.set()
                while True:
                    await asyncio.sleep(self._interfaces_every)
                    own = await asyncio.to_thread(self._own)
                    if not works or choose_interfaces(self._wanted, own)[0] != chosen:
                        break
                for key, (service, _) in self._watched.items():
                    self._tell(Lost(service, key, goodbye=False))

    async def _open(self, session: contextlib.AsyncExitStack, addresses: Sequence[str]) -> None:
        mdns = await session.enter_async_context(opened(addresses))
        group = await session.enter_async_context(asyncio.TaskGroup())
        session.callback(self._stop_watching)
        goodbyes = _Goodbyes()
        mdns.zeroconf.async_add_listener(goodbyes, None)
        session.callback(mdns.zeroconf.async_remove_listener, goodbyes)

        def changed(zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange) -> None:
            self._changed(mdns, group, goodbyes, service_type, name, state_change)

        browser = AsyncServiceBrowser(mdns.zeroconf, list(self._services), handlers=[changed])
        session.push_async_callback(browser.async_cancel)

    def _changed(self, mdns: AsyncZeroconf, group: asyncio.TaskGroup, goodbyes: _Goodbyes, service: str, key: str,
                 change: ServiceStateChange) -> None:
        """Called by zeroconf, in our loop."""
        running = self._watched.get(key)
        if change is ServiceStateChange.Removed:
            if running is not None:
                del self._watched[key]
                running[1].cancel()
                self._tell(Lost(service, key, goodbyes.said(key)))
            return
        if len(key) > NAME_LIMIT or (running is None and len(self._watched) >= INSTANCES_KEPT):
            return
        if running is not None:
            running[1].cancel()
        self._watched[key] = service, group.create_task(self._watch(mdns, service, key), name=f"mdns {key!a}")

    def _tell(self, heard: Found | Lost) -> None:
        """Losses are bounded by what was found; findings are dropped where nobody takes them."""
        if isinstance(heard, Lost) or self._heard.qsize() < UNREAD_KEPT:
            self._heard.put_nowait(heard)

    def _stop_watching(self) -> None:
        for _, task in self._watched.values():
            task.cancel()
        self._watched.clear()

    async def _watch(self, mdns: AsyncZeroconf, service: str, key: str) -> None:
        """Resolve one service, and see from time to time whether its machine still answers."""
        known: Found | None = None
        misses = tries = 0
        while True:
            async with self._slots:
                answer = await self._resolve(mdns, service, key)
            if answer is not None:
                misses = 0
                if answer != known:
                    self._tell(answer)
                known = answer
            elif known is not None:
                misses += 1
                if misses == MISSES:
                    known = None
                    tries = len(RESOLVE_PAUSES)
                    self._tell(Lost(service, key, goodbye=False))
            if known is None and tries < len(RESOLVE_PAUSES):
                pause = min(RESOLVE_PAUSES[tries], self._recheck)
                tries += 1
            else:
                pause = self._recheck
            await asyncio.sleep(pause)

    async def _resolve(self, mdns: AsyncZeroconf, service: str, key: str) -> Found | None:
        try:
            info = AsyncServiceInfo(service, key)
            async with asyncio.timeout(self._resolve_timeout + 1):
                if not await info.async_request(mdns.zeroconf, self._resolve_timeout * 1000):
                    return None
            addresses = [named_scope(address) for address in info.parsed_scoped_addresses(IPVersion.All)]
            answer = found(service, key, info.server, sorted(addresses), info.port, info.properties)
        except (Error, OSError, TimeoutError, ValueError) as error:
            # One machine's odd answer must not end the search for the others.
            _LOG.info("mDNS answer of %s cannot be used: %s", ascii(key), error)
            return None
        return answer if answer is not None and answer.addresses else None


class Announcer:
    """Says `_quarterdeck._tcp` (or another `service`) for as long as it is entered; a goodbye is sent at the end."""

    def __init__(self, name: str, port: int, properties: Mapping[str, str], interfaces: Sequence[str] = (), *,
                 own: Callable[[], Sequence[Interface]] = own_interfaces, service: str = OWN_SERVICE) -> None:
        self._service = service
        self.problems: tuple[Problem, ...] = ()
        self._name = name
        self._port = port
        self._properties = dict(properties)
        self._wanted = tuple(interfaces)
        self._own = own
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Announcer:
        own = await asyncio.to_thread(self._own)
        addresses, self.problems = await asyncio.to_thread(usable, self._wanted, own)
        if not addresses:
            return self
        async with self._stack:
            try:
                mdns = await self._stack.enter_async_context(opened(addresses))
                # The broadcasts take some seconds and come back as a task: awaited, so that it is not lost.
                await (await mdns.async_register_service(self._info(addresses, own), allow_name_change=True))
            except (OSError, Error, NonUniqueNameException) as error:
                self.problems = (*self.problems, cannot_open(error))
                return self
            self._stack = self._stack.pop_all()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        await self._stack.aclose()

    def _info(self, addresses: Sequence[str], own: Sequence[Interface]) -> ServiceInfo:
        """Our service, under a host name of its own.

        The machine's real host name is avahi's or mDNSResponder's to announce: two who speak for one
        name with unlike addresses make it rename itself.
        """
        hosts = ([text.partition("/")[0] for text in interface.addresses] for interface in own)
        reachable = [host for there in hosts if set(there) & set(addresses) for host in there
                     if "%" not in host and (host in addresses or not host.startswith(("127.", "::1")))]
        here = socket.gethostname().partition(".")[0][:40] or "host"
        instance = self._name.replace(".", "-").encode()[:60].decode("utf-8", "ignore") or here
        properties = {"node": here, **self._properties}
        return ServiceInfo(self._service, f"{instance}.{self._service}", port=self._port,
                           properties={key: value[:200] for key, value in properties.items()},
                           server=f"{here}-quarterdeck-{self._port}-{_mark(addresses)}.local.",
                           parsed_addresses=list(dict.fromkeys(reachable)))


def _mark(addresses: Sequence[str]) -> str:
    """Two machines may have one name (raspberrypi), and their addresses must not become one host's."""
    return f"{zlib.crc32(' '.join(addresses).encode()):08x}"


class _Goodbyes(RecordUpdateListener):
    """Remembers who said goodbye (a pointer with no time to live) until it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self._names: set[str] = set()

    def async_update_records(self, zc: Zeroconf, now: float, records: list[RecordUpdate]) -> None:
        """Called by zeroconf before it tells its browsers."""
        for update in records:
            if isinstance(update.new, DNSPointer):
                if update.new.ttl == 0 and len(self._names) < INSTANCES_KEPT:
                    self._names.add(update.new.alias.lower())
                else:
                    self._names.discard(update.new.alias.lower())

    def async_update_records_complete(self) -> None:
        """Nothing more to do."""

    def said(self, key: str) -> bool:
        """Whether this service said goodbye; asked once."""
        name = key.lower()
        there = name in self._names
        self._names.discard(name)
        return there
