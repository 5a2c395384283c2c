"""Looks for machines in every way that is switched on, and tells what it finds as events."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from fleet.config.schema import FleetConfig
from fleet.discovery.addresses import parse_ip
from fleet.discovery.identity import KnownNode, Registry
from fleet.discovery.interfaces import own_interfaces
from fleet.discovery.services import Found, Lost
from fleet.discovery.sightings import Source, by_hand, from_config, this_machine
from fleet.errors import FleetError
from fleet.events import DiscoveryReported, Event, NodeLeft
from fleet.model import Address, Problem, Severity

if TYPE_CHECKING:
    from fleet.discovery.mdns import Browser

PRUNE_EVERY = 10.0     # seconds between two looks for ghosts
HOME_ENDINGS = (".local", ".lan", ".home", ".home.arpa", ".internal", ".fritz.box")


class Finder:
    """Sightings of all sources go in, NodeFound and NodeForgotten come out through `emit`."""

    def __init__(self, config: FleetConfig, *, emit: Callable[[Event], None], clock: Callable[[], float]) -> None:
        self._config = config
        self._emit = emit
        self._clock = clock
        self._registry = Registry(hostname=socket.gethostname())
        self._problems: dict[str, tuple[Problem, ...]] = {}
        self._gone: set[str] = set()
        self._browser: Browser | None = None

    def start_known(self) -> None:
        """What needs no network: this machine, fleet.yaml."""
        now = self._clock()
        self._pass_on(self._registry.own_networks_changed(own_interfaces(), now))
        # in one go: this machine may have another name in fleet.yaml, and must not be seen under two
        self._pass_on(self._registry.saw(this_machine(socket.gethostname(), now),
                                         *(from_config(node, now) for node in self._config.nodes.values())))

    def reconfigure(self, config: FleetConfig) -> None:
        """Another fleet.yaml is in force."""
        self._config = config
        now = self._clock()
        self._pass_on(self._registry.replace(
            Source.CONFIG, [from_config(node, now) for node in config.nodes.values()], now))

    def add(self, text: str) -> None:
        """A machine typed by hand.

        Raises:
            FleetError: that is no address.
        """
        self._pass_on(self._registry.saw(by_hand(text, self._clock())))

    def identify(self, name: str, address: Address | None, fingerprint: str, machine_id: str, hostname: str) -> None:
        """What a node proved to be: two names of one machine become one node by this."""
        now = self._clock()
        self._registry.reached(name, now)
        self._pass_on(self._registry.identify(name, now, address=address, fingerprint=fingerprint,
                                              machine_id=machine_id, hostname=hostname))

    def known(self, name: str) -> KnownNode | None:
        """All that the sources say of a node: user, key files and hops too."""
        return self._registry.nodes.get(name)

    def is_at_home(self, name: str) -> bool:
        """Whether a machine is on a network of the house: heard by mDNS, or at a private address with no hops.

        An ssh_config also names servers at work; nobody signs in there unasked, and no ProxyCommand is run unasked.
        """
        node = self._registry.nodes.get(name)
        if node is None or node.jump or node.through:
            return False
        return Source.MDNS in node.sources or any(_is_private(address.host) for address in node.addresses)

    async def run(self) -> None:
        """Look until cancelled."""
        async with asyncio.TaskGroup() as group:
            if self._config.discovery.ssh_config:
                group.create_task(self._read_ssh_config())
            if self._config.discovery.mdns:
                group.create_task(self._listen())
            group.create_task(self._prune())

    async def _read_ssh_config(self) -> None:
        # it parses with asyncssh, which takes 0.26 s of processor to import
        from fleet.discovery.ssh_config import read_ssh_config

        found = await asyncio.to_thread(lambda file: read_ssh_config(Path(file).expanduser()),
                                        self._config.discovery.ssh_config_file)
        now = self._clock()
        sightings = [alias.sighting(now) for alias in found.aliases]
        self._pass_on(self._registry.replace(Source.SSH_CONFIG, sightings, now))
        self._report("ssh_config", tuple(Problem("ssh-config", warning, severity=Severity.WARNING)
                                         for warning in found.warnings))

    async def _listen(self) -> None:
        # zeroconf takes 0.1 s of processor to import
        from fleet.discovery.mdns import Browser

        try:
            async with Browser(self._config.discovery.interfaces) as browser:
                self._browser = browser
                self._report("mdns", browser.problems)
                async for heard in browser:
                    match heard:
                        case Found():
                            self._pass_on(self._registry.saw(heard.sighting(self._clock())))
                        case Lost():
                            self._pass_on(self._registry.lost(Source.MDNS, heard.key, self._clock(),
                                                              goodbye=heard.goodbye))
        except FleetError as error:
            self._report("mdns", (Problem(error.code, error.what, error.remedy, Severity.WARNING),))

    async def _prune(self) -> None:
        while True:
            await asyncio.sleep(PRUNE_EVERY)
            if self._browser is not None:      # its interfaces may have come or gone since
                self._report("mdns", self._browser.problems)
            self._pass_on(self._registry.own_networks_changed(own_interfaces(), self._clock()))
            self._pass_on(self._registry.prune(self._clock()))

    def _report(self, way: str, problems: tuple[Problem, ...]) -> None:
        if self._problems.get(way, ()) != problems:
            self._problems[way] = problems
            self._emit(DiscoveryReported(self._clock(), tuple(p for known in self._problems.values() for p in known)))

    def _pass_on(self, events: tuple[Event, ...]) -> None:
        for event in events:
            self._emit(event)
        self._tell_who_left()

    def _tell_who_left(self) -> None:
        """A machine that only mDNS knew, and has lost, is shown as gone until it is back or pruned."""
        gone = {name: node for name, node in self._registry.nodes.items() if node.gone_since is not None}
        for name in gone.keys() - self._gone:
            how = "said goodbye" if gone[name].said_goodbye else "has not been heard of for a while"
            self._emit(NodeLeft(self._clock(), name, Problem(
                "gone", f"{name} {how}.", "It is forgotten after a while, and back as soon as it is heard again.",
                Severity.INFO)))
        self._gone = set(gone)


def _is_private(host: str) -> bool:
    ip = parse_ip(host)
    if ip is None:
        return host.lower().rstrip(".").endswith(HOME_ENDINGS)
    return ip.is_private or ip.is_link_local
