"""A seeder: gives pieces of whole or half-finished models to whoever may ask, over HTTP.

    GET /health              name, completion, uptime            (of the first model)
    GET /manifest            the manifest's JSON
    GET /bitfield            {"have": [0, 1, ...], "version": N, "manifest": ID, "peer": ID}
                             and "spare": true when it has given everything once (turns.py)
    GET /bitfield?since=N&wait=S    waits up to S seconds for news: {"new": [...], "version": M, ...}
    GET /pieces/{index}      the bytes, also by Range; 404 when the piece is not here
    GET /models              every model;  /models/{name or id}/... the same paths for each
    GET /announce?manifest=ID&port=P    the tracker: who else has pieces of that model

The first five are what Tightwad's pullers ask. A thread serves each connection; bodies go from the
page cache to the socket by sendfile and never pass through Python.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import Counter
from typing import Callable

from .access import Access, check_exposure
from .heads import BadHead
from .limits import Throttle
from .serving import Visit
from .sockets import Line
from .store import Store
from .tracker import Tracker
from .trouble import StoreError, SwarmError
from .turns import Turns

PORT = 9080
MOST_CONNECTIONS = 128
MOST_OF_ADDRESS = 64
MOST_COUNTED = 4_096      # addresses whose bytes are counted apart
LOOK_EVERY = 2.0          # seconds between two looks at the data files


class Seeder:
    """Serves the stores that are added to it. start() binds and returns; stop() ends every connection.

    `throttle` limits what is sent. Errors of start(): SwarmError, code open (nobody is kept out and
    the address is no loopback) or port (taken).
    """

    def __init__(self, host: str = "127.0.0.1", port: int = PORT, *, access: Access | None = None,
                 allow_open: bool = False, throttle: Throttle | None = None,
                 most_connections: int = MOST_CONNECTIONS, most_of_address: int = MOST_OF_ADDRESS,
                 idle: float = 60.0, head_within: float = 10.0, stall: float = 20.0) -> None:
        self.host, self.port = host, port
        self.access = access or Access()
        self.throttle = throttle or Throttle()
        self.tracker = Tracker()
        self.id = os.urandom(16).hex()
        self.idle, self.head_within, self.stall = idle, head_within, stall
        self.started = time.monotonic()
        self.stopping = threading.Event()
        self.sent: Counter = Counter()          # bytes by the guest's address
        self.pieces_sent: Counter = Counter()   # bytes by (manifest id, piece)
        self.on_guest: Callable[[str], None] | None = None   # is told the address of everybody who comes
        self._allow_open = allow_open
        self._most, self._most_of_address = most_connections, most_of_address
        self._lock, self._counting = threading.Lock(), threading.Lock()
        self._models: dict[str, Store] = {}     # by manifest id, the first is the default
        self._turns: dict[str, Turns] = {}
        self._troubles: dict[str, str] = {}     # why a model is not served at the moment
        self._guests: dict[socket.socket, str] = {}
        self._listener: socket.socket | None = None
        self._threads: list[threading.Thread] = []

    # Models

    def add(self, store: Store, *, once: bool = False) -> None:
        """Serve this store from now on, also while it fills.

        `once`: give every piece to one guest only as long as others were given to nobody (turns.py).
        """
        with self._lock:
            self._turns.pop(store.manifest.id, None)
            if once:
                self._turns[store.manifest.id] = Turns(store.holdings.snapshot())
            self._models[store.manifest.id] = store
            self._troubles.pop(store.manifest.id, None)

    def remove(self, store: Store) -> None:
        """Serve it no longer."""
        with self._lock:
            if self._models.get(store.manifest.id) is store:
                del self._models[store.manifest.id]
        store.holdings.wake()

    def models(self) -> list[Store]:
        """In the order in which they were added."""
        with self._lock:
            return list(self._models.values())

    def find(self, key: str) -> Store | None:
        """By the manifest's id or by file name; "" is the first."""
        with self._lock:
            if key in self._models:
                return self._models[key]
            stores = list(self._models.values())
        if not key:
            return stores[0] if stores else None
        return next((store for store in stores if store.manifest.name == key), None)

    def turns(self, store: Store) -> Turns | None:
        """The rule of who gets what, when this store gives every piece once."""
        return self._turns.get(store.manifest.id)

    def trouble(self, store: Store) -> str:
        """Why nothing of this store is served, "" when all is well."""
        return self._troubles.get(store.manifest.id, "")

    def look(self, store: Store) -> bool:
        """Whether the data is still what was verified; a model whose file changed is withdrawn at once."""
        if self.trouble(store):
            return False
        what = store.changed()
        if what:
            self._troubles[store.manifest.id] = what
            store.holdings.replace(())
            with self._lock:
                self._turns.pop(store.manifest.id, None)
        return not what

    # Counting

    def count(self, where: str, key: tuple, sent: int) -> None:
        """Bytes went out to the guest at `where`; `key` is (manifest id, piece)."""
        with self._counting:
            self.sent[where if where in self.sent or len(self.sent) < MOST_COUNTED else "others"] += sent
            self.pieces_sent[key] += sent

    def total_sent(self) -> int:
        """Bytes of pieces that went out since the start."""
        with self._counting:
            return sum(self.sent.values())

    # Running

    def start(self) -> None:
        """Bind and serve. `port` becomes the real one when it was 0."""
        check_exposure(self.host, self.access, self._allow_open)
        self._listener = self._bind()
        self.port = self._listener.getsockname()[1]
        for work in (self._accept, self._watch):
            thread = threading.Thread(target=work, name=f"seeder-{work.__name__.strip('_')}", daemon=True)
            thread.start()
            self._threads.append(thread)

    @property
    def url(self) -> str:
        """The base address, as a puller takes it."""
        host = "127.0.0.1" if self.host in ("", "0.0.0.0") else self.host
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    def stop(self) -> None:
        """Close the port and every connection; returns when the threads have ended (or after 5 seconds)."""
        self.stopping.set()
        if self._listener is not None:
            _shut(self._listener)     # wakes accept() at once where the system does that
            self._listener.close()
        for store in self.models():
            store.holdings.wake()
            turns = self.turns(store)
            if turns is not None:
                turns.shown.wake()
        with self._lock:
            guests = list(self._guests)
        for guest in guests:
            _shut(guest)
        until = time.monotonic() + 5
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        while time.monotonic() < until and self._guests:
            time.sleep(0.02)

    def _bind(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self.host or self.host == "" else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1 if self.host else 0)
            host = socket.getaddrinfo(self.host or "::", self.port, family, socket.SOCK_STREAM)[0][4]
            listener.bind(host)
            listener.listen(128)
            listener.settimeout(0.5)   # a closed listener does not wake accept() everywhere
        except OSError as error:
            listener.close()
            raise SwarmError(f"The seeder cannot listen on {self.host or '*'}:{self.port}: {error.strerror or error}.",
                             "Choose another --port or address.", code="port") from error
        return listener

    def _accept(self) -> None:
        while not self.stopping.is_set():
            try:
                guest, address = self._listener.accept()
            except socket.timeout:
                continue
            except OSError:
                if self.stopping.wait(0.1):   # closed; or out of file handles: try again a little later
                    return
                continue
            where = _plain(address[0])
            with self._lock:
                crowded = len(self._guests) >= self._most or \
                    sum(1 for other in self._guests.values() if other == where) >= self._most_of_address
                if not crowded:
                    self._guests[guest] = where
            if crowded:
                _turn_away(guest)
                continue
            if self.on_guest is not None:
                self.on_guest(where)
            try:
                threading.Thread(target=self._serve, args=(guest, where), name="seeder-guest", daemon=True).start()
            except RuntimeError:   # no more threads
                self._leave(guest)

    def _serve(self, guest: socket.socket, where: str) -> None:
        try:
            visit = Visit(self, Line(guest), where)
            while not self.stopping.is_set() and visit.serve_one():
                pass
        except (OSError, BadHead, StoreError):   # the guest went away, was too slow or spoke no HTTP
            return
        finally:
            self._leave(guest)

    def _leave(self, guest: socket.socket) -> None:
        with self._lock:
            self._guests.pop(guest, None)
        guest.close()

    def _watch(self) -> None:
        """Withdraw models whose files change while nobody asks; adding the store anew serves it again."""
        while not self.stopping.wait(LOOK_EVERY):
            for store in self.models():
                turns = self.turns(store)
                if turns is not None:
                    turns.look()
                if not self.trouble(store):
                    self.look(store)


def _plain(address: str) -> str:
    """An IPv4 guest on a socket for both has its IPv4 address."""
    return address[7:] if address.startswith("::ffff:") else address


def _turn_away(guest: socket.socket) -> None:
    try:
        guest.settimeout(0.2)
        guest.send(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\nRetry-After: 2\r\nConnection: close\r\n\r\n")
    except OSError:
        return
    finally:
        guest.close()


def _shut(guest: socket.socket) -> None:
    try:
        guest.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
