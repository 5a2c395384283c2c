"""`quarterdeck experts inspect` and `plan`: where experts lie, what budgets hold, what is refused and why."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from app.as_json import SCHEMA, Json, plain, to_text
from app.exit_codes import ExitCode
from app.output import put, table
from app.present.units import count, size
from app.verbs.experts import Mixture, on_mixture, show, size_of
from fleet.config.schema import HeadConfig
from fleet.errors import FleetError, PlanRefused
from fleet.experts.bound import READAHEAD, Ground, choose_way, look
from fleet.experts.budget import Needs, judge_budget
from fleet.experts.conditions import check_arguments, check_owner, check_readahead
from fleet.model import Problem, Severity
from fleet.runtimes.binaries import Flags

# What a llama-server of today can be told: which one will run is looked at when the model is brought up.
TODAYS = Flags.parse("""
-nr, --no-repack                        no repacking
--no-warmup                             no warm-up
-cram, --cache-ram N                    old prompts
-ctxcp, --ctx-checkpoints N             checkpoints
""")
WORDS = {"user-scope": "systemd-run --user --scope", "system-scope": "systemd-run --scope",
         "cgroup-v1": "a cgroup of version 1", "cgroup-v2": "a cgroup of version 2"}


@dataclass(frozen=True, slots=True)
class Budget:
    """One budget, judged."""

    budget: int
    room: int                          # bytes for experts
    part: float                        # of all experts
    cycles: float                      # token cycles
    refused: bool
    sentences: tuple[str, ...]
    wanted: bool = False               # asked for, or fleet.yaml's


@dataclass(frozen=True, slots=True)
class NodeSays:
    """What a node has to keep a budget with."""

    limit: str                         # the way, in words; "" = none
    cures: tuple[str, ...]             # what would be done
    refusals: tuple[Problem, ...]


def run(options: argparse.Namespace) -> int:
    """Show it."""
    budgets = tuple(size_of(text, "--budget") for text in options.budget) if options.action == "plan" else ()

    async def work(mixture: Mixture) -> int:
        if options.action == "inspect":
            if options.json:
                put(to_text(inspect_json(mixture)))
            else:
                show(inspect_lines(mixture))
            return ExitCode.OK
        judged, says = judge(mixture, budgets), await ask_node(mixture)
        if options.json:
            put(to_text({"schema": SCHEMA, "model": mixture.name, "node": mixture.node,
                         "needs": needs_json(mixture.needs), "budgets": [plain(one) for one in judged],
                         "limit": says.limit or None, "cures": list(says.cures),
                         "refusals": [plain(problem) for problem in says.refusals]}))
        else:
            show(plan_lines(mixture, judged, says))
        refused = says.refusals or any(one.refused for one in judged if one.wanted)
        return ExitCode.REFUSED if refused else ExitCode.OK

    return on_mixture(options, work)


# --- inspect -----------------------------------------------------------------------------------------


def inspect_lines(mixture: Mixture) -> list[str]:
    """The layout, and what the model needs of a budget."""
    experts = mixture.layout.experts
    shared = f", {experts.shared} shared" if experts.shared else ""
    lines = [f"{mixture.name} on {mixture.node}: {count(len(experts.layers), 'layer')} of {experts.count} experts, "
             f"{experts.used} in use{shared}", ""]
    rows = []
    for (experts_there, each, apart), group in groupby(experts.layers, key=lambda layer: (
            layer.count, layer.expert_bytes, any(tensor.apart for tensor in layer.tensors))):
        layers = list(group)
        files = sorted({tensor.first.file + 1 for layer in layers for tensor in layer.tensors})
        rows.append((_span([layer.layer for layer in layers]), str(experts_there), size(each),
                     size(sum(layer.bytes for layer in layers)), "apart" if apart else "fused",
                     ", ".join(tensor.part for tensor in layers[0].tensors), _span(files)))
    lines += table(("LAYERS", "EXPERTS", "EACH", "ALL", "TENSORS", "PARTS", "FILE"), rows, right=frozenset({1, 2, 3}),
                   indent="  ")
    return [*lines, "", *needs_lines(mixture)]


def needs_lines(mixture: Mixture) -> list[str]:
    """What it takes of memory, and the budgets that follow."""
    needs = mixture.needs
    return [f"Experts: {size(needs.experts)}, of which a token needs {size(needs.token)} (a token cycle).",
            f"Every token needs besides: {size(needs.shared)} of weights, {size(needs.cache)} of context "
            f"({mixture.ask.context} tokens), {size(needs.buffers)} of buffers.",
            f"Smallest sensible budget: {size(needs.sensible)} (two token cycles). Below {size(needs.least)} nothing "
            f"would ever be hit; from {size(needs.whole)} on all of it stays in memory."]


def inspect_json(mixture: Mixture) -> Mapping[str, Json]:
    """The whole answer; `layout` is what the residency probe of a node takes."""
    experts = mixture.layout.experts
    return {"schema": SCHEMA, "model": mixture.name, "node": mixture.node, "paths": list(mixture.paths),
            "context": mixture.ask.context, "experts": experts.count, "used": experts.used, "shared": experts.shared,
            "layers": [{"layer": layer.layer, "experts": layer.count, "expert_bytes": layer.expert_bytes,
                        "shared_bytes": layer.shared_bytes,
                        "tensors": [{"name": tensor.name, "part": tensor.part, "file": tensor.first.file,
                                     "offset": tensor.first.offset, "bytes": tensor.first.length}
                                    for tensor in layer.tensors]} for layer in experts.layers],
            "layout": json.loads(mixture.layout.to_json()), "needs": needs_json(mixture.needs)}


def needs_json(needs: Needs) -> Mapping[str, Json]:
    """Bytes."""
    return {"shared": needs.shared, "cache": needs.cache, "buffers": needs.buffers, "prompts": needs.prompts,
            "token": needs.token, "experts": needs.experts, "least": needs.least, "sensible": needs.sensible,
            "whole": needs.whole}


def _span(numbers: Sequence[int]) -> str:
    """0-46 where they follow each other, else one by one."""
    first, last = numbers[0], numbers[-1]
    if last - first == len(numbers) - 1:
        return f"{first}-{last}" if last > first else str(first)
    return ", ".join(map(str, numbers[:8])) + (" ..." if len(numbers) > 8 else "")


# --- plan --------------------------------------------------------------------------------------------


def judge(mixture: Mixture, budgets: Sequence[int]) -> tuple[Budget, ...]:
    """The budgets that were asked for, else fleet.yaml's; and some between the least and all of it."""
    needs, config = mixture.needs, mixture.config
    own = (config.experts.budget,) if config and config.experts and not budgets else ()
    wanted = {*budgets, *own}
    ladder = () if budgets else (needs.sensible, *(needs.fixed + needs.experts * part // 100 for part in (30, 50, 75)),
                                 needs.whole)
    return tuple(_judged(mixture, budget, budget in wanted)
                 for budget in sorted({*wanted, *(step for step in ladder if step >= needs.sensible)}))


def _judged(mixture: Mixture, budget: int, wanted: bool) -> Budget:
    needs = mixture.needs
    room = needs.room(budget)
    told: tuple[str, ...]
    try:
        told, refused = judge_budget(needs, budget, mixture.name), False
        if mixture.memory and budget > mixture.memory:
            told, refused = (f"{mixture.node} has {size(mixture.memory)} of main memory.",), True
    except PlanRefused as error:
        told, refused = (f"{error.what} {error.remedy}",), True
    return Budget(budget, room, room / needs.experts if needs.experts else 1.0,
                  room / needs.token if needs.token else 0.0, refused, told, wanted)


async def ask_node(mixture: Mixture) -> NodeSays:
    """Every condition that breaks a budget and can be looked at before anything runs."""
    try:
        ground = await look(mixture.transport, mixture.paths)
    except FleetError as error:
        return NodeSays("", (), (_problem(error),))
    refusals: list[Problem] = []
    cures: list[str] = []
    limit = ""
    try:
        limit = WORDS[choose_way(ground, mixture.node).value]
    except PlanRefused as error:
        refusals.append(_problem(error))
    shim = mixture.config.experts.shim if mixture.config and mixture.config.experts else True
    try:
        check_owner(ground, mixture.paths, mixture.node)
        cures += _readahead(mixture, ground, shim)
    except PlanRefused as error:
        refusals.append(_problem(error))
    try:
        head, config = mixture.head or HeadConfig(), mixture.config
        arguments = check_arguments(TODAYS, "llama-server", (*head.extra_args, *(config.extra_args if config else ())),
                                    head.env)
        cures.append(f"llama-server is told {' '.join(arguments.argv)}: no second copy of the weights, no warm-up, no "
                     "old prompts in memory that cannot be evicted.")
    except PlanRefused as error:
        refusals.append(_problem(error))
    cures.append("The model is taken out of the page cache before the head starts.")
    return NodeSays(limit, tuple(cures), tuple(refusals))


def _readahead(mixture: Mixture, ground: Ground, shim: bool) -> list[str]:
    found = check_readahead(ground, mixture.paths, mixture.node, shim=shim)
    return [*(f"The readahead of its disk is set from {was} to {READAHEAD} KB while it runs ({setting})."
              for setting, was in found.lower), *found.remarks]


def _problem(error: FleetError) -> Problem:
    return Problem(error.code, error.what, error.remedy, Severity.ERROR)


def plan_lines(mixture: Mixture, judged: Sequence[Budget], says: NodeSays) -> list[str]:
    """The table of budgets, and what its node says."""
    rows = [("*" if one.wanted else "", size(one.budget), "refused" if one.refused else size(one.room),
             "" if one.refused else f"{100 * one.part:.0f}%", "" if one.refused else f"{one.cycles:.1f}")
            for one in judged]
    lines = [f"{mixture.name} on {mixture.node}", "", *needs_lines(mixture), "",
             *table(("", "BUDGET", "FOR EXPERTS", "OF THEM", "CYCLES"), rows, right=frozenset({1, 2, 3, 4}))]
    for one in judged:
        if one.wanted:
            lines += ["", *one.sentences]
    lines += ["", f"Limit of memory: {says.limit or 'none'}"]
    lines += [f"  cured: {cure}" for cure in says.cures]
    for problem in says.refusals:
        lines += [f"  refused: {problem.what}", *([f"    {problem.remedy}"] if problem.remedy else [])]
    return lines
