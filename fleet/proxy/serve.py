"""The proxy as a service: bound, running, and ended with grace.

    python -m fleet.proxy          with QUARTERDECK_* variables, see environment.py
"""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from fleet.proxy.access import Access, Key, check_bind, from_here
from fleet.proxy.app import App
from fleet.proxy.control import Control, write_token
from fleet.proxy.exchange import ProxySettings
from fleet.proxy.listener import Listener, bind, listener
from fleet.proxy.proxy import Proxy

TOLD = 0.05                    # seconds for the last words to clients


@dataclass(frozen=True, slots=True)
class Running:
    """A proxy that serves."""

    proxy: Proxy
    control: Control
    host: str
    port: int

    @property
    def url(self) -> str:
        """Where clients point at."""
        return _url(self.host, self.port)


def _url(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


@asynccontextmanager
async def running(settings: ProxySettings) -> AsyncIterator[Running]:
    """A proxy that serves while the block runs; leaving it stops it gracefully, within `drain_seconds`.

    Raises:
        ConfigError: it would be open to everybody, or an upstream cannot be used.
        PortTaken, ServiceError: it cannot listen there.
        FleetError: its control token cannot be written.
    """
    check_bind(settings.host, bool(settings.keys), settings.allow_open)
    proxy = Proxy(settings)
    sock = bind(settings.host, settings.port)
    file = Path(settings.control_file) if settings.control_file else None
    try:
        host, port = sock.getsockname()[:2]
        token = await asyncio.to_thread(write_token, file, _url(from_here(host), port)) if file is not None else ""
        control = Control(proxy, token)
        app = App(proxy, Access(cast(tuple[Key, ...], settings.keys), proxy.clock), control=control)
        server = listener(app, settings.limits, settings.drain_seconds)
        failure: Exception | None = None
        async with asyncio.TaskGroup() as group:
            behind = group.create_task(proxy.run())
            serving = group.create_task(server.serve(sockets=[sock]))
            try:
                await server.ready.wait()
                yield Running(proxy, control, host, port)
            except Exception as error:         # the caller's own, which is no part of a group
                failure = error
            finally:
                await _end(proxy, server, serving, settings.drain_seconds)
                behind.cancel()
        if failure is not None:
            raise failure
    finally:
        sock.close()
        if file is not None:
            await asyncio.to_thread(file.unlink, missing_ok=True)


async def _end(proxy: Proxy, server: Listener, serving: asyncio.Task[None], drain_seconds: float) -> None:
    """Take no new requests, let the running ones end for a while, then cancel them: each client is told."""
    proxy.stopping = True
    server.close_listeners()
    try:
        async with asyncio.timeout(drain_seconds):
            await proxy.records.quiet.wait()
    except TimeoutError:
        for id in tuple(proxy.records.live):
            proxy.cancel(id)
        await asyncio.sleep(TOLD)
    server.should_exit = True
    await serving


async def serve(settings: ProxySettings, *, started: Callable[[Running], None] | None = None) -> None:
    """Serve until SIGTERM, SIGINT or a stop through the control interface. Errors as `running`."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        async with running(settings) as proxy:
            proxy.control.on_stop = stop.set
            # What is there now stays: a collection that looks through all of it makes a request wait for milliseconds.
            gc.collect()
            gc.freeze()
            if started is not None:
                started(proxy)
            await stop.wait()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
