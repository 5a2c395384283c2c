"""Where pieces are: one thread a peer follows its bitfield, one asks the trackers who else is there."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from .bitfield import parse_indices
from .client import Connection, PeerAddress, parse_peer
from .peers import Peer
from .progress import Note, PeerChange
from .trouble import BUSY, NONSENSE, REFUSED, PeerFailed, SwarmError

if TYPE_CHECKING:
    from .puller import Puller

WAIT = 20                 # seconds of a long poll
POLL = 3.0                # seconds between two questions to a peer that knows no long poll (Tightwad)
MOST_PEERS = 64
LEAST_INTERVAL, MOST_INTERVAL = 5.0, 300.0
SOON = 0.5                # seconds before a peer that is just starting is asked again
AFTER_GUEST = 1.0         # seconds between two questions to a tracker, when guests come that nobody told of
MOST_TOLD = 64
LEAVE_WITHIN = 1.0        # seconds: one that dials a machine which is gone ends by itself a little later


class Watching:
    """The threads that know who has what, for one puller; its condition guards the peers."""

    def __init__(self, puller: Puller) -> None:
        self.puller = puller
        self._threads: list[threading.Thread] = []
        self._connections: list[Connection] = []
        self._ask_now = threading.Event()

    def add(self, url: str) -> bool:
        """Follow one more peer; False when it is known already or there are too many. SwarmError: no peer's URL."""
        address = parse_peer(url)
        puller = self.puller
        with puller.cond:
            if address.url in puller.peers or len(puller.peers) >= MOST_PEERS or puller.stopping.is_set():
                return False
            if address.base in ("", f"/models/{puller.manifest.id}") and any(
                    (peer.address.host, peer.address.port) == (address.host, address.port)
                    and peer.address.base in ("", f"/models/{puller.manifest.id}") for peer in puller.peers.values()):
                return False      # a tracker names it another way
            peer = puller.peers[address.url] = Peer(address)
        self._start(self._follow, peer)
        return True

    def came(self, address: str) -> None:
        """Somebody at this address asks us: a peer there that was away is back."""
        puller = self.puller
        with puller.cond:
            known = [peer for peer in puller.peers.values() if peer.address.host == address]
            for peer in known:
                if not peer.up:
                    peer.rest_until = 0.0
        if not known:
            self._ask_now.set()      # a tracker knows its port

    def follow_trackers(self, trackers: list[str]) -> None:
        """Announce to each of them again and again, and add whom they name."""
        for url in trackers:
            self._start(self._ask_tracker, parse_peer(url))

    def end(self) -> None:
        """The puller stops: end every wait."""
        for connection in list(self._connections):
            connection.abort()
        until = time.monotonic() + LEAVE_WITHIN
        for thread in list(self._threads):
            thread.join(max(0.0, until - time.monotonic()))

    def _start(self, work: object, argument: object) -> None:
        thread = threading.Thread(target=work, args=(argument,), name="swarm-watch", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _connect(self, address: PeerAddress) -> Connection:
        connection = self.puller.connect(address)
        self._connections.append(connection)
        return connection

    def _follow(self, peer: Peer) -> None:
        puller, version = self.puller, None
        connection = self._connect(peer.address)
        while not puller.stopping.is_set() and not peer.banned and not peer.useless:
            try:
                path = "/bitfield" if version is None else f"/bitfield?since={version}&wait={WAIT}"
                answer = connection.get_json(path, WAIT + 15.0)
                if self._is_elsewhere(peer, answer):
                    connection.close()
                    self._connections.remove(connection)
                    connection, version = self._connect(peer.address), None
                    continue
                self._learn(peer, answer)
                version = answer.get("version") if type(answer.get("version")) is int else None
            except PeerFailed as error:
                version = None
                if puller.stopping.is_set():
                    break
                self._lost(peer, error)
                puller.stopping.wait(0.05)
                while time.monotonic() < peer.rest_until and not puller.stopping.wait(
                        min(0.5, max(0.0, peer.rest_until - time.monotonic()))):
                    continue
                continue
            if version is None:
                puller.stopping.wait(POLL)
        connection.close()

    def _is_elsewhere(self, peer: Peer, answer: dict) -> bool:
        """A seeder of several models whose first is another one has ours under its id."""
        theirs, ours = answer.get("manifest"), self.puller.manifest.id
        if theirs is None or theirs == ours:
            return False
        if peer.address.base:
            raise PeerFailed(NONSENSE, f"{peer.url} serves another model.")
        peer.address = PeerAddress(peer.address.host, peer.address.port, f"/models/{ours}")
        return True

    def _learn(self, peer: Peer, answer: dict) -> None:
        puller = self.puller
        whole = "new" not in answer
        said = parse_indices(answer["have" if whole else "new"] if not whole or "have" in answer else None,
                             puller.manifest.count)
        if said is None:
            raise PeerFailed(NONSENSE, f"{peer.url} has a bitfield that is none.")
        now, joined = time.monotonic(), False
        with puller.cond:
            identity = answer.get("peer")
            if puller.seeder is not None and identity == puller.seeder.id:
                peer.useless = "it is this machine"
                puller.lose(peer)
                puller.cond.notify_all()
                return
            peer.said = set(said) if whole else peer.said | set(said)
            peer.spare = answer.get("spare") is True
            if whole:
                gone = [index for index in peer.have if index not in peer.said]
                peer.have.difference_update(gone)
                puller.rarity.lose(gone)
            fresh = peer.admit(peer.said, now)
            peer.have.update(fresh)
            puller.rarity.gain(fresh)
            joined, peer.up = not peer.up, True
            puller.cond.notify_all()
        if joined:
            puller.tell(PeerChange(peer.url, "joined"))

    def _lost(self, peer: Peer, error: PeerFailed) -> None:
        puller = self.puller
        with puller.cond:
            was_up, first = peer.up, peer.failures == 0
            peer.up = False
            puller.lose(peer)
            peer.failed(time.monotonic(), error.what, puller.rng.random())
            if error.kind == REFUSED:
                peer.rest_until = time.monotonic() + 30.0
            elif error.kind == BUSY:      # it is there, and still looks at its own disk
                peer.rest_until = time.monotonic() + SOON
        if was_up or first:
            puller.tell(PeerChange(peer.url, "away", error.what))

    def _ask_tracker(self, address: PeerAddress) -> None:
        puller = self.puller
        connection, troubled = self._connect(address), False
        while not puller.stopping.is_set():
            port = puller.seeder.port if puller.seeder is not None else 0
            interval = LEAST_INTERVAL
            try:
                answer = connection.get_json(f"/announce?manifest={puller.manifest.id}&port={port}")
                interval = self._heed(address, answer)
                troubled = False
            except PeerFailed as error:
                if not troubled and not puller.stopping.is_set():
                    puller.tell(Note(f"Tracker: {error.what}"))
                troubled = True
            connection.close()
            puller.stopping.wait(AFTER_GUEST)
            until = time.monotonic() + interval - AFTER_GUEST
            while not puller.stopping.is_set() and time.monotonic() < until and not self._ask_now.wait(0.5):
                continue
            self._ask_now.clear()

    def _heed(self, tracker: PeerAddress, answer: dict) -> float:
        named, here, pause = answer.get("peers"), answer.get("here"), answer.get("interval")
        urls: list[str | None] = list(named[:MOST_TOLD]) if isinstance(named, list) else []
        if isinstance(here, str) and here == f"/models/{self.puller.manifest.id}":
            urls.append(f"http://{tracker.authority}{here}")
        for url in urls:
            if isinstance(url, str):
                try:
                    self.add(url)
                except SwarmError:
                    continue   # a tracker may name what is no URL; the rest may be good
        number = pause if isinstance(pause, (int, float)) and not isinstance(pause, bool) else MOST_INTERVAL
        # Alone, ask again soon: the first leechers of a swarm start together.
        return max(LEAST_INTERVAL, min(MOST_INTERVAL, float(number))) if len(self.puller.peers) > 2 else LEAST_INTERVAL
