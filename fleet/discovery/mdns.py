"""Machines that announce themselves on the home's network, by python-zeroconf; and ourselves announced.

An answer that was good once is asked for again every minute: a machine that loses its power says no
goodbye, and its service record alone would live for 75 minutes more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
from collections.abc import AsyncIterator, Mapping, Sequence
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

from fleet.discovery.addresses import parse_ip
from fleet.discovery.interfaces import own_interfaces
from fleet.discovery.services import NAME_LIMIT, OWN_SERVICE, SERVICES, Found, Lost, choose_interfaces, found
from fleet.model import Interface, Problem, Severity

RESOLVE_TIMEOUT = 3.0        # seconds for one answer
RESOLVE_PAUSES = (1.0, 5.0, 15.0)   # seconds before the next try while a service has never answered
RECHECK = 60.0               # seconds between two looks at a service that answered
MISSES = 2                   # unanswered looks until it counts as lost
INSTANCES_KEPT = 512         # services watched at once: a flood is not the home's machines
RESOLVES_AT_ONCE = 16
UNREAD_KEPT = 4096
CLOSE_TIMEOUT = 3.0

_MDNS_GROUP = "224.0.0.251"
_LOG = logging.getLogger(__name__)


class Browser:
    """Found and Lost of all services that tell of machines, as they come.

    `async with Browser(settings) as browser: async for heard in browser: ...`. When no interface can
    be used, `problems` says why, and the iterator waits for ever: the cockpit works without it.
    """

    def __init__(self, interfaces: Sequence[str] = (), *, own: Sequence[Interface] | None = None,
                 recheck: float = RECHECK, resolve_timeout: float = RESOLVE_TIMEOUT) -> None:
        self.problems: tuple[Problem, ...] = ()
        self._wanted = tuple(interfaces)
        self._own = own
        self._recheck = recheck
        self._resolve_timeout = resolve_timeout
        self._heard: asyncio.Queue[Found | Lost] = asyncio.Queue()
        self._watched: dict[str, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(RESOLVES_AT_ONCE)
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Browser:
        addresses, self.problems = await asyncio.to_thread(_usable, self._wanted, self._own)
        if not addresses:
            return self
        async with self._stack:
            try:
                mdns = await self._stack.enter_async_context(_opened(addresses))
            except (OSError, Error) as error:
                self.problems = (*self.problems, _cannot_open(error))
                return self
            group = await self._stack.enter_async_context(asyncio.TaskGroup())
            self._stack.callback(self._stop_watching)
            goodbyes = _Goodbyes()
            mdns.zeroconf.async_add_listener(goodbyes, None)
            self._stack.callback(mdns.zeroconf.async_remove_listener, goodbyes)

            def changed(zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange) -> None:
                self._changed(mdns, group, goodbyes, service_type, name, state_change)

            browser = AsyncServiceBrowser(mdns.zeroconf, list(SERVICES), handlers=[changed])
            self._stack.push_async_callback(browser.async_cancel)
            self._stack = self._stack.pop_all()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        await self._stack.aclose()

    async def __aiter__(self) -> AsyncIterator[Found | Lost]:
        while True:
            yield await self._heard.get()

    def _changed(self, mdns: AsyncZeroconf, group: asyncio.TaskGroup, goodbyes: _Goodbyes, service: str, key: str,
                 change: ServiceStateChange) -> None:
        """Called by zeroconf, in our loop."""
        running = self._watched.get(key)
        if change is ServiceStateChange.Removed:
            if running is not None:
                del self._watched[key]
                running.cancel()
                self._tell(Lost(service, key, goodbyes.said(key)))
            return
        if len(key) > NAME_LIMIT or (running is None and len(self._watched) >= INSTANCES_KEPT):
            return
        if running is not None:
            running.cancel()
        self._watched[key] = group.create_task(self._watch(mdns, service, key), name=f"mdns {key!a}")

    def _tell(self, heard: Found | Lost) -> None:
        """Losses are bounded by what was found; findings are dropped where nobody takes them."""
        if isinstance(heard, Lost) or self._heard.qsize() < UNREAD_KEPT:
            self._heard.put_nowait(heard)

    def _stop_watching(self) -> None:
        for task in self._watched.values():
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
            addresses = [_named_scope(address) for address in info.parsed_scoped_addresses(IPVersion.All)]
            answer = found(service, key, info.server, sorted(addresses), info.port, info.properties)
        except (Error, OSError, TimeoutError, ValueError) as error:
            # One machine's odd answer must not end the search for the others.
            _LOG.info("mDNS answer of %s cannot be used: %s", ascii(key), error)
            return None
        return answer if answer is not None and answer.addresses else None


class Announcer:
    """Says `_quarterdeck._tcp` for as long as it is entered; a goodbye is sent at the end."""

    def __init__(self, name: str, port: int, properties: Mapping[str, str], interfaces: Sequence[str] = (), *,
                 own: Sequence[Interface] | None = None) -> None:
        self.problems: tuple[Problem, ...] = ()
        self._name = name
        self._port = port
        self._properties = dict(properties)
        self._wanted = tuple(interfaces)
        self._own = own
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Announcer:
        own = self._own if self._own is not None else await asyncio.to_thread(own_interfaces)
        addresses, self.problems = await asyncio.to_thread(_usable, self._wanted, own)
        if not addresses:
            return self
        async with self._stack:
            try:
                mdns = await self._stack.enter_async_context(_opened(addresses))
                # The broadcasts take some seconds and come back as a task: awaited, so that it is not lost.
                await (await mdns.async_register_service(self._info(addresses, own), allow_name_change=True))
            except (OSError, Error, NonUniqueNameException) as error:
                self.problems = (*self.problems, _cannot_open(error))
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
        return ServiceInfo(OWN_SERVICE, f"{instance}.{OWN_SERVICE}", port=self._port,
                           properties={key: value[:200] for key, value in properties.items()},
                           server=f"{here}-quarterdeck-{self._port}.local.",
                           parsed_addresses=list(dict.fromkeys(reachable)))


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


@contextlib.asynccontextmanager
async def _opened(addresses: Sequence[str]) -> AsyncIterator[AsyncZeroconf]:
    mdns = AsyncZeroconf(interfaces=list(addresses))
    try:
        await mdns.zeroconf.async_wait_for_start()
        yield mdns
    finally:
        # An end that hangs must not hold up ours; the sockets go with the process.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await mdns.async_close()


def _usable(wanted: Sequence[str], own: Sequence[Interface] | None) -> tuple[tuple[str, ...], tuple[Problem, ...]]:
    """The addresses by which multicast works: zeroconf would give up on all because of one."""
    addresses, problems = choose_interfaces(wanted, own_interfaces() if own is None else own)
    works = tuple(address for address in addresses if _can_multicast(address))
    if not works and not problems:
        tried = f" (tried {', '.join(addresses)})" if addresses else ""
        problems = (Problem("mdns-no-interface", f"No network interface of this machine can multicast{tried}, so mDNS "
                            "finds no machines.", "Name machines in fleet.yaml or ~/.ssh/config, or set "
                            "discovery.interfaces.", Severity.WARNING),)
    return works, problems


def _can_multicast(address: str) -> bool:
    ip = parse_ip(address)
    if ip is None:
        return False
    try:
        if ip.version == 6:
            scope = address.partition("%")[2]
            index = int(scope) if scope.isdigit() else socket.if_nametoindex(scope)
            with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP,
                                 socket.inet_pton(socket.AF_INET6, "ff02::fb") + struct.pack("@I", index))
            return True
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            interface = socket.inet_aton(address)
            probe.bind((address, 0))
            probe.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, interface)
            probe.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(_MDNS_GROUP) + interface)
    except OSError:
        return False
    return True


def _named_scope(address: str) -> str:
    """fe80::1%2 as fe80::1%eth0: the number is this machine's own and says nothing to a person."""
    host, percent, scope = address.partition("%")
    if not percent or not scope.isdigit():
        return address
    try:
        return f"{host}%{socket.if_indextoname(int(scope))}"
    except (OSError, OverflowError):
        return host


def _cannot_open(error: Exception) -> Problem:
    return Problem("mdns", f"mDNS cannot be used: {error or type(error).__name__}.",
                   "Name machines in fleet.yaml or ~/.ssh/config; another program may hold UDP port 5353 for itself.",
                   Severity.WARNING)
