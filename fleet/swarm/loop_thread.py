"""An event loop beside threads: a pull has none of its own, and mDNS needs one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

END_WITHIN = 5.0     # seconds; a thread that is stuck ends with the process


class LoopThread:
    """Runs coroutines in a thread, for the length of a block; at its end they are cancelled."""

    def __init__(self, name: str) -> None:
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> LoopThread:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(END_WITHIN)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run this until it ends or the block does."""
        self._loop.call_soon_threadsafe(self._begin, work)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(self._group.create_task(work))

    def _run(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        self._loop, self._over, self._tasks = asyncio.get_running_loop(), asyncio.Event(), []
        async with asyncio.TaskGroup() as self._group:
            self._ready.set()
            await self._over.wait()
            for task in self._tasks:
                task.cancel()
