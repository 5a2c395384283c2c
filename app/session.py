"""One engine for the length of one command, and one way out for every signal."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from app.exit_codes import ExitCode
from app.face import EngineFace, MakeEngine
from app.output import note

SETTLE_TIMEOUT = 12.0   # seconds: a node's connection has 8 of its own (ssh.connect_timeout), a probe 10
ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_to_end(main: Callable[[], Awaitable[int]]) -> int:
    """Run `main` in an event loop. The first SIGINT, SIGTERM or SIGHUP cancels it, which undoes what is in
    flight; the second says that this takes a moment; the third leaves at once."""
    try:
        return asyncio.run(_cancelled_by_signals(main))
    except asyncio.CancelledError:
        return ExitCode.INTERRUPTED


async def _cancelled_by_signals(main: Callable[[], Awaitable[int]]) -> int:
    task = asyncio.current_task()
    received = 0

    def end() -> None:
        nonlocal received
        received += 1
        if received == 1 and task is not None:
            task.cancel()
        elif received == 2:
            note("still undoing; once more leaves everything as it is")
        elif received > 2:
            os._exit(ExitCode.INTERRUPTED)

    loop = asyncio.get_running_loop()
    for number in ENDINGS:
        loop.add_signal_handler(number, end)
    try:
        return await main()
    finally:
        for number in ENDINGS:
            loop.remove_signal_handler(number)


@asynccontextmanager
async def watching(make_engine: MakeEngine, *, settle: float | None = SETTLE_TIMEOUT) -> AsyncIterator[EngineFace]:
    """A running engine, settled: every node was read or has failed once. It ends with the block.

    `settle` is the longest wait in seconds; None = do not wait.
    """
    engine = make_engine()
    watch = asyncio.create_task(engine.run(), name="engine")
    body = asyncio.current_task()

    def ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None and body is not None:
            body.cancel()  # nothing would ever change again

    watch.add_done_callback(ended)
    try:
        if settle is not None:
            await engine.settled(settle)
        yield engine
    except asyncio.CancelledError:
        if watch.done() and not watch.cancelled() and (error := watch.exception()) is not None:
            raise error from None
        raise
    finally:
        watch.remove_done_callback(ended)
        watch.cancel()
        with suppress(asyncio.CancelledError):
            await watch
