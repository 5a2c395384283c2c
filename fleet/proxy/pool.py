"""The connections to one upstream, and where it is."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

from fleet.errors import ConfigError
from fleet.proxy.wire import Connection, WireError
from fleet.speculation.spoken import Spoken

IDLE_SECONDS = 3.0              # llama-server closes an idle connection after 5 s
MOST_IDLE = 64


@dataclass(frozen=True, slots=True)
class Place:
    """Where an upstream is, from its URL."""

    host: str
    port: int
    secure: bool
    prefix: str                          # path before /v1, without a slash at its end

    @property
    def host_header(self) -> str:
        """As the Host header has it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.secure else 80) else f"{host}:{self.port}"


def place_of(url: str) -> Place:
    """Read an upstream's URL.

    Raises:
        ConfigError: it is no http(s) URL with a host.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = None, None
    wrong = parts is None or parts.scheme not in ("http", "https") or not parts.hostname
    if wrong or parts.username or parts.query or parts.fragment or any(ord(c) <= 32 or ord(c) > 126 for c in url):
        raise ConfigError(f"The upstream URL {url[:200]!r} cannot be used.",
                          "Write it as http://HOST:PORT, with a path where the server has one; a key goes to `key`.")
    secure = parts.scheme == "https"
    prefix = parts.path.rstrip("/").removesuffix("/v1")
    return Place(parts.hostname, port or (443 if secure else 80), secure, prefix)


class Pool:
    """The connections to one upstream. Idle ones are few and short-lived: in llama-server each keeps a thread."""

    def __init__(self, place: Place, *, connect_timeout: float, most_idle: int = MOST_IDLE) -> None:
        self.place = place
        self.most_idle = most_idle
        self._connect_timeout = connect_timeout
        self._idle: list[tuple[float, Connection]] = []
        self._open: set[Connection] = set()
        self._secure: ssl.SSLContext | None = None

    @property
    def open(self) -> int:
        """Connections that are there."""
        self._prune()
        return len(self._open)

    async def get(self, *, fresh: bool = False) -> Connection:
        """An idle connection, or a new one. Raises WireError."""
        now = asyncio.get_running_loop().time()
        while self._idle and not fresh:
            since, connection = self._idle.pop()
            if connection.reusable and now - since < IDLE_SECONDS:
                return connection
            self.drop(connection)
        return await self._connect()

    def put(self, connection: Connection | Spoken) -> None:
        """Give a connection back; it is kept where another request may use it."""
        self._prune()
        if connection.reusable and len(self._idle) < self.most_idle:
            self._idle.append((asyncio.get_running_loop().time(), connection))
        else:
            self.drop(connection)

    def _prune(self) -> None:
        oldest = asyncio.get_running_loop().time() - IDLE_SECONDS
        while self._idle and (self._idle[0][0] < oldest or self._idle[0][1].closed):
            self.drop(self._idle.pop(0)[1])

    def close_idle(self) -> None:
        """End the connections that nobody uses."""
        while self._idle:
            self.drop(self._idle.pop()[1])

    def close(self) -> None:
        """End every connection."""
        self._idle.clear()
        for connection in tuple(self._open):
            self.drop(connection)

    def drop(self, connection: Connection | Spoken) -> None:
        """End one connection."""
        self._open.discard(connection)
        connection.abort()

    async def _connect(self) -> Connection:
        place = self.place
        if place.secure and self._secure is None:
            self._secure = await asyncio.to_thread(ssl.create_default_context)
        try:
            async with asyncio.timeout(self._connect_timeout):
                _, connection = await asyncio.get_running_loop().create_connection(
                    Connection, place.host, place.port, ssl=self._secure if place.secure else None)
        except TimeoutError as error:
            raise WireError("unreachable", f"{place.host_header} did not take a connection within "
                            f"{self._connect_timeout:g} s.") from error
        except ConnectionRefusedError as error:
            raise WireError("refused", f"Nothing listens on {place.host_header}.") from error
        except OSError as error:
            raise WireError("unreachable", f"{place.host_header} cannot be reached: "
                            f"{error.strerror or type(error).__name__}.") from error
        self._open.add(connection)
        return connection
