"""Seeders of the home's network by mDNS: heard of, and announced.

Whoever is on the network can say anything there. A record is believed in one thing only, that somebody at its address
may be asked for pieces of that manifest: what he sends has to have the manifest's hashes.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from fleet.discovery.addresses import parse_ip, rank
from fleet.discovery.interfaces import own_interfaces
from fleet.discovery.mdns import Announcer, Browser
from fleet.discovery.services import SWARM_SERVICE, Found, Lost
from fleet.model import Address, Interface
from fleet.node.client import parse_peer
from fleet.node.manifest import plain_name
from fleet.node.trouble import SwarmError
from fleet.swarm.loop_thread import LoopThread

MOST = 256               # seeders that are remembered
MOST_OF_ADDRESS = 8      # of them at one address: one machine cannot push the others out
_ID = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class SeederNearby:
    """Who says that he has pieces of a model."""

    manifest: str        # id
    name: str            # of the model's first file
    url: str             # http://HOST:PORT/models/ID
    host: str            # its address


def read(found: Found, own: Sequence[Interface] = (), *, local: bool = False) -> SeederNearby | None:
    """A record within bounds, None when it is no seeder's. `local`: addresses of loopback count."""
    manifest = found.properties.get("manifest", "")
    try:
        name = plain_name(found.properties.get("name", ""))
    except SwarmError:
        return None
    if found.service != SWARM_SERVICE or not _ID.fullmatch(manifest) or not found.port:
        return None
    best = rank([Address(address, found.port, source="mdns") for address in found.addresses
                 if parse_ip(address) is not None], own_networks=own, local=local)
    if not best:
        return None
    host = f"[{best[0].host}]" if ":" in best[0].host else best[0].host
    try:
        peer = parse_peer(f"http://{host}:{found.port}/models/{manifest}")
    except SwarmError:
        return None
    return SeederNearby(manifest, name, peer.url, best[0].host)


class Nearby:
    """Listens for the length of a block, in a thread of its own. `interfaces` as in `discovery.interfaces`."""

    def __init__(self, interfaces: Sequence[str] = (), *, own: Callable[[], Sequence[Interface]] = own_interfaces,
                 local: bool = False) -> None:
        self._interfaces, self._own, self._local = tuple(interfaces), own, local
        self._changed = threading.Condition()
        self._heard: dict[str, SeederNearby] = {}      # by the record's name
        self.problem = ""                              # why nobody can be heard
        self._thread = LoopThread("swarm-nearby")

    def __enter__(self) -> Nearby:
        self._thread.__enter__()
        self._thread.spawn(self._listen())
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.__exit__()

    def seeders(self) -> tuple[SeederNearby, ...]:
        """Those who were heard and not lost since."""
        with self._changed:
            return tuple(self._heard.values())

    def peers_of(self, manifest: str) -> list[str]:
        """URLs of those who say that they have pieces of this manifest."""
        return list(dict.fromkeys(seeder.url for seeder in self.seeders() if seeder.manifest == manifest))

    def wait(self, seconds: float) -> None:
        """Return when something new was heard, or after `seconds`."""
        with self._changed:
            self._changed.wait(seconds)

    async def _listen(self) -> None:
        async with Browser(self._interfaces, own=self._own, services=(SWARM_SERVICE,)) as browser:
            self.problem = " ".join(problem.what for problem in browser.problems)
            async for heard in browser:
                own = await asyncio.to_thread(self._own)
                with self._changed:
                    self._take(heard, own)
                    self._changed.notify_all()

    def _take(self, heard: Found | Lost, own: Sequence[Interface]) -> None:
        if isinstance(heard, Lost):
            self._heard.pop(heard.key, None)
            return
        seeder = read(heard, own, local=self._local)
        self._heard.pop(heard.key, None)
        if seeder is None or len(self._heard) >= MOST:
            return
        if sum(other.host == seeder.host for other in self._heard.values()) < MOST_OF_ADDRESS:
            self._heard[heard.key] = seeder


class Announcing:
    """Says for the length of a block which models are given away here. `host`: the address that is listened on."""

    def __init__(self, host: str, interfaces: Sequence[str] = (), *, say: Callable[[str], None] = lambda text: None,
                 own: Callable[[], Sequence[Interface]] = own_interfaces) -> None:
        self._host, self._interfaces, self._say, self._own = host, tuple(interfaces), say, own
        self._thread = LoopThread("swarm-announce")

    def __enter__(self) -> Announcing:
        self._thread.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.__exit__()

    def announce(self, manifest: str, name: str, port: int) -> None:
        """From now on."""
        self._thread.spawn(self._announce(manifest, name, port))

    async def _announce(self, manifest: str, name: str, port: int) -> None:
        here = socket.gethostname().partition(".")[0]
        # two machines may have one name, and each has its own record
        instance = f"{name.removesuffix('.gguf')[:24]} {manifest[:8]} {os.urandom(4).hex()} {here}"
        properties = {"manifest": manifest, "name": name, "role": "seeder"}
        async with Announcer(instance, port, properties, self._interfaces, service=SWARM_SERVICE,
                             own=lambda: reached_by(self._host, self._own())) as announcer:
            for problem in announcer.problems:
                self._say(f"Not announced: {problem.what}")
            await asyncio.Event().wait()


def reached_by(host: str, own: Sequence[Interface]) -> tuple[Interface, ...]:
    """The interfaces of this machine, with those addresses that lead to what listens on `host`."""
    def leads(text: str) -> bool:
        ip = parse_ip(text.partition("/")[0])
        if ip is None:
            return False
        version = {"0.0.0.0": 4, "::": 6}.get(host)
        return host == "" or ip.version == version or (version is None and ip == parse_ip(host))

    kept = (replace(interface, addresses=tuple(filter(leads, interface.addresses))) for interface in own)
    return tuple(interface for interface in kept if interface.addresses)
