"""Pulling a model from many peers at once, to a file that is whole and right or not there."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Union

from .client import Connection, PeerAddress, Pool
from .fetching import Fetching
from .limits import Throttle
from .manifest import Manifest
from .peers import Peer
from .pick import Rarity
from .progress import CHECKING, DONE, PULLING, STOPPED, VERIFYING, Note, PeerLine, Progress
from .seeder import Seeder
from .store import PULL, Store
from .trouble import Stopped, StoreError, SwarmError
from .watching import Watching
from .whole import WholeHash

PARALLEL = 4
MOST_PARALLEL = 32
TELL_EVERY = 0.25         # seconds between two Progress records
LOOK_EVERY = 2.0          # seconds between two calls of peers()
ROUNDS = 3                # how often a whole that is wrong is searched for wrong pieces

Peers = Union[Sequence[str], Callable[[], Iterable[str]]]


@dataclass(frozen=True)
class Outcome:
    """A finished pull: the model's files, bytes that came over the wire, seconds, and who was banned for what."""

    paths: tuple
    received: int
    seconds: float
    banned: dict[str, str]


class Puller:
    """Fetch `manifest`'s model into `folder`.

    `peers`: URLs, or a function that is asked for them again every 2 seconds; `trackers`: seeders that
    know more peers. `seeder`: serves what is here already, from the first piece on. `parallel` requests
    run at once. `throttle` limits what is received. `tell` gets the records of progress.py, from any
    thread, and must return soon. `patience`: seconds without progress after which run() gives up (None:
    never). `rng` makes every choice repeatable as far as the network is.
    """

    def __init__(self, manifest: Manifest, folder: str | Path, peers: Peers = (), *, parallel: int = PARALLEL,
                 token: str = "", seeder: Seeder | None = None, trackers: Sequence[str] = (),
                 throttle: Throttle | None = None, tell: Callable[[object], None] | None = None,
                 patience: float | None = 60.0, stall: float = 15.0, connect_within: float = 5.0,
                 rng: random.Random | None = None, mode: str = PULL, trust: bool = True) -> None:
        if not 1 <= parallel <= MOST_PARALLEL:
            raise SwarmError(f"{parallel} at once is not within 1 and {MOST_PARALLEL}.", code="parallel")
        self.manifest, self.seeder, self.token = manifest, seeder, token
        self.store = Store(manifest, Path(folder), mode=mode)
        self.throttle = throttle or Throttle()
        self.stall, self.rng = stall, rng or random.Random()
        self.cond = threading.Condition(threading.RLock())
        self.stopping = threading.Event()
        self.peers: dict[str, Peer] = {}
        self.rarity = Rarity((), manifest.count, self.rng)
        self.pool = Pool(self.connect)
        self._given, self._trackers, self.parallel = peers, list(trackers), parallel
        self._tell, self._tell_lock = tell, threading.Lock()
        self._patience, self._connect_within, self._trust = patience, connect_within, trust
        self.follower: WholeHash | None = None
        self._fetching = Fetching(self)
        self._watching = Watching(self)
        self._received = 0
        self._phase = CHECKING
        self._asked_to_stop = threading.Event()
        self._samples: deque = deque(maxlen=20)
        self._bad_urls: set = set()

    # From other threads

    def add_peer(self, url: str) -> None:
        """One more peer, also while run() runs. SwarmError for a URL that is none."""
        self._watching.add(url)

    def set_limits(self, total: float, per_peer: float = 0.0) -> None:
        """Bytes a second to receive, 0 = no limit."""
        self.throttle.set_rates(total, per_peer)

    def stop(self) -> None:
        """End run() with Stopped as soon as possible; what is finished is kept."""
        self._asked_to_stop.set()
        with self.cond:
            self.cond.notify_all()

    # For the parts

    def connect(self, address: PeerAddress) -> Connection:
        """A connection with this pull's token and patience."""
        return Connection(address, self.token, connect_within=self._connect_within, stall=self.stall,
                          stopped=self.stopping.is_set)

    def count(self, peer: Peer, received: int) -> None:
        """Bytes came in."""
        with self.cond:
            self._received += received
            peer.received += received

    def lose(self, peer: Peer) -> None:
        """Nothing can be had from this peer now (under the condition)."""
        self.rarity.lose(peer.have)
        peer.have = set()
        peer.said = set()

    def tell(self, record: object) -> None:
        """Hand a record to whoever listens, one at a time."""
        if self._tell is not None:
            with self._tell_lock:
                self._tell(record)

    # The pull

    def run(self) -> Outcome:
        """Pull until the model is whole, verified and in place.

        Errors: Stopped; StoreError (the disk; another file has the name); SwarmError, code no-peers
        (nobody gives what is missing) or whole (the manifest contradicts itself). In every case what
        is finished stays finished and run() of a new Puller goes on from there. With a seeder the
        store stays open and is served until its close().
        """
        begun = time.monotonic()
        try:
            self.store.open(self._checking, self._asked_to_stop, trust=self._trust)
            if self.store.rebuilt:
                self.tell(Note(f"What is on disk was hashed anew: {self.store.rebuilt}."))
            if self.seeder is not None:
                self.seeder.add(self.store)
                self.seeder.on_guest = self._watching.came
            if not self.store.complete:
                self._pull()
            self._phase = DONE
            self.tell(self.progress())
            banned = {peer.url: peer.banned for peer in self.peers.values() if peer.banned}
            return Outcome(tuple(self.store.finals), self._received, time.monotonic() - begun, banned)
        except BaseException:
            self._phase = STOPPED
            if self.seeder is not None:
                self.seeder.remove(self.store)
            self.store.close()
            raise
        finally:
            if self.seeder is None:
                self.store.close()

    def _pull(self) -> None:
        have = set(self.store.holdings.snapshot())
        with self.cond:   # peers may have joined while the disk was checked
            missing = [index for index in range(self.manifest.count) if index not in have]
            self.rarity = Rarity(missing, self.manifest.count, self.rng)
            for peer in self.peers.values():
                self.rarity.gain(peer.have)
        follower = self._follow()
        workers = [threading.Thread(target=self._fetching.work, name=f"swarm-pull-{number}", daemon=True)
                   for number in range(self.parallel)]
        try:
            self._phase = PULLING
            self._add_peers()
            self._watching.follow_trackers(self._trackers)
            for worker in workers:
                worker.start()
            for _ in range(ROUNDS):
                self._until_all_here(follower)
                if self._is_right(follower):
                    self.store.put_in_place()
                    return
                wrong = self.store.wrong_pieces(self._checking, self._asked_to_stop)
                if not wrong:
                    break
                self.tell(Note(f"{len(wrong)} pieces on disk are wrong and are fetched again."))
                self.store.drop(wrong)
                with self.cond:
                    for index in wrong:
                        self.rarity.want(index)
                    self.cond.notify_all()
                follower = self._follow()
            raise SwarmError(f"The whole of {self.manifest.name} does not have the manifest's hash.",
                             "If the disk is sound, the manifest contradicts itself: get another one.", code="whole")
        finally:
            self.stopping.set()
            self.follower.stop.set()
            with self.cond:
                self.cond.notify_all()
                for assembly in self._fetching.assemblies.values():
                    for segment in assembly.segments:
                        if segment.connection is not None:
                            segment.connection.abort()
            self._watching.end()
            for thread in (*workers, self.follower.thread):   # they use the store, which is closed next
                if thread.ident is not None:
                    thread.join(30.0)
            self.pool.close()

    def _follow(self) -> WholeHash:
        follower = self.follower = WholeHash(self.store, threading.Event(), self._fetching.judged)
        follower.thread = threading.Thread(target=follower.follow, name="swarm-whole", daemon=True)
        follower.thread.start()
        return follower

    def _until_all_here(self, follower: WholeHash) -> None:
        self._phase = PULLING
        looked = told = moved = time.monotonic()
        # Bytes that come in again and again (a peer that always cuts off) are no progress.
        most, wrong = 0, self._fetching.wrong
        while len(self.store.holdings) < self.manifest.count:
            self._breathe()
            now = time.monotonic()
            done = self._bytes_here() + self._fetching.in_the_making
            if done > most or wrong != self._fetching.wrong:
                most, wrong, moved = done, self._fetching.wrong, now
            if now - looked > LOOK_EVERY:
                looked = now
                self._add_peers()
                what = self.store.changed()
                if what:
                    raise StoreError(f"While it was pulled, {what}.", "Start again.", code="changed")
            if now - told > TELL_EVERY:
                told = now
                self.tell(self.progress())
            if self._patience is not None and now - moved > self._patience:
                raise self._nobody()
            with self.cond:
                if len(self.store.holdings) < self.manifest.count:
                    self.cond.wait(TELL_EVERY)

    def _is_right(self, follower: WholeHash) -> bool:
        self._phase = VERIFYING
        while follower.thread.is_alive():
            self._breathe()
            follower.thread.join(TELL_EVERY)
            self.tell(self.progress(follower.done))
        if follower.error is not None:
            raise follower.error
        return follower.answer == [entry.sha256 for entry in self.manifest.files if entry.sha256]

    def _breathe(self) -> None:
        if self._asked_to_stop.is_set():
            raise Stopped("The pull was stopped.", "Start it again and it goes on.")
        if self.store.failure is not None:
            raise self.store.failure

    def _add_peers(self) -> None:
        for url in self._given() if callable(self._given) else self._given:
            if url not in self._bad_urls:
                try:
                    self._watching.add(url)
                except SwarmError as error:
                    self._bad_urls.add(url)
                    self.tell(Note(str(error)))

    def _nobody(self) -> SwarmError:
        with self.cond:
            reasons: list[str] = []
            for peer in self.peers.values():
                why = (peer.banned and f"{peer.url} {peer.banned}") or (peer.useless and f"{peer.url}: {peer.useless}")
                reasons.append(why or peer.trouble or f"{peer.url} does not have what is missing")
        missing = self.manifest.count - len(self.store.holdings)
        return SwarmError(f"Nobody gives the {missing} pieces of {self.manifest.name} that are missing: "
                          f"{'; '.join(reasons[:5]) or 'no peer is known'}.",
                          "Add a peer that has them; what is here is kept.", code="no-peers")

    # Telling

    def _checking(self, done: int, total: int) -> None:
        self._phase = CHECKING
        now = time.monotonic()
        if not self._samples or now - self._samples[-1][0] > TELL_EVERY:
            self._samples.append((now, 0, 0))
            self.tell(Progress(CHECKING, self.manifest.name, self.manifest.id, self.manifest.count, 0, total, done))

    def progress(self, done: int | None = None) -> Progress:
        """Where the pull is; rates are those of the last five seconds."""
        now = time.monotonic()
        sent = self.seeder.total_sent() if self.seeder is not None else 0
        with self.cond:
            self._samples.append((now, self._received, sent))
            then, before, sent_before = self._samples[0]
            span = now - then
            down = (self._received - before) / span if span > 0.2 else 0.0
            up = (sent - sent_before) / span if span > 0.2 else 0.0
            if done is None:
                done = self._bytes_here() + self._fetching.in_the_making
            left = self.manifest.total_size - done
            lines = tuple(PeerLine(peer.url, peer.state, len(peer.said), peer.rate, peer.received,
                                   peer.banned or peer.useless or peer.trouble) for peer in self.peers.values())
        return Progress(self._phase, self.manifest.name, self.manifest.id, self.manifest.count,
                        len(self.store.holdings), self.manifest.total_size, done, max(0.0, down), max(0.0, up),
                        left / down if down > 0 and self._phase == PULLING else None, lines)

    def _bytes_here(self) -> int:
        have, manifest = len(self.store.holdings), self.manifest
        if have == manifest.count:
            return manifest.total_size
        return min(manifest.total_size, have * manifest.piece_size)
