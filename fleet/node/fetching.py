"""The workers of a puller: each takes the next piece, gap or slow neighbour's rest and carries it out."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from .assembly import Assembly, Segment
from .client import Connection
from .files import store_error, write_all
from .peers import Peer, usual_rate
from .pick import best_source, share
from .progress import Banned, Note, PieceDone
from .sockets import BUFFER
from .trouble import BUSY, MISSING, NONSENSE, SLOW, PeerFailed, Stopped, StoreError

if TYPE_CHECKING:
    from .puller import Puller

CLOSE = 8                 # pieces between the hash of the whole and one that may wait for it
WAITING = 2               # pieces beyond those on their way that may wait for the hash of the whole
MUCH = 4 << 20            # bytes: a peer that was lost after as many is worth asking again soon
GRAIN = 16_384            # bytes: shares of a split piece are whole grains
WORTH = 1.0               # seconds that a run must still take before another peer helps
STALLED = 3.0             # seconds without a byte: another peer takes all of the rest


class Fetching:
    """The assemblies of one puller and the rules of who does what; the puller's condition guards them."""

    def __init__(self, puller: Puller) -> None:
        self.puller = puller
        self.assemblies: dict[int, Assembly] = {}
        self.suspects: dict[int, list[tuple]] = {}   # runs of a wrong piece that several peers sent
        self.wrong = 0                               # pieces that were thrown away
        # The kernel lets one thread at a time write to a file; without this lock the others spin (9% of all).
        self._writing = threading.Lock()

    @property
    def in_the_making(self) -> int:
        """Bytes of pieces that are not whole yet."""
        return sum(assembly.done for assembly in list(self.assemblies.values()))

    def work(self) -> None:
        """The body of a worker thread."""
        puller, buffer = self.puller, memoryview(bytearray(BUFFER))
        while True:
            with puller.cond:
                job = None if puller.stopping.is_set() else self._next(time.monotonic())
                while job is None and not puller.stopping.is_set():
                    puller.cond.wait(0.25)
                    job = None if puller.stopping.is_set() else self._next(time.monotonic())
                if job is None:
                    return
                peer, segment = job
                peer.active += 1
            try:
                self._carry_out(peer, segment, buffer)
            except StoreError as error:
                puller.store.fail(error)
                return

    # What to do next (under the condition)

    def _next(self, now: float) -> tuple[Peer, Segment] | None:
        if self.puller.store.failed.is_set():
            return None
        usable = [peer for peer in self.puller.peers.values() if peer.usable(now)]
        if len(usable) > 1:
            # Half of the workers stay free for the others: a busy source that has what nobody has
            # would bind them all, and what the others could give meanwhile would have to wait.
            most = max(1, self.puller.parallel // 2)
            usable = [peer for peer in usable if peer.active < most]
        if not usable:
            return None
        return self._gap(usable) or self._piece(usable) or self._rest_of_another(usable, now)

    def _gap(self, usable: list[Peer]) -> tuple[Peer, Segment] | None:
        for index, assembly in self.assemblies.items():
            if not assembly.gaps:
                continue
            owners = self._without_spare([peer for peer in usable if index in peer.have], index)
            if index in self.suspects and assembly.gaps != [(0, assembly.piece.size)] and not assembly.segments:
                self._start_over(assembly)    # a second try has to come from one peer alone
            able = [peer for peer in owners if peer.ranges or assembly.gaps == [(0, assembly.piece.size)]]
            if not able and owners and not assembly.segments:
                self._start_over(assembly)    # those who have it know no ranges
                able = owners
            if able:
                start, stop = assembly.gaps.pop()
                peer = self._best(able)
                return peer, assembly.begin(peer.url, start, stop)
        return None

    def _start_over(self, assembly: Assembly) -> None:
        assembly.gaps, assembly.sent = [(0, assembly.piece.size)], []

    def _piece(self, usable: list[Peer]) -> tuple[Peer, Segment] | None:
        puller = self.puller
        sources = [peer for peer in puller.peers.values() if not peer.banned and not peer.useless]
        puller.rarity.set_in_order(len(sources) == 1)
        if len(sources) == 1 and self._in_turn() >= puller.parallel + WAITING:
            return None       # that hash ends last in any case: the processor is its, not the next pieces'
        index = puller.rarity.first([peer.have for peer in usable if not peer.spare])
        if index is None:
            index = self._spare_piece([peer for peer in usable if peer.spare])
        if index is None:
            return None
        puller.rarity.unwant(index)
        assembly = self.assemblies[index] = Assembly(puller.manifest.piece(index))
        # One source, in order, and the hash of the whole close behind: it verifies the piece on its way.
        ahead = index - puller.follower.next if puller.follower is not None else -1
        assembly.in_turn = len(sources) == 1 and bool(puller.manifest.upto) and 0 <= ahead <= CLOSE
        peer = self._best(self._without_spare([peer for peer in usable if index in peer.have], index))
        start, stop = assembly.gaps.pop()
        return peer, assembly.begin(peer.url, start, stop)

    def _in_turn(self) -> int:
        return sum(assembly.in_turn for assembly in self.assemblies.values())

    def _spare_piece(self, spare: list[Peer]) -> int | None:
        """A piece that only peers have which gave everything once already."""
        if not spare or self._some_are_unknown():
            return None
        others = set().union(*(peer.have for peer in self._others()))
        return self.puller.rarity.first([peer.have - others for peer in spare])

    def _without_spare(self, owners: list[Peer], index: int) -> list[Peer]:
        """Of those who have a piece, who should be asked; nobody when one who is busy now should be."""
        if self._some_are_unknown() or any(index in peer.have for peer in self._others()):
            return [peer for peer in owners if not peer.spare]
        return owners

    def _some_are_unknown(self) -> bool:
        """Whether a peer has not said yet what it has, and may still."""
        return any(not peer.up and not peer.failures and not peer.banned and not peer.useless
                   for peer in self.puller.peers.values())

    def _others(self) -> list[Peer]:
        return [peer for peer in self.puller.peers.values()
                if peer.up and not peer.spare and not peer.banned and not peer.useless and peer.failures < 2]

    def _rest_of_another(self, usable: list[Peer], now: float) -> tuple[Peer, Segment] | None:
        """The end game: nothing new is left, so help with the run that would take the longest."""
        usual = usual_rate(usable) or 0.0
        best, longest = None, WORTH
        for index, assembly in self.assemblies.items():
            if index in self.suspects:
                continue
            for segment in assembly.segments:
                able = [peer for peer in usable if peer.ranges and index in peer.have and peer.url != segment.peer]
                able = [peer for peer in able if not peer.spare] or \
                    (able if now - segment.last > STALLED else [])
                if not able or segment.left <= 0:
                    continue
                peer, slow = self._best(able), segment.rate(now)
                takes = segment.left / slow if slow > 0 else 3_600.0
                stalled = now - segment.last > STALLED
                fast = (peer.rate or usual or 4 * slow) / (peer.active + 1 if peer.active > 1 else 1)
                count = segment.left if stalled else share(segment.left, slow, fast, GRAIN)
                if count > 0 and (stalled or now - segment.begun > WORTH) and takes > longest:
                    best, longest = (peer, segment, count, stalled), takes
        if best is None:
            return None
        peer, segment, count, stalled = best
        start, stop = segment.take_over(count)
        if start == stop:
            return None
        if stalled and segment.connection is not None:
            segment.connection.abort()
        return peer, segment.assembly.begin(peer.url, start, stop)

    def _best(self, peers: list[Peer]) -> Peer:
        return peers[best_source([(peer.rate, peer.active) for peer in peers])]

    # Doing it

    def _carry_out(self, peer: Peer, segment: Segment, buffer: memoryview) -> None:
        puller = self.puller
        connection = puller.pool.take(peer.address)
        segment.connection = connection
        failure: PeerFailed | None = None
        broken: StoreError | None = None
        try:
            self._receive(connection, peer, segment, buffer)
        except PeerFailed as error:
            failure = error
        except StoreError as error:
            broken = error
        except Stopped:
            connection.close()
        if failure is None and broken is None and connection.is_free:
            puller.pool.give(connection)
        else:
            connection.close()
        assembly, now = segment.assembly, time.monotonic()
        with puller.cond:
            segment.connection = None
            peer.active -= 1
            got, taken_over = segment.position - segment.start, segment.left <= 0
            assembly.end(segment)
            if failure is None:
                peer.gave(got, now - segment.begun)
            elif not puller.stopping.is_set():
                self._blame(peer, assembly.piece.index, failure, now, got, taken_over)
            complete = broken is None and assembly.is_complete
            puller.cond.notify_all()
        if broken is not None:
            raise broken
        if complete:
            self._check(assembly)

    def _receive(self, connection: Connection, peer: Peer, segment: Segment, buffer: memoryview) -> None:
        puller, piece = self.puller, segment.assembly.piece
        handle = puller.store.handle(piece.file)
        connection.open_piece(piece.index, piece.size, segment.start, segment.stop)
        last = time.monotonic()
        while segment.left > 0:
            if puller.stopping.is_set() or puller.store.failed.is_set():
                raise Stopped("The pull was stopped.")
            count = connection.receive(buffer[:puller.throttle.chunk()])
            now = time.monotonic()
            if count == 0:
                if now - last > puller.stall:
                    raise PeerFailed(SLOW, f"{peer.url} sent nothing for {puller.stall:.0f} s.")
                continue
            last = now
            at, mine = segment.claim(count)
            view = buffer[:mine]
            try:
                with self._writing:
                    write_all(handle, view, piece.at + at)
            except OSError as error:
                raise store_error(error, puller.store.parts[piece.file]) from error
            if not segment.assembly.in_turn:
                segment.hasher.update(view)
            puller.count(peer, count)
            puller.store.wrote(mine)
            delay = puller.throttle.reserve(peer.address.host, count)
            if delay > 0:
                puller.stopping.wait(min(delay, 60.0))
                last = time.monotonic()

    def _blame(self, peer: Peer, index: int, failure: PeerFailed, now: float, got: int, taken_over: bool) -> None:
        if failure.kind == MISSING:
            if index in peer.have:
                self.puller.rarity.lose([index])
                peer.deny(index, now)
            peer.trouble = failure.what
            return
        if failure.kind == NONSENSE and "ranges" in failure.what:
            peer.ranges = False
            return
        if failure.kind == BUSY:
            peer.rest_until = now + 1.0 + self.puller.rng.random()
            return
        if got >= MUCH and not taken_over:
            peer.failures = max(0, peer.failures - 1)   # it does send; it is not dead
        peer.failed(now, failure.what, self.puller.rng.random())

    def _check(self, assembly: Assembly) -> None:
        """The last byte is written: hash, and believe or throw away."""
        if assembly.in_turn:
            self.puller.store.holdings.arrive(assembly.piece.index)
            return
        digest = assembly.digest() or self.puller.store.digest(assembly.piece)
        self._settle(assembly, digest == assembly.piece.sha256)

    def judged(self, index: int, right: bool) -> None:
        """The hash of the whole came by a piece that was waiting for it."""
        with self.puller.cond:
            assembly = self.assemblies.get(index)
        if assembly is not None:
            self._settle(assembly, right)

    def _settle(self, assembly: Assembly, right: bool) -> None:
        puller, piece, senders = self.puller, assembly.piece, assembly.senders()
        if right:
            with puller.cond:
                suspects = self.suspects.pop(piece.index, [])
                self.assemblies.pop(piece.index, None)
            puller.store.finish(piece.index)
            puller.tell(PieceDone(piece.index, tuple(senders), len(puller.store.holdings)))
            for sender, start, stop, sent in suspects:
                if sent and puller.store.digest(piece, start, stop) != sent:
                    self._ban(sender, piece.index, f"sent wrong bytes within piece {piece.index}")
        else:
            with puller.cond:
                self.wrong += 1
                self.assemblies.pop(piece.index, None)
                if len(senders) > 1:
                    self.suspects.setdefault(piece.index, []).extend(assembly.sent)
                    self.assemblies[piece.index] = Assembly(piece)
                else:
                    puller.rarity.want(piece.index)
            if len(senders) == 1:
                self._ban(senders[0], piece.index, f"sent a piece {piece.index} whose hash is wrong")
            else:
                puller.tell(Note(f"Piece {piece.index} from {', '.join(senders)} has a wrong hash; "
                                 "it is fetched again from one peer to find out which."))
        with puller.cond:
            puller.cond.notify_all()

    def _ban(self, url: str, index: int, why: str) -> None:
        puller = self.puller
        with puller.cond:
            peer = puller.peers.get(url)
            if peer is None or peer.banned:
                return
            peer.banned = why
            puller.lose(peer)
            for assembly in self.assemblies.values():
                for segment in assembly.segments:
                    if segment.peer == url and segment.connection is not None:
                        segment.connection.abort()
        puller.tell(Banned(url, index, why))
