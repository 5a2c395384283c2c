"""A connection to one peer: small JSON answers within bounds, and pieces as a stream into a buffer."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Callable
from urllib.parse import quote, urlsplit

from . import heads
from .manifest import BIGGEST_MANIFEST
from .sockets import Closed, Line, TimedOut, send_all
from .trouble import BUSY, GONE, MISSING, NONSENSE, REFUSED, SHORT, SLOW, PeerFailed, SwarmError

BIGGEST_JSON = 1024 * 1024   # bytes of a bitfield, health or tracker answer
LONGEST_URL = 512
_HOST = re.compile(r"[A-Za-z0-9._:%-]{1,255}")


@dataclass(frozen=True)
class PeerAddress:
    """Where a peer serves a model: http://HOST:PORT[/models/NAME]."""

    host: str
    port: int
    base: str

    @property
    def url(self) -> str:
        """As it was given, in one form."""
        return f"http://{self.authority}{self.base}"

    @property
    def authority(self) -> str:
        """HOST:PORT as it stands in a URL."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_peer(url: str, default_port: int = 9080) -> PeerAddress:
    """"10.0.0.7", "tower:9080", "http://tower:9080/models/NAME"; SwarmError for anything else."""
    text = url.strip()
    try:
        if len(text) > LONGEST_URL:
            raise ValueError("it is too long")
        parts = urlsplit(text if "://" in text else f"http://{text}")
        if parts.scheme != "http":
            raise ValueError("only http is spoken")
        if parts.username or parts.password or parts.query or parts.fragment or "@" in parts.netloc:
            raise ValueError("it has more than host, port and path")
        host, port = parts.hostname or "", parts.port or default_port
        if not _HOST.fullmatch(host):
            raise ValueError("the host is none")
        base = parts.path.rstrip("/")
        if any(ord(letter) < 0x21 or ord(letter) == 0x7f for letter in base):
            raise ValueError("the path has blanks")
        return PeerAddress(host, port, quote(base, safe="/%-._~!$&'()*+,;=:@"))
    except ValueError as error:
        raise SwarmError(f"{text[:80]!a} is no peer: {error}.", "Write it as http://HOST:9080.",
                         code="peer") from None


class Connection:
    """One keep-alive connection. Every failure is PeerFailed and leaves it closed."""

    def __init__(self, peer: PeerAddress, token: str = "", *, connect_within: float = 5.0, answer_within: float = 15.0,
                 stall: float = 15.0, stopped: Callable[[], bool] = lambda: False) -> None:
        self.peer, self.token = peer, token
        self.connect_within, self.answer_within, self.stall = connect_within, answer_within, stall
        self.stopped = stopped
        self._line: Line | None = None
        self._left = 0                # bytes of the current body that were not read
        self._keep = False

    @property
    def is_free(self) -> bool:
        """Whether it is open and can take another request."""
        return self._line is not None and self._left == 0

    def close(self) -> None:
        """Let the connection go."""
        if self._line is not None:
            self._line.sock.close()
            self._line = None

    def abort(self) -> None:
        """End a wait in another thread: its recv returns at once."""
        line = self._line
        if line is not None:
            try:
                line.sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                return

    def get_json(self, path: str, within: float = 15.0, most: int = BIGGEST_JSON) -> dict:
        """A JSON object of at most `most` bytes."""
        data = self.get_bytes(path, within, most)
        try:
            content = json.loads(data.decode("utf-8"), parse_int=_short, parse_constant=_no_constant)
        except (ValueError, RecursionError):
            raise self._failed(NONSENSE, "answers with something that is no JSON") from None
        if not isinstance(content, dict):
            raise self._failed(NONSENSE, "answers with something that is no object")
        return content

    def get_manifest(self) -> bytes:
        """The manifest's JSON, unchecked."""
        return self.get_bytes("/manifest", 60.0, BIGGEST_MANIFEST)

    def get_bytes(self, path: str, within: float, most: int) -> bytes:
        """The whole body of a 200."""
        answer = self._ask(self.peer.base + path, {}, within)
        self._expect(answer, (200,), path)
        if answer.length > most:
            raise self._failed(NONSENSE, f"sends {answer.length} bytes for {path.partition('?')[0]}")
        try:
            data = self._line.body(answer.length, within)
        except OSError as error:
            raise self._broken(error) from None
        self._left = 0
        if not self._keep:
            self.close()
        return data

    def open_piece(self, index: int, size: int, start: int, stop: int) -> None:
        """Ask for bytes `start` to `stop` of a piece; receive() then gives them.

        A peer that knows no ranges is PeerFailed NONSENSE when it was asked for a part.
        """
        part = start > 0 or stop < size
        fields = {"Range": f"bytes={start}-{stop - 1}"} if part else {}
        answer = self._ask(f"{self.peer.base}/pieces/{index}", fields, self.answer_within)
        self._expect(answer, (200, 206), f"piece {index}")
        if part and (answer.status != 206 or answer.start != start):
            raise self._failed(NONSENSE, "knows no ranges")
        if answer.length != stop - start or (not part and answer.status != 200):
            raise self._failed(SHORT if answer.length < stop - start else NONSENSE,
                               f"offers {answer.length} bytes for the {stop - start} of piece {index}")

    def receive(self, view: memoryview) -> int:
        """The next bytes of the body into `view`, 0 when a second passed without any."""
        try:
            count = self._line.receive(view[:min(len(view), self._left)])
        except OSError as error:
            raise self._broken(error) from None
        self._left -= count
        if self._left == 0 and not self._keep:
            self.close()
        return count

    def _ask(self, target: str, fields: Mapping[str, str], within: float) -> heads.Answer:
        sent = dict(fields)
        if self.token:
            sent["Authorization"] = f"Bearer {self.token}"
        request = heads.request_head(target, self.peer.authority, sent)
        if self._left:
            self.close()     # the rest of an abandoned body is in the way
        fresh = self._line is None
        for attempt in (1, 2):
            if self._line is None:
                self._connect()
            try:
                send_all(self._line.sock, request, self.answer_within)
                head = self._line.head(within, self.answer_within, self.stopped)
                if head is None:
                    raise Closed("closed before it answered")
                answer = heads.parse_answer(head)
            except heads.BadHead as error:
                raise self._failed(NONSENSE, f"answers with {error}") from None
            except TimedOut:
                raise self._failed(SLOW, f"did not answer within {within:.0f} s") from None
            except OSError as error:
                # A kept connection may have been closed by the other end while nobody used it: once more.
                if fresh or attempt == 2:
                    raise self._broken(error) from None
                self.close()
                continue
            self._left, self._keep = answer.length, answer.keep
            return answer
        raise self._failed(GONE, "was lost")

    def _connect(self) -> None:
        try:
            sock = socket.create_connection((self.peer.host, self.peer.port), self.connect_within)
        except (OSError, UnicodeError) as error:
            late = isinstance(error, socket.timeout)
            raise self._failed(SLOW if late else GONE,
                               "does not answer" if late else f"cannot be reached ({_reason(error)})") from None
        try:
            self._line = Line(sock)
        except OSError as error:
            sock.close()
            raise self._failed(GONE, f"was lost ({_reason(error)})") from None

    def _expect(self, answer: heads.Answer, good: tuple, what: str) -> None:
        if answer.status in good:
            return
        kind = {401: REFUSED, 403: REFUSED, 404: MISSING, 503: BUSY}.get(answer.status, NONSENSE)
        word = {401: "wants a token or another one (401)", 403: "does not serve this address (403)",
                404: f"does not have {what} (404)", 503: "has too many guests (503)"}
        raise self._failed(kind, word.get(answer.status, f"answers {answer.status} for {what}"))

    def _broken(self, error: OSError) -> PeerFailed:
        if isinstance(error, TimedOut):
            return self._failed(SLOW, "stopped sending")
        if isinstance(error, Closed) and self._left:
            return self._failed(SHORT, f"closed with {self._left} bytes still to come")
        return self._failed(GONE, f"was lost ({_reason(error)})")

    def _failed(self, kind: str, what: str) -> PeerFailed:
        self.close()
        self._left = 0
        return PeerFailed(kind, f"{self.peer.url} {what}.")


class Pool:
    """Open connections that nobody uses at the moment, by peer."""

    def __init__(self, make: Callable[[PeerAddress], Connection], most: int = 32, idle: float = 20.0) -> None:
        self._make, self._most, self._idle = make, most, idle
        self._lock = threading.Lock()
        self._free: list[tuple] = []

    def take(self, peer: PeerAddress) -> Connection:
        """A connection to `peer`, an open one when there is one."""
        now = time.monotonic()
        with self._lock:
            old = [entry for entry in self._free if now - entry[1] > self._idle]
            self._free = [entry for entry in self._free if now - entry[1] <= self._idle]
            found = next((entry for entry in self._free if entry[0].peer == peer), None)
            if found is not None:
                self._free.remove(found)
        for entry in old:
            entry[0].close()
        return found[0] if found is not None else self._make(peer)

    def give(self, connection: Connection) -> None:
        """It is free for the next."""
        with self._lock:
            self._free.append((connection, time.monotonic()))
            over = self._free.pop(0)[0] if len(self._free) > self._most else None
        if over is not None:
            over.close()

    def close(self) -> None:
        """Close all."""
        with self._lock:
            free, self._free = self._free, []
        for connection, _ in free:
            connection.close()


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _short(digits: str) -> int:
    if len(digits) > 20:
        raise ValueError("a number that is too long")
    return int(digits)


def _no_constant(word: str) -> float:
    raise ValueError(word)
