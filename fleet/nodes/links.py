"""Measure the way between a head and its workers' nodes, over the very path that RPC takes.

Each worker's node serves a burst for one connection on the address that its worker binds, with its own python3; the
head's node connects and measures, one worker after another so that bursts do not share its cable. What ping and SSH
say would be another path (ours), and a worker itself is never touched: it serves one client, and a probe may kill it.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from importlib import resources

from fleet.errors import FleetError
from fleet.nodes.transport import Transport

TIMEOUT = 3.0              # seconds for all of it, a second more for every worker
SERVES_WITHIN = 2.5        # seconds
LONGEST_TRIP = 60.0        # seconds; more is nonsense
FASTEST = 1e12             # bytes a second; more is nonsense

_BURST = resources.files("fleet.nodes").joinpath("burst.py").read_text("utf-8")
_SCRIPT = """PATH="$PATH:/usr/local/bin:/usr/bin:/opt/homebrew/bin"
command -v python3 >/dev/null 2>&1 || { echo "none no python3"; exit 0; }
exec python3 -I -c "$@" 2>&1"""
_WAY = re.compile(r"way (\d{1,9}\.\d{1,12}) (\d{1,15})")
_PORT = re.compile(r"port (\d{1,5})")


@dataclass(frozen=True, slots=True)
class Way:
    """What was measured between two nodes; with `why`, nothing was."""

    round_trip: float = 0.0        # seconds, median
    bytes_per_second: float = 0.0  # from the worker's node to the head's
    why: str = ""


async def measure_ways(head: Transport, workers: Mapping[str, tuple[Transport, str]]) -> dict[str, Way]:
    """The ways from the head's node to others.

    Args:
        head: the head's node.
        workers: by name, each one's node and the address that its worker binds.

    A way that cannot be measured says why; nothing is raised for it.
    """
    found: dict[str, Way] = {}
    try:
        async with asyncio.timeout(TIMEOUT + len(workers)), AsyncExitStack() as stack:
            names = list(workers)
            served = await asyncio.gather(*(_served(stack, *workers[name]) for name in names))
            asked: list[tuple[str, str, int]] = []
            for name, port in zip(names, served, strict=True):
                if isinstance(port, int):
                    asked.append((name, workers[name][1], port))
                else:
                    found[name] = Way(why=port)
            found.update(await _measured(head, asked, TIMEOUT + len(workers)))
    except TimeoutError:
        found.update({name: Way(why="it took too long") for name in workers if name not in found})
    return found


async def _measured(head: Transport, asked: Sequence[tuple[str, str, int]], timeout: float) -> dict[str, Way]:
    if not asked:
        return {}
    places = [word for _, host, port in asked for word in (host, str(port))]
    try:
        done = await head.run(_SCRIPT, (_BURST, "measure", *places), timeout=timeout, limit=64 * 1024)
    except FleetError as error:
        return {name: Way(why=error.what) for name, _, _ in asked}
    lines = [line for line in done.text.splitlines() if line.startswith(("way ", "none "))]
    return {name: read_way(lines[number] if number < len(lines) else "") for number, (name, _, _) in enumerate(asked)}


def read_way(line: str) -> Way:
    """One line of what the head's node said; it is not trusted to make sense."""
    match = _WAY.fullmatch(line.strip())
    if match is None:
        return Way(why=line.removeprefix("none ").strip()[:200] or "it gave no figures")
    trip, rate = float(match[1]), float(match[2])
    if not (math.isfinite(trip) and 0 < trip <= LONGEST_TRIP and 0 <= rate <= FASTEST):
        return Way(why="its figures make no sense")
    return Way(trip, rate)


async def _served(stack: AsyncExitStack, worker: Transport, host: str) -> int | str:
    """The port that the worker's node serves on until the stack is unwound, or why it does not."""
    try:
        async with asyncio.timeout(SERVES_WITHIN):
            return await stack.enter_async_context(_server(worker, host))
    except TimeoutError:
        return "its node did not answer in time"
    except FleetError as error:
        return error.what


@asynccontextmanager
async def _server(worker: Transport, host: str) -> AsyncIterator[int | str]:
    async with aclosing(worker.lines(_SCRIPT, (_BURST, "serve", host), limit=512)) as lines:
        said = ""
        async for line in lines:
            match = _PORT.fullmatch(line.strip())
            if match is not None and 0 < int(match[1]) < 65536:
                yield int(match[1])
                return
            said = line.removeprefix("none ").strip()[:200] or said
        yield said or "its node said nothing"
