"""`quarterdeck experts simulate`: hits against the budget from a trace or an imatrix file, and what to do about it."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass

from app.as_json import SCHEMA, Json, plain, to_text
from app.exit_codes import BadUsage, ExitCode
from app.output import note, put, table
from app.present.units import count, size
from app.session import run_to_end
from app.verbs.experts import Mixture, on_mixture, show, size_of
from fleet.experts.advice import advice
from fleet.experts.curve import Curve, compute_from, curve_of
from fleet.experts.disk import random_read_rate
from fleet.experts.passes import PassVerdict, judge_passes, misses_with_drafts, overlap_of, union_of
from fleet.experts.popularity import Popularity, lru_hit_rate, pinned_hit_rate, popularity_of
from fleet.experts.simulate import lru, requests_of
from fleet.experts.trace import Trace
from fleet.experts.traces import check_model, trace_of_file
from fleet.models.local import header_of_file

MOST_SKIPPED = 200             # decoded tokens that fill the cache, where nobody says how many
SHOWN = 12                     # rows of the table


@dataclass(frozen=True, slots=True)
class Prior:
    """What an imatrix file lets one expect, by budget."""

    budget: int
    pinned: float                      # the hottest, kept for good
    lru: float                         # at the least


@dataclass(frozen=True, slots=True)
class Passes:
    """Of tokens side by side."""

    overlap: float | None
    unions: Mapping[int, float]        # experts a layer that so many tokens in a row need
    verdict: PassVerdict | None = None


def run(options: argparse.Namespace) -> int:
    """Simulate, and print."""
    if not options.trace and not options.imatrix:
        raise BadUsage("There is nothing to simulate.", "Give a TRACE, or --imatrix FILE.")
    if options.imatrix and not options.model:
        raise BadUsage("An imatrix file says nothing of sizes.", "Say with --model which model it is of.")
    for name in ("speed", "whole_speed"):
        value = getattr(options, name)
        if value is not None and not (math.isfinite(value) and 0 < value < 1e6):
            raise BadUsage(f"--{name.replace('_', '-')} {value:g} is no number of tokens a second.", "Write it as 25.")
    if options.skip is not None and options.skip < 0:
        raise BadUsage(f"--skip {options.skip} is no number of tokens.", "Write 0 or more.")
    trace = trace_of_file(os.path.expanduser(options.trace)) if options.trace else None
    if not options.model:
        assert trace is not None
        return run_to_end(lambda: _alone(options, trace))
    return on_mixture(options, lambda mixture: _of(options, mixture, trace))


async def _alone(options: argparse.Namespace, trace: Trace) -> int:
    """Budgets are numbers of experts."""
    found = lru(requests_of(trace, skip=_skip(options, trace)))
    budget = 0
    if options.budget:
        if not options.budget.isdigit() or not 0 < int(options.budget) < 1 << 32:
            raise BadUsage(f"--budget {options.budget} is no number of experts.",
                           "Without --model budgets are numbers of experts, of all layers together.")
        budget = int(options.budget)
    layers = len(found.requests.sizes)
    curve = curve_of(found, 0, layers * trace.experts, budget=budget, others=bool(budget))
    _tell(options, "", curve, _passes(options, trace, budget, None), trace, bytes_=False)
    return ExitCode.OK


async def _of(options: argparse.Namespace, mixture: Mixture, trace: Trace | None) -> int:
    needs, own = mixture.needs, mixture.config.experts if mixture.config else None
    budget = size_of(options.budget, "--budget") if options.budget else own.budget if own else 0
    rate = await _disk_rate(options, mixture)
    prior = _prior(options, mixture)
    curve, passes = None, None
    if trace is not None:
        check_model(trace, mixture.layout.experts)
        found = lru(requests_of(trace, mixture.layer_bytes, skip=_skip(options, trace)))
        room = needs.room(budget)
        compute = 1 / options.whole_speed if options.whole_speed else None
        if compute is None and options.speed and rate and budget:
            compute = compute_from(options.speed, found.missing(room), rate)
            if compute is None:
                note(f"at {options.speed:g} tokens a second it cannot read what is predicted to miss: fewer bytes "
                     "miss, or its disk is faster; speeds are not predicted")
        curve = curve_of(found, needs.fixed, needs.experts, budget=budget, disk_rate=rate, compute=compute,
                         others=bool(budget))
        passes = _passes(options, trace, room, mixture.layer_bytes)
    _tell(options, mixture.name, curve, passes, trace, prior=prior, rate=rate)
    return ExitCode.OK


def _skip(options: argparse.Namespace, trace: Trace) -> int:
    if options.skip is not None:
        return options.skip
    first = min((routed.layer for routed in trace.passes), default=0)
    return min(MOST_SKIPPED, sum(len(routed.rows) for routed in trace.decoding() if routed.layer == first) // 4)


async def _disk_rate(options: argparse.Namespace, mixture: Mixture) -> float | None:
    if not options.disk_rate:
        return None
    if options.disk_rate != "measure":
        return float(size_of(options.disk_rate.removesuffix("/s"), "--disk-rate"))
    tensor = mixture.layout.experts.layers[0].tensors[0]
    return await random_read_rate(mixture.transport, mixture.paths[tensor.first.file], tensor.first.length)


def _passes(options: argparse.Namespace, trace: Trace, room: int, sizes: dict[int, int] | None) -> Passes:
    overlap = overlap_of(trace)
    unions = {width: union for width in sorted({2, 3, 4, min(16, options.width)})
              if width > 1 and (union := union_of(trace, width)) is not None}
    if options.acceptance is None or overlap is None:
        return Passes(overlap, unions)
    used = max(len(routed.rows[0]) for routed in trace.passes)
    width = min(64, options.width)
    misses = misses_with_drafts(trace, room, options.acceptance, width, sizes) if room else None
    return Passes(overlap, unions, judge_passes(used, overlap, options.acceptance, width=width, misses=misses))


def _prior(options: argparse.Namespace, mixture: Mixture) -> tuple[Prior, ...]:
    if not options.imatrix:
        return ()
    needs, weights = mixture.needs, imatrix(options.imatrix).weights(mixture.layout.experts)
    sizes, experts = mixture.layer_bytes, mixture.layout.experts.count
    rooms = [needs.experts * step // SHOWN for step in range(1, SHOWN + 1)]
    return tuple(Prior(needs.fixed + room, pinned_hit_rate(weights, sizes, experts, room),
                       lru_hit_rate(weights, sizes, experts, room)) for room in rooms)


def imatrix(path: str) -> Popularity:
    """The counts in a file of this machine.

    Raises:
        ModelFileError: it is none, or cannot be read.
    """
    path = os.path.expanduser(path)
    header = header_of_file(path)
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return popularity_of(header, lambda offset, length: os.pread(file, length, offset))
    finally:
        os.close(file)


# --- what is printed ---------------------------------------------------------------------------------


def _tell(options: argparse.Namespace, name: str, curve: Curve | None, passes: Passes | None, trace: Trace | None, *,
          bytes_: bool = True, prior: tuple[Prior, ...] = (), rate: float | None = None) -> None:
    told = advice(curve) if curve and bytes_ else ()
    if options.json:
        put(to_text(simulate_json(name, curve, passes, told, prior, rate)))
        return
    lines: list[str] = []
    if curve is not None and trace is not None:
        layers = len({routed.layer for routed in trace.passes})
        lines += [f"{name or 'Trace'}: {count(curve.tokens, 'token')} that count, of {layers} layers with "
                  f"{trace.experts} experts; {100 * curve.new:.1f}% of what is asked for is new", ""]
        lines += curve_lines(curve, bytes_=bytes_)
        if curve.others is not None and curve.present is not None:
            lines += ["", f"In the present budget (predicted): LRU {curve.present.hit_rate:.3f}, "
                      f"LFU {curve.others.lfu:.3f}, hottest kept {curve.others.pinned:.3f}, "
                      f"best possible {curve.others.belady:.3f}"]
        lines += ["", *told] if told else []
    if prior:
        lines += [""] if lines else []
        lines += ["By the counts of the imatrix file (predicted):", *table(
            ("BUDGET", "HOTTEST KEPT", "LRU AT LEAST"),
            [(size(one.budget), f"{one.pinned:.3f}", f"{one.lru:.3f}") for one in prior], right=frozenset({0, 1, 2}),
            indent="  ")]
    if passes is not None:
        lines += ["", *passes_lines(passes)]
    if rate:
        lines += [f"Disk: {rate / 1e6:.0f} MB/s of single experts."]
    show(lines)


def curve_lines(curve: Curve, *, bytes_: bool = True) -> list[str]:
    """The curve as a table, the present budget and the cliff marked."""
    points = [point for point in curve.points if point.budget >= curve.cliff]
    step = max(1, len(points) // SHOWN)
    shown = [point for at, point in enumerate(points) if point.present or at % step == 0 or point is points[-1]]
    below = [point for point in curve.points if point.budget < curve.cliff and point.present]
    rows = []
    for point in (*below, *shown):
        mark = "present" if point.present else "least" if point.budget == curve.cliff else ""
        rows.append((size(point.budget) if bytes_ else str(point.budget), f"{point.hit_rate:.3f}",
                     f"{point.missing / 1e6:.1f}" if bytes_ else f"{point.missing:.1f}",
                     f"{point.speed:.1f}" if point.speed else "", mark, "#" * round(30 * point.hit_rate)))
    unit = ("BUDGET", "HITS", "MB/TOKEN", "TOK/S") if bytes_ else ("EXPERTS", "HITS", "MISSES/TOKEN", "")
    return table((*unit, "", ""), rows, right=frozenset({0, 1, 2, 3}))


def passes_lines(passes: Passes) -> list[str]:
    """What tokens side by side share."""
    if passes.overlap is None:
        return ["No two tokens follow each other in the trace."]
    unions = ", ".join(f"{union:.2f} of {width}" for width, union in passes.unions.items())
    lines = [f"A token shares {passes.overlap:.3f} of its experts with the one before; experts a layer that tokens in "
             f"a row need: {unions}."]
    return lines + ([passes.verdict.sentence] if passes.verdict else [])


def simulate_json(name: str, curve: Curve | None, passes: Passes | None, told: tuple[str, ...],
                  prior: tuple[Prior, ...], rate: float | None) -> Mapping[str, Json]:
    """The whole answer. All rates are predicted."""
    return {"schema": SCHEMA, "model": name or None, "kind": "predicted", "curve": plain(curve), "advice": list(told),
            "oracle_gap": curve.oracle_gap if curve else None, "passes": plain(passes),
            "imatrix": [plain(one) for one in prior] or None, "disk_rate": rate}


