"""`quarterdeck experts watch`: what a running head hits and reads, line by line."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field

from app.as_json import SCHEMA, Json, plain
from app.exit_codes import ExitCode
from app.face import EngineFace
from app.output import note, put
from app.present.units import size
from app.verbs.experts import StreamedHead, on_head, show
from fleet.errors import FleetError
from fleet.experts.bound import bound_of, look
from fleet.experts.counters import Counters, counters_of
from fleet.experts.estimate import estimated_hit_rate
from fleet.experts.figures import SHIM, Figure, exact_hit_rate, exact_missing, unknown
from fleet.experts.layout import Layout, layout_of
from fleet.experts.residency import Residency
from fleet.experts.watching import residencies
from fleet.experts.worst import layers_of, worst_layers
from fleet.nodes.folder import Answer, number
from fleet.runtimes.head_http import HeadClient

FIRST_SAMPLE = 15.0            # seconds to wait for: a small machine's python3 has to start
SHORTEST = 0.2                 # seconds between two lines
_LOOK = r"""
if [ -r "/proc/$1/io" ]; then sed -n 's/^read_bytes: /read /p' "/proc/$1/io"; fi
"""


@dataclass(frozen=True, slots=True)
class Look:
    """One reading."""

    at: float                          # seconds since 1970, here
    counters: Counters | None          # None = no shim, or it cannot be read
    why: str = ""                      # it has none
    read: int | None = None            # bytes that the head has read from disk
    tokens: int | None = None          # that it has decoded


@dataclass(frozen=True, slots=True)
class Ground:
    """What does not change while it runs."""

    layout: Layout | None
    readahead: int | None              # KB; 0 = the shim reads whole experts


@dataclass(frozen=True, slots=True)
class Line:
    """What became of one stretch of time."""

    at: float
    seconds: float
    tokens: int | None
    hit_rate: Figure
    missing: Figure                    # bytes a token
    estimated: Figure
    residency: Residency | None = None
    worst: tuple[tuple[int, float], ...] = field(default=())       # layers, with their hit rates

    @property
    def speed(self) -> float | None:
        """Tokens a second."""
        return self.tokens / self.seconds if self.tokens is not None and self.seconds > 0 else None


def run(options: argparse.Namespace) -> int:
    """Follow it until ctrl+c, the head's end, or --count."""
    return on_head(options, lambda engine, head: _watch(options, engine, head))


async def _watch(options: argparse.Namespace, engine: EngineFace, head: StreamedHead) -> int:
    every = max(SHORTEST, options.every)
    ground = await _ground(engine, head)
    client = None if head.counts else engine.head_client()
    latest: list[Residency] = []
    begun = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        probe = group.create_task(_probe(head, ground, every, latest, begun)) if options.residency else None
        if probe is not None:
            await _wait(begun)
        before, told = await _look(head, client, layers=options.layers), 0
        while options.count is None or told < options.count:
            await asyncio.sleep(every)
            now = await _look(head, client, layers=options.layers)
            line = between(before, now, ground, latest[-1] if latest else None)
            if options.json:
                put(json.dumps(line_json(head, line), allow_nan=False))
            else:
                show([line_text(line)])
            before, told = now, told + 1
        if probe is not None:
            probe.cancel()
    return ExitCode.OK


async def _ground(engine: EngineFace, head: StreamedHead) -> Ground:
    bound = bound_of(head.record.facts)
    paths = bound.files if bound else ()
    if not paths:
        return Ground(None, None)
    header = await engine.model_header(head.node.name, paths[0])
    found = await look(head.transport, paths)
    ahead = [file.readahead for file in found.files]
    return Ground(layout_of(header), 0 if head.counts else None if None in ahead or not ahead else
                  max(kb for kb in ahead if kb is not None))


async def _wait(begun: asyncio.Event) -> None:
    """Until there is a first sample, or none will come soon: the lines then go on without."""
    try:
        async with asyncio.timeout(FIRST_SAMPLE):
            await begun.wait()
    except TimeoutError:
        note("what is in memory is not told yet")


async def _probe(head: StreamedHead, ground: Ground, every: float, latest: list[Residency],
                 begun: asyncio.Event) -> None:
    bound = bound_of(head.record.facts)
    if ground.layout is None or bound is None:
        note("where the experts lie is not known: residency is not told")
        begun.set()
        return
    try:
        samples = residencies(head.transport, head.state_dir, bound.files, ground.layout, pid=head.record.pid,
                              every=every)
        async with aclosing(samples):
            async for sample in samples:
                latest[:] = [sample]
                begun.set()
    except FleetError as error:
        note(f"residency is not told: {error}")
        begun.set()


async def _look(head: StreamedHead, client: HeadClient | None, *, layers: bool) -> Look:
    counters, why = None, "The head runs without the expert shim."
    if head.counts:
        try:
            counters = await counters_of(head.transport, head.state_folder, head.record.id, cells=layers)
        except FleetError as error:
            why = error.what
    done = await head.transport.run(_LOOK, (str(head.record.pid),), timeout=10.0)
    tokens = None
    if counters is not None:
        tokens = counters.decode.tokens
    elif client is not None:
        try:
            total = (await client.metrics()).tokens_predicted_total
            tokens = None if total is None else int(total)
        except FleetError as error:
            why = error.what
    return Look(time.time(), counters, why, number(Answer(done.text).words.get("read", "")), tokens)


def between(before: Look, now: Look, ground: Ground, residency: Residency | None = None) -> Line:
    """What happened between two looks."""
    worst: tuple[tuple[int, float], ...] = ()
    if now.counters is not None and before.counters is not None:
        hit_rate, missing = exact_hit_rate(now.counters, before.counters), exact_missing(now.counters, before.counters)
        if now.counters.cells and before.counters.cells:
            worst = tuple((one.layer, one.rate or 0.0)
                          for one in worst_layers(layers_of(now.counters, before.counters)))
        prompts = now.counters.prompt != before.counters.prompt
    else:
        hit_rate = missing = unknown(SHIM, now.why)
        prompts = False
    tokens = None if now.tokens is None or before.tokens is None else now.tokens - before.tokens
    read = None if now.read is None or before.read is None else now.read - before.read
    experts = ground.layout.experts if ground.layout else None
    piece = experts.layers[0].tensors[0].first.length if experts else 0
    estimated = estimated_hit_rate(read, tokens, experts.token_bytes if experts else 0, slice_bytes=piece,
                                   readahead=ground.readahead, prompts=prompts)
    return Line(now.at, now.at - before.at, tokens if tokens is None or tokens >= 0 else None, hit_rate, missing,
                estimated, residency, worst)


def line_text(line: Line) -> str:
    """One line for a person; each figure with what it is worth."""
    at = time.strftime("%H:%M:%S", time.localtime(line.at))
    speed = f"{line.speed:6.1f} tok/s" if line.speed is not None else "     ? tok/s"
    if line.tokens == 0:
        parts = [f"{at} {speed}", "nothing decoded"]
    else:
        parts = [f"{at} {speed}", f"hit {_figure(line.hit_rate)}", f"estimated {_figure(line.estimated)}"]
        if line.missing.value is not None:
            parts.append(f"{line.missing.value / 1e6:.1f} MB/token")
        for figure in (line.hit_rate, line.estimated):
            if not figure.known:
                parts.append(figure.why)
                break
    if line.residency is not None:
        held = line.residency
        parts.append(f"{100 * held.experts:.0f}% in memory" if held.experts is not None else
                     f"in memory: unknown ({held.unknown})")
        if used := held.group.get("used"):
            parts.append(f"{size(int(used))} used")
    if line.worst:
        parts.append("worst " + " ".join(f"{layer}:{rate:.2f}" for layer, rate in line.worst))
    return "  ".join(parts)


def _figure(figure: Figure) -> str:
    if figure.value is None:
        return "unknown"
    bound = f" (at least {figure.low:.3f})" if figure.low is not None and figure.low < figure.value else ""
    return f"{figure.value:.3f} {figure.kind.value}{bound}" if figure.source == SHIM else f"{figure.value:.3f}{bound}"


def line_json(head: StreamedHead, line: Line) -> Mapping[str, Json]:
    """One line for a program."""
    held = line.residency
    return {"schema": SCHEMA, "at": line.at, "node": head.node.name, "service": head.record.id, "seconds": line.seconds,
            "tokens": line.tokens, "tokens_per_second": line.speed, "hit_rate": plain(line.hit_rate),
            "missing_per_token": plain(line.missing), "estimated_hit_rate": plain(line.estimated),
            "worst_layers": [{"layer": layer, "hit_rate": rate} for layer, rate in line.worst],
            "residency": None if held is None else {
                "at": held.at, "method": held.method or None, "unknown": held.unknown or None, "experts": held.experts,
                "shared": held.shared, "process": plain(held.process), "group": plain(held.group)}}
