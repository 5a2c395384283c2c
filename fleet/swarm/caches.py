"""The caches of tensors that a node's workers keep, seen to by the node's own python3; see fleet/node/rpc_cache.py."""

from __future__ import annotations

import asyncio
import hashlib
import json
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

from fleet.config.schema import NodeConfig
from fleet.errors import CommandTimeout, NodeError, ServiceError
from fleet.models.header import TensorInfo
from fleet.node import fnv
from fleet.node.trouble import StoreError
from fleet.nodes.transport import Transport
from fleet.swarm.push import Parcels, look
from fleet.text import visible

SILENCE = 300.0            # seconds without a line: one tensor of some GB on a slow disk is one step
LONGEST_LIST = 120_000     # bytes of one argument that every system takes
MOST_GONE = 2_000
DECIDING = ("LLAMA_CACHE", "XDG_CACHE_HOME", "HOME")   # variables that say where a worker keeps tensors
_RUN = 'exec "$@" 2>&1 </dev/null'

Progress = Callable[[int, int], None]          # bytes done, bytes in all


@dataclass(frozen=True, slots=True)
class Gone:
    """A file that was taken away, or would be."""

    name: str
    size: int              # bytes
    why: str


@dataclass(frozen=True, slots=True)
class CacheState:
    """One folder of a node, after what was done to it."""

    node: str
    folder: str
    files: int
    bytes: int
    unproven: int          # bytes that nobody has hashed yet
    free: int              # bytes on its disk
    done: dict[str, int] = field(default_factory=dict)     # what was done: see fleet/node/rpc_cache_command.py
    gone: tuple[Gone, ...] = ()


class Caches:
    """Every cache of one node."""

    def __init__(self, transport: Transport, config: NodeConfig) -> None:
        self._transport, self._config = transport, config

    async def show(self) -> tuple[CacheState, ...]:
        """How large they are."""
        return await self._ask("show")

    async def check(self, *, new: bool = False, seconds: float = 0.0, keep: bool = False,
                    progress: Progress | None = None) -> tuple[CacheState, ...]:
        """Hash what is kept, and take away what is wrong.

        Args:
            new: only what was not found right before.
            seconds: begin with no further file after so long, 0 = no end; what is left is in `done["left"]`.
            keep: take nothing away.
        """
        return await self._ask("check", *(("--new",) if new else ()), *(("--keep",) if keep else ()),
                               "--seconds", f"{seconds:g}", progress=progress)

    async def prune(self, limit: int, *, keep: bool = False) -> tuple[CacheState, ...]:
        """Take away what was not used for longest, until each holds at most `limit` bytes; `keep`: only tell."""
        return await self._ask("prune", "--limit", str(limit), *(("--keep",) if keep else ()))

    async def seed(self, files: Sequence[str], tensors: Sequence[TensorInfo], *, limit: int = 0,
                   progress: Progress | None = None) -> tuple[CacheState, ...]:
        """Put tensors of a model that lies on the node into them.

        Args:
            files: its files there, in order.
            tensors: see `fleet.models.sent.kept_tensors`.
            limit: bytes that each may hold, 0 = any number; older ones go.
        """
        told = json.dumps([[tensor.file, tensor.offset, tensor.bytes] for tensor in tensors], separators=(",", ":"))
        if len(told) > LONGEST_LIST:
            raise ServiceError(f"{len(tensors)} large tensors are more than can be told to a node at once.",
                               "Seed some layers at a time (--layers).", code="too-many")
        return await self._ask("seed", *files, "--tensors", told, "--limit", str(limit), progress=progress)

    async def _ask(self, action: str, *words: str, progress: Progress | None = None) -> tuple[CacheState, ...]:
        """Run the node's command.

        Raises:
            NodeError: the node does not answer, or has no python3.
            ServiceError: what the command says is wrong.
        """
        ground = await look(self._transport, self._config.state_dir, [], [])
        if not ground.python:
            raise NodeError(f"{self._transport.name} has no python3 of 3.9 or newer to see to its cache with.",
                            f"Install python3 on {self._transport.name}.", code="no-python")
        parcels = Parcels(self._transport, self._config.state_dir, ground.python)
        argv = (ground.python, await parcels.push_program(), "rpc-cache", action, *words,
                *(word for told in self._environments() for word in ("--worker", told)))
        try:
            return await self._run(argv, progress)
        except ServiceError as error:
            if error.code != fnv.NO_HASHER or (library := await asyncio.to_thread(_library)) is None:
                raise
        # Compiled here: a machine of another kind says that it does not fit.
        path = await parcels.push(f"fnv-{hashlib.sha256(library).hexdigest()[:16]}.so", library)
        return await self._run((*argv, "--library", path), progress)

    def _environments(self) -> list[str]:
        """What the node's workers have in their environment that decides about the folder; one each."""
        kept = [worker for worker in self._config.workers if worker.cache] or self._config.workers
        told = [json.dumps({key: worker.env[key] for key in DECIDING if key in worker.env}, sort_keys=True)
                for worker in kept]
        return list(dict.fromkeys(told))

    async def _run(self, argv: Sequence[str], progress: Progress | None) -> tuple[CacheState, ...]:
        name = self._transport.name
        states: list[CacheState] = []
        gone: list[Gone] = []
        last = ""
        async with aclosing(self._transport.lines(_RUN, argv)) as lines:
            async for line in _each_in_time(lines, name):
                record = _record(line)
                last = line.strip() or last
                kind = record.get("event")
                if kind == "progress" and progress is not None:
                    progress(_whole(record, "done"), _whole(record, "bytes"))
                elif kind == "gone" and len(gone) < MOST_GONE:
                    gone.append(Gone(_text(record, "name"), _whole(record, "size"), _text(record, "why")))
                elif kind == "cache":
                    states.append(_state(name, record, tuple(gone)))
                    gone = []
                elif kind == "error":
                    raise ServiceError(f"{name}: {_text(record, 'what')}", _text(record, "remedy"),
                                       code=_text(record, "code")[:32] or "cache")
        if not states:
            said = visible(last, limit=200) or "no answer"
            raise ServiceError(f"{name} did not see to its cache of tensors: {said}.",
                               "Run `quarterdeck doctor` and look at this node.", code="cache")
        return tuple(states)


def _library() -> bytes | None:
    """The hash, compiled here; None: there is no compiler here either."""
    with tempfile.TemporaryDirectory(prefix="quarterdeck-") as folder:
        try:
            return Path(fnv.build(Path(folder))).read_bytes()
        except (StoreError, OSError):
            return None


async def _each_in_time(lines: AsyncIterator[str], node: str) -> AsyncIterator[str]:
    while True:
        try:
            async with asyncio.timeout(SILENCE):
                line = await anext(lines)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise CommandTimeout(f"{node} said nothing of its cache of tensors for {SILENCE:g} s.",
                                 "See whether its disk answers.") from None
        yield line


def _record(line: str) -> dict:
    try:
        told = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}


def _whole(record: dict, key: str) -> int:
    value = record.get(key)
    return value if type(value) is int and 0 <= value < 1 << 62 else 0


def _text(record: dict, key: str) -> str:
    value = record.get(key)
    return visible(value, limit=500) if isinstance(value, str) else ""


def _state(node: str, record: dict, gone: tuple[Gone, ...]) -> CacheState:
    known = ("event", "folder", "files", "bytes", "unproven", "free")
    done = {visible(key, limit=20): _whole(record, key) for key in list(record)[:32]
            if key not in known and type(record[key]) is int}
    return CacheState(node, _text(record, "folder"), _whole(record, "files"), _whole(record, "bytes"),
                      _whole(record, "unproven"), _whole(record, "free"), done, gone)
