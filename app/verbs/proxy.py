"""`quarterdeck proxy`: one endpoint before everything that serves, as a service of its own or in the foreground."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Callable

from app.exit_codes import BadUsage, ExitCode, NothingThere
from app.face import EngineFace
from fleet.errors import ConfigError
from fleet.model import ProxyRequest, ServiceKind, Snapshot
from fleet.proxy.exchange import ProxySettings

READ_WITHIN = 8.0      # seconds for every proxy that runs to answer once


def run(options: argparse.Namespace) -> int:
    """Do what was asked for."""
    match options.action:
        case "run" | "health" | "variables":
            return _alone(options)
        case "start":
            from app.verbs.acting import act
            from fleet.events import StartProxy

            return act(options, StartProxy(options.node))
        case "stop":
            from app.verbs.acting import act_on
            from fleet.events import StopService

            return act_on(options, lambda engine: StopService(*the_proxy(engine.latest, options.node)))
        case "cancel":
            from app.verbs.acting import act_on

            return act_on(options, lambda engine: _cancel(engine.latest, options.request), ready=proxies_read)
    return _told(options, _status if options.action == "status" else _requests)


def the_proxy(snapshot: Snapshot, node: str) -> tuple[str, str]:
    """Node and service of the proxy that is meant.

    Raises:
        NothingThere: there is none.
        BadUsage: there are several.
    """
    found = [(name, record.id) for name, there in snapshot.nodes.items() if there.reading and node in ("", name)
             for record in there.reading.services if record.kind is ServiceKind.PROXY]
    if not found:
        raise NothingThere(f"No proxy runs{f' on {node}' if node else ''}.", "`quarterdeck proxy start` starts one.")
    if len(found) > 1:
        raise BadUsage(f"Proxies run on {', '.join(name for name, _ in found)}.", "Say which: `proxy stop NODE`.")
    return found[0]


async def proxies_read(engine: EngineFace) -> None:
    """Wait until every proxy that runs has answered, or has not."""
    try:
        async with asyncio.timeout(READ_WITHIN):
            while not _all_read(engine.latest):
                await engine.changed(engine.version)
    except TimeoutError:
        return


def _all_read(snapshot: Snapshot) -> bool:
    alive = {(name, record.id) for name, node in snapshot.nodes.items() if node.reading
             for record in node.reading.services if record.kind is ServiceKind.PROXY and record.alive}
    return alive <= {(p.node, p.service) for p in snapshot.proxies if p.history or p.problem is not None}


def _cancel(snapshot: Snapshot, request: str):
    from fleet.events import CancelRequest

    for proxy in snapshot.proxies:
        if any(live.id == request for live in proxy.live):
            return CancelRequest(proxy.node, proxy.service, request)
    raise NothingThere(f"No live request is called {request[:60]}.", "`quarterdeck proxy requests` lists them.")


def _told(options: argparse.Namespace, lines: Callable[[argparse.Namespace, Snapshot], list[str]]) -> int:
    from app.as_json import SCHEMA, plain, to_text
    from app.engines import engine_maker
    from app.output import put
    from app.session import run_to_end, watching
    from app.which_fleet import which_fleet

    which = which_fleet(options, demo_counts=True)

    async def ask() -> int:
        async with watching(engine_maker(which, options)) as engine:
            await proxies_read(engine)
            snapshot, now = engine.latest, engine.clock()
        if options.json:
            put(to_text({"schema": SCHEMA, "clock": now, "proxies": [plain(proxy) for proxy in snapshot.proxies]}))
        elif not snapshot.proxies:
            put("No proxy runs. `quarterdeck proxy start` starts one.")
        else:
            put("\n".join(lines(options, snapshot)))
        return ExitCode.OK if snapshot.proxies else ExitCode.NOT_THERE

    return run_to_end(ask)


def _status(options: argparse.Namespace, snapshot: Snapshot) -> list[str]:
    from app.output import table
    from app.present.units import span
    from fleet.text import visible

    lines: list[str] = []
    for proxy in snapshot.proxies:
        lines += [""] if lines else []
        up = f", up for {span(time.time() - proxy.started_epoch)}" if proxy.started_epoch else ""
        lines.append(visible(f"{proxy.url}  {proxy.service} on {proxy.node}{up}"))
        if proxy.problem is not None:
            lines.append(visible(f"  {proxy.problem.what} {proxy.problem.remedy}".rstrip()))
        lines.append(f"  {proxy.total} requests, {len(proxy.live)} live, {proxy.waiting} waiting")
        rows = [(up.name, up.health + (" (held)" if up.held else ""), _slots(up.running, up.slots), str(up.tokens),
                 str(up.failures), ", ".join(up.models), up.reason) for up in proxy.upstreams]
        rows = [tuple(visible(cell, limit=80) for cell in row) for row in rows]
        lines += [f"  {line}" for line in table(("upstream", "state", "running", "tokens", "failures", "models", ""),
                                                rows)] if rows else ["  nothing is behind it: no model is up"]
    return lines


def _slots(running: int, slots: int | None) -> str:
    return f"{running}/{slots}" if slots is not None else str(running)


def _requests(options: argparse.Namespace, snapshot: Snapshot) -> list[str]:
    from app.output import table
    from fleet.text import visible

    rows = [_row(request) for proxy in snapshot.proxies
            for request in (*reversed(proxy.live), *tuple(reversed(proxy.ended))[:options.last])]
    if not rows:
        return ["No request yet."]
    rows = [tuple(visible(cell, limit=60) for cell in row) for row in rows]
    return table(("id", "state", "model", "upstream", "client", "seconds", "first byte", "tokens", "tok/s", "problem"),
                 rows)


def _row(request: ProxyRequest) -> tuple[str, ...]:
    rate = f"{1 / request.per_token:.1f}" if request.per_token else ""
    first = f"{request.to_first_byte:.2f}" if request.to_first_byte is not None else ""
    return (request.id, request.state, request.model, request.upstream, request.caller or request.client,
            f"{request.seconds:.1f}", first, str(request.tokens), rate, request.problem)


# --- in the foreground ---------------------------------------------------------------------------


def _alone(options: argparse.Namespace) -> int:
    """Serve, or ask whether it serves, or list the variables."""
    from fleet.proxy.environment import table

    if options.action == "variables":
        print(table())
        return ExitCode.OK
    settings = settings_here(options)
    from fleet.proxy.__main__ import health, serve_here

    return health(settings.host, settings.port) if options.action == "health" else serve_here(settings)


def settings_here(options: argparse.Namespace) -> ProxySettings:
    """What fleet.yaml says of the proxy, where there is one; else what the variables say.

    Raises:
        ConfigError: neither names a server, or something in them cannot be; all of it at once.
    """
    from app.which_fleet import which_fleet
    from fleet.proxy.environment import from_environment, is_configured
    from fleet.proxy.settings import settings_of

    which = which_fleet(options)
    if which.has_file and (which.config.proxy.upstreams or not is_configured(os.environ)):
        if not which.config.proxy.upstreams:
            raise ConfigError(f"{which.path} names no server for the proxy.",
                              "`quarterdeck proxy start` serves what the fleet itself serves. Or name one under proxy: "
                              "upstreams:, as fleet.example.yaml shows, or set QUARTERDECK_TARGET_URL.", code="proxy")
        return settings_of(which.config.proxy, os.environ)
    found = from_environment(os.environ)
    for warning in found.warnings:
        print(f"quarterdeck: {warning}", file=sys.stderr)
    return found.settings

