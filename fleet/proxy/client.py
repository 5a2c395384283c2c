"""Asking and telling a proxy that runs on a node, by its control interface and through the node's transport.

The token lies in a file that only its owner can read, so whoever may sign in to the node as that user may ask.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from fleet.errors import FleetError, ServiceError
from fleet.model import ServiceRecord
from fleet.nodes.transport import Transport
from fleet.proxy.exchange import UpstreamSettings

if TYPE_CHECKING:
    import httpx

    from fleet.proxies.of_fleet import OfFleet

ALL = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}
CONTROL_FILE = "control.json"     # in the service's folder, where its facts name no other
ASK_TIMEOUT = 5.0                 # seconds
ANSWER_LIMIT = 16 * 1024 * 1024   # bytes
FILE_LIMIT = 64 * 1024


def url_of(host: str, port: int) -> str:
    """http://host:port."""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


class ProxyError(ServiceError):
    """A proxy does not answer, or refuses."""

    code = "proxy"


class ProxyClient:
    """Speaks to the proxy of one service. `close` it."""

    def __init__(self, transport: Transport, record: ServiceRecord) -> None:
        self.name = f"the proxy on {transport.name}"
        self._transport = transport
        named = record.facts.get("control")
        self._file = named if isinstance(named, str) and named.startswith("/") else f"{record.folder}/{CONTROL_FILE}"
        self._port = record.port
        self._token = ""
        # 0.1 s of processor to import: a fleet without a proxy never pays it
        import httpx

        from fleet.runtimes.http_over_node import NodeHttpTransport

        self._http: httpx.AsyncClient = httpx.AsyncClient(
            transport=NodeHttpTransport(transport),
            base_url=f"{url_of(ALL.get(record.bind, record.bind), record.port)}/quarterdeck/")

    async def close(self) -> None:
        """Let go of its connections."""
        await self._http.aclose()

    # --- asking ------------------------------------------------------------------------------------

    async def state(self) -> dict[str, object]:
        """Everything but the requests. Raises FleetError."""
        return await self._ask("GET", "state")

    async def requests(self, last: int = 60) -> dict[str, object]:
        """Live requests and the last ended ones. Raises FleetError."""
        return await self._ask("GET", f"requests?last={last}")

    # --- telling -----------------------------------------------------------------------------------

    async def cancel(self, request: str) -> bool:
        """End a live request; False when it has ended, or is not known. Raises FleetError."""
        if not request.isascii() or not request.replace("-", "").isalnum():
            return False
        return (await self._ask("POST", f"requests/{request}/cancel", {})).get("cancelled") is True

    async def hold(self, name: str, progress: Mapping[str, object], seconds: float) -> None:
        """Admit nothing more to an upstream, for so long unless it is said again. Raises FleetError."""
        await self._ask("POST", "hold", {"name": name, "progress": dict(progress), "seconds": seconds})

    async def release(self, name: str) -> None:
        """Admit again. Raises FleetError."""
        await self._ask("POST", "release", {"name": name})

    async def drain(self, name: str, limit: float, progress: Mapping[str, object], seconds: float) -> int:
        """Hold, and wait up to `limit` seconds for what runs; gives how many still do. Raises FleetError."""
        said = await self._ask("POST", "drain", {"name": name, "limit": limit, "progress": dict(progress),
                                                 "seconds": seconds}, timeout=limit + ASK_TIMEOUT)
        left = said.get("left")
        return left if isinstance(left, int) and not isinstance(left, bool) else 0

    async def fleet(self, said: OfFleet) -> dict[str, object]:
        """Say what the fleet serves now, which of it is lost and why, and what it could serve. Raises FleetError."""
        return await self._ask("PUT", "fleet", {
            "upstreams": [_plain(up) for up in said.upstreams], "lost": said.lost, "waits": said.waits,
            "catalogue": said.catalogue, "aliases": said.aliases})

    async def tell(self, kind: str, facts: Mapping[str, object]) -> None:
        """An event of the fleet, for whoever listens to the proxy's. Raises FleetError."""
        await self._ask("POST", "events", {"kind": kind, "facts": dict(facts)})

    async def stop(self) -> None:
        """Begin a graceful stop. Raises FleetError."""
        await self._ask("POST", "stop", {})

    # --- plumbing ----------------------------------------------------------------------------------

    async def _ask(self, method: str, path: str, body: object = None, *,
                   timeout: float = ASK_TIMEOUT) -> dict[str, object]:
        import httpcore
        import httpx

        token, fresh = self._token, False
        try:
            async with asyncio.timeout(timeout):
                while True:
                    if not token:
                        token, fresh = await self._read_token(), True
                    status, answer = await self._once(method, path, body, token)
                    if status != 401 or fresh:
                        break
                    token = ""                        # another proxy runs there by now
        except TimeoutError as error:
            raise ProxyError(f"{self._where} did not answer within {timeout:g} s.", "See its log.",
                             code="silent") from error
        except (httpx.HTTPError, httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException,
                OSError) as error:
            raise ProxyError(f"{self._where} cannot be asked: {error or type(error).__name__}.",
                             "See its log.") from error
        self._token = token
        if status != 200:
            raise self._refused(status, answer)
        return answer

    async def _once(self, method: str, path: str, body: object, token: str) -> tuple[int, dict[str, object]]:
        content = None if body is None else json.dumps(body).encode()
        async with self._http.stream(method, path, content=content, timeout=None,
                                     headers={"authorization": f"Bearer {token}"}) as response:
            said = bytearray()
            async for part in response.aiter_raw():
                said += part
                if len(said) > ANSWER_LIMIT:
                    raise ProxyError(f"{self._where} answers with more than {ANSWER_LIMIT >> 20} MiB.")
        try:
            answer = json.loads(bytes(said))
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise ProxyError(f"What answers on port {self._port} of {self._transport.name} is no proxy of ours "
                             f"(HTTP {response.status_code}).", "See what listens there.")
        return response.status_code, answer

    async def _read_token(self) -> str:
        try:
            text = await self._transport.read_file(self._file, 0, FILE_LIMIT)
            token = json.loads(text)["token"]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ProxyError(f"The control file of {self.name} ({self._file}) cannot be read.",
                             "Start the proxy again.") from error
        if not isinstance(token, str) or not token.isascii() or not token.isprintable() or len(token) > 200:
            raise ProxyError(f"The control file of {self.name} ({self._file}) holds no token.", "Start it again.")
        return token

    def _refused(self, status: int, answer: Mapping[str, object]) -> FleetError:
        error = answer.get("error")
        said = error if isinstance(error, dict) else {}
        what = said.get("what") or said.get("message")
        return ProxyError(f"{self._where} refuses (HTTP {status}): {str(what)[:300]}",
                          str(said.get("remedy", ""))[:300])

    @property
    def _where(self) -> str:
        return f"The proxy on {self._transport.name}, port {self._port},"


def _plain(upstream: UpstreamSettings) -> dict[str, object]:
    return asdict(upstream)
