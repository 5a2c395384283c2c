"""Says over mDNS that a headless engine runs here, so that other Quarterdecks find this machine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from app.face import EngineFace
from app.output import note
from fleet.discovery.mdns import Announcer
from fleet.text import visible

SSH_PORT = 22   # how this machine is reached by those who find it


@asynccontextmanager
async def announced(engine: EngineFace) -> AsyncIterator[None]:
    """Announce for the length of the block. It takes seconds to be heard, so nobody waits for it."""
    task = asyncio.create_task(_announce(engine))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _announce(engine: EngineFace) -> None:
    config = engine.config
    properties = {"role": "engine", "fleet": config.fleet, "ssh": str(SSH_PORT)}
    async with Announcer(config.fleet, SSH_PORT, properties, config.discovery.interfaces) as announcer:
        for problem in announcer.problems:
            note(f"not announced: {visible(problem.what)} {visible(problem.remedy)}".rstrip())
        await asyncio.Event().wait()
