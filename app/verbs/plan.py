"""`quarterdeck plan`: what would go where, how fast it would be, and why. Nothing is done."""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
from pathlib import Path

from app.as_json import SCHEMA, to_text
from app.engines import engine_maker
from app.exit_codes import BadUsage, ExitCode, NothingThere
from app.output import put
from app.present.proposal import proposal_lines
from app.session import run_to_end, watching
from app.which_fleet import WhichFleet, which_fleet
from fleet.config.schema import SplitMode
from fleet.errors import NO_SUCH, PlanRefused
from fleet.planning.propose import Proposal, WhatIf

WIDEST = 100


def run(options: argparse.Namespace) -> int:
    """Print the plan; 0 when one fits, 5 when none does."""
    what_if = what_if_of(options)
    try:
        if options.fleet is not None:
            proposal = asyncio.run(_described(options, what_if))
            return _show(options, proposal)
        which = which_fleet(options, demo_counts=True)
        return run_to_end(lambda: _planned(options, which, what_if))
    except PlanRefused as error:
        if error.code == NO_SUCH:
            raise NothingThere(error.what, error.remedy) from error
        raise


async def _planned(options: argparse.Namespace, which: WhichFleet, what_if: WhatIf) -> int:
    async with watching(engine_maker(which, options)) as engine:
        proposal = await engine.propose(options.model, what_if)
    return _show(options, proposal)


async def _described(options: argparse.Namespace, what_if: WhatIf) -> Proposal:
    """For a fleet of which there is only a description; the model may be a file of this machine."""
    from fleet.models.reader import Headers
    from fleet.nodes.local import LocalTransport
    from fleet.planning.described import load_described
    from fleet.planning.propose import propose

    fleet = load_described(Path(options.fleet))
    wanted = options.model or fleet.config.model
    if wanted not in fleet.headers and wanted.endswith(".gguf"):
        path = _absolute(wanted)
        header = await Headers().model_of(LocalTransport("this machine"), path)
        wanted = path.rpartition("/")[2].removesuffix(".gguf")
        fleet = load_described(Path(options.fleet), wanted, header)
    if wanted not in fleet.headers:
        raise NothingThere(f"{options.fleet} describes no model {wanted or 'at all'}." if wanted or not fleet.headers
                           else "Which model to plan for was not said.",
                           f"Say one of: {', '.join(fleet.headers) or 'the path of a GGUF file'}.")
    return propose(fleet.snapshot, fleet.config, fleet.headers[wanted], wanted, what_if)


def _absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))


def _show(options: argparse.Namespace, proposal: Proposal) -> int:
    if options.json:
        put(to_text({"schema": SCHEMA, "plan": proposal}))
    else:
        put("\n".join(proposal_lines(proposal, min(WIDEST, max(60, shutil.get_terminal_size((80, 24)).columns)))))
    return ExitCode.OK if proposal.fits else ExitCode.REFUSED


def what_if_of(options: argparse.Namespace) -> WhatIf:
    """What the command line asks to change.

    Raises:
        BadUsage: it cannot be read.
    """
    kinds = [part.strip() for part in options.kv.split(",")] if options.kv else []
    if len(kinds) > 2 or not all(kinds):
        raise BadUsage(f"--kv {options.kv} is not one type or two.", "Write --kv q8_0, or --kv q8_0,f16 for K and V.")
    nodes = None
    if options.nodes is not None:
        names = [name.strip() for name in options.nodes.split(",") if name.strip()]
        nodes = () if names in (["none"], []) else tuple(dict.fromkeys(names))
    without = frozenset((name, device) for name, _, device in (item.partition(":") for item in options.without))
    return WhatIf(options.context, kinds[0] if kinds else "", kinds[-1] if kinds else "", options.slots, nodes, without,
                  options.head, SplitMode(options.mode) if options.mode else None)
