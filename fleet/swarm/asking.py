"""Seeders that run on nodes, as they answer now: which models, how much of each, how much was sent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fleet.errors import FleetError
from fleet.model import Node, Problem, ServiceKind, ServiceRecord
from fleet.node.bitfield import BIGGEST, parse_indices
from fleet.node.manifest import MOST_PIECES
from fleet.nodes.transport import Transport
from fleet.swarm.told import bitfield
from fleet.text import visible

if TYPE_CHECKING:
    import httpx

ASK_WITHIN = 6.0         # seconds for each answer
TOKEN_LIMIT = 4_096      # bytes
MOST_MODELS = 256
_HERE = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


@dataclass(frozen=True, slots=True)
class ModelGiven:
    """One model of a seeder. `have` is a bitfield: piece i is bit 7 - i % 8 of byte i // 8."""

    manifest: str
    name: str
    size: int                    # bytes
    pieces: int
    have_count: int
    have: bytes = b""
    trouble: str = ""            # why nothing of it is served


@dataclass(frozen=True, slots=True)
class SeederSeen:
    """One seeder or puller of a node."""

    node: str
    service: str
    url: str                     # as seen from its node
    bind: str
    models: tuple[ModelGiven, ...] = ()
    sent: int = 0                # bytes since it started
    uptime: float = 0.0          # seconds
    problem: Problem | None = None


async def ask_all(nodes: Mapping[str, Node], transport_of: Callable[[str], Transport]) -> tuple[SeederSeen, ...]:
    """Every seeder that runs on these nodes. `transport_of(node)` may raise a FleetError."""
    async def one(node: Node, record: ServiceRecord) -> SeederSeen:
        try:
            return await ask(transport_of(node.name), record)
        except FleetError as error:
            return SeederSeen(node.name, record.id, _url(record), record.bind,
                              problem=Problem(error.code, error.what, error.remedy))

    asked = [one(node, record) for node in nodes.values() if node.reading
             for record in node.reading.services if record.kind is ServiceKind.SEEDER and record.alive]
    return tuple(await asyncio.gather(*asked))


async def ask(transport: Transport, record: ServiceRecord) -> SeederSeen:
    """One seeder.

    Raises:
        FleetError: it does not answer, or nonsense; its token cannot be read.
    """
    # 0.1 s of processor to import
    import httpx

    from fleet.runtimes.http_over_node import NodeHttpTransport

    token = await _token(transport, record)
    fields = {"Authorization": f"Bearer {token}"} if token else {}
    async with httpx.AsyncClient(transport=NodeHttpTransport(transport), base_url=_url(record), headers=fields,
                                 timeout=ASK_WITHIN) as http:
        said = await _get(http, "/models", record, transport.name)
        models = said.get("models")
        given, sent, uptime = [], 0, 0.0
        for model in models[:MOST_MODELS] if isinstance(models, list) else ():
            known = _model(model)
            if known is None:
                continue
            sent, uptime = _count(model.get("sent_bytes")), float(_count(model.get("uptime_seconds")))
            answer = await _get(http, f"/models/{known.manifest}/bitfield", record, transport.name)
            have = parse_indices(answer.get("have"), known.pieces)
            given.append(known if have is None else replace(known, have=bitfield(have, known.pieces)))
    return SeederSeen(transport.name, record.id, _url(record), record.bind, tuple(given), sent, uptime)


def _url(record: ServiceRecord) -> str:
    host = _HERE.get(record.bind, record.bind)
    return f"http://[{host}]:{record.port}" if ":" in host else f"http://{host}:{record.port}"


async def _get(http: httpx.AsyncClient, path: str, record: ServiceRecord, node: str) -> dict:
    import httpx

    try:
        async with asyncio.timeout(ASK_WITHIN), http.stream("GET", path) as response:
            body = bytearray()
            async for part in response.aiter_bytes():
                body += part
                if len(body) > BIGGEST:
                    break
            said = json.loads(body) if response.status_code == 200 and len(body) <= BIGGEST else None
    except (httpx.HTTPError, TimeoutError) as error:
        raise FleetError(f"{record.id} on {node} does not answer: {visible(str(error), limit=200) or 'no time left'}.",
                         f"See its log: quarterdeck logs {node} {record.id}.", code="silent") from error
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        raise FleetError(f"{record.id} on {node} gave no answer that can be read.",
                         f"See its log: quarterdeck logs {node} {record.id}.", code="unreadable")
    return said


async def _token(transport: Transport, record: ServiceRecord) -> str:
    words = list(record.argv)
    if "--token-file" not in words[:-1]:
        return ""
    path = words[words.index("--token-file") + 1]
    if not path.startswith("/"):
        return ""
    text = (await transport.read_file(path, 0, TOKEN_LIMIT)).decode("ascii", "replace").strip()
    return text if text.isascii() and text.isprintable() else ""


def _model(said: object) -> ModelGiven | None:
    if not isinstance(said, dict):
        return None
    manifest, name = said.get("manifest"), said.get("name")
    if not (isinstance(manifest, str) and isinstance(name, str) and len(manifest) == 64 and manifest.isalnum()):
        return None
    pieces = min(_count(said.get("total_pieces")), MOST_PIECES)
    trouble = said.get("trouble")
    return ModelGiven(manifest, visible(name, limit=200), _count(said.get("total_size")), pieces,
                      min(_count(said.get("have_pieces")), pieces),
                      trouble=visible(trouble, limit=200) if isinstance(trouble, str) else "")


def _count(value: object) -> int:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1 << 60 else 0
