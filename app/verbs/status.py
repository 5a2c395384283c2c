"""`quarterdeck status`: what serves, and where the model was planned and really is."""

from __future__ import annotations

import argparse
import asyncio
import time
from urllib.parse import urlsplit

from app.as_json import SCHEMA, Json, plain, to_text
from app.engines import engine_maker
from app.exit_codes import ExitCode
from app.face import EngineFace
from app.output import put, table
from app.present.units import UNKNOWN, percent, size, span
from app.session import run_to_end, watching
from app.which_fleet import WhichFleet, which_fleet
from fleet.model import DeploymentState, Placement, Service, ServiceKind, ServiceState, Share, Snapshot
from fleet.planning.exposure import stays_inside
from fleet.text import visible

ANSWERS = frozenset({DeploymentState.SERVING, DeploymentState.DEGRADED})


def run(options: argparse.Namespace) -> int:
    """Read the fleet, print what it serves. Exit code 0 when a model answers, 4 when none does."""
    which = which_fleet(options, demo_counts=True)
    return run_to_end(lambda: _status(options, which))


async def _status(options: argparse.Namespace, which: WhichFleet) -> int:
    async with watching(engine_maker(which, options)) as engine:
        await head_judged(engine)
        snapshot, now = engine.latest, engine.clock()
    put(to_text(status_json(snapshot, now)) if options.json else "\n".join(status_lines(snapshot, time.time())))
    return ExitCode.OK if snapshot.deployment.state in ANSWERS else ExitCode.NOT_THERE


def status_json(snapshot: Snapshot, now: float) -> dict[str, Json]:
    """The same as data: the deployment, and every service with its node."""
    return {
        "schema": SCHEMA,
        "clock": now,
        "fleet": snapshot.fleet,
        "config": snapshot.config_path,
        "deployment": plain(snapshot.deployment),
        "devices": [plain(row) for row in device_rows(snapshot.deployment.placement)],
        "services": [plain(service) for service in _services(snapshot)],
        "nodes": {name: plain({"state": node.state, "problem": node.problem}) for name, node in snapshot.nodes.items()},
    }


def device_rows(placement: Placement) -> list[dict[str, object]]:
    """Planned and real beside each other, one row a device; None where one side knows nothing of it."""
    def key(item: Share) -> tuple[str, str]:
        return item.node, item.device

    planned, real = ({key(item): item for item in side} for side in (placement.planned, placement.real))
    return [{"node": node, "device": device,
             "endpoint": next((s.endpoint for s in (planned.get((node, device)), real.get((node, device))) if s), ""),
             "planned": planned.get((node, device)), "real": real.get((node, device))}
            for node, device in dict.fromkeys((*planned, *real))]


def status_lines(snapshot: Snapshot, epoch: float) -> list[str]:
    """The whole answer as text. `epoch` is the time now: what runs was not begun by this command."""
    lines = [_headline(snapshot, epoch)]
    if problem := snapshot.deployment.problem:
        lines += [f"  {visible(problem.what)}", *([f"  {visible(problem.remedy)}"] if problem.remedy else [])]
    if services := _services(snapshot):
        rows = [_service_row(service, epoch, snapshot.fleet) for service in services]
        lines += ["", *table(("NODE", "SERVICE", "STATE", "RUNS FOR", "PORT", "PID", "WHAT"), rows,
                             right=frozenset({4, 5}))]
    placement = snapshot.deployment.placement
    if placement.planned or placement.real:
        broken = snapshot.deployment.state is DeploymentState.BROKEN   # "matches" would say that it still does
        lines += ["", f"placement: {'as it was' if broken else placement.state.value}", *placement_table(placement)]
        if placement.problem and placement.problem != snapshot.deployment.problem:
            lines += [visible(placement.problem.what), f"  {visible(placement.problem.remedy)}"]
    for node in snapshot.nodes.values():
        if node.problem and node.configured:
            lines += ["", f"{visible(node.name)} is {node.state.value}: {visible(node.problem.what)}"]
    return lines


def placement_table(placement: Placement) -> list[str]:
    """Where the bytes were planned and where they are."""
    headers = ("NODE", "DEVICE", "WORKER", "SHARE", "LAYERS", "MODEL", "", "KV", "", "COMPUTE")
    rows = []
    for row in device_rows(placement):
        planned, real = row["planned"] or Share("", ""), row["real"] or Share("", "")
        rows.append((row["node"], row["device"], row["endpoint"] or "in the head", percent(planned.fraction),
                     _pair(planned.layers, real.layers), size(planned.model_bytes), f"-> {size(real.model_bytes)}",
                     size(planned.kv_bytes), f"-> {size(real.kv_bytes)}", size(real.compute_bytes)))
    return ["  (planned -> real)", *table(headers, rows, right=frozenset({3, 4, 5, 7, 9}), indent="  ")]


def _pair(planned: int | None, real: int | None) -> str:
    if real is None or planned == real:
        return UNKNOWN if planned is None else str(planned)
    return f"{UNKNOWN if planned is None else planned} -> {real}"


def _headline(snapshot: Snapshot, epoch: float) -> str:
    deployment = snapshot.deployment
    if deployment.state is DeploymentState.DOWN:
        return f"{visible(snapshot.fleet)}: nothing serves"
    text = f"{visible(snapshot.fleet)}: {visible(deployment.model or 'a model')} is {deployment.state.value}"
    if deployment.state in ANSWERS:
        head = snapshot.nodes.get(deployment.head)
        far = head is not None and not head.local and stays_inside(urlsplit(deployment.endpoint).hostname or "")
        text += f" at {visible(deployment.endpoint)}, head on {visible(deployment.head)}"
        text += " (its loopback: reached there, or with `quarterdeck chat`)" if far else ""
        text += f", context {deployment.context}" if deployment.context else ""
    return text


def _services(snapshot: Snapshot) -> list[Service]:
    return [service for node in snapshot.nodes.values() for service in node.services]


def _service_row(service: Service, epoch: float, fleet: str) -> tuple[str, ...]:
    record = service.record
    what = service.detail or (service.problem.what if service.problem else "")
    if record.fleet not in ("", fleet):
        what = f"of the fleet “{record.fleet}”{', ' if what else ''}{what}"
    runs_for = span(epoch - record.started_epoch) if record.alive else UNKNOWN
    return (service.node, record.id, service.state.value, runs_for, str(record.port or UNKNOWN), str(record.pid),
            visible(what, limit=60))


async def head_judged(engine: EngineFace, timeout: float = 3.0) -> None:
    """A head that lives is "starting" until its first answer was read: wait for that, but not long."""
    try:
        async with asyncio.timeout(timeout):
            while any(service.state is ServiceState.STARTING and service.record.kind is ServiceKind.COORDINATOR
                      for service in _services(engine.latest)):
                await engine.changed(engine.version)
    except TimeoutError:
        return
