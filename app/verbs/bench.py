"""`quarterdeck bench speculation`: what drafts are worth on this fleet, every way beside the target alone."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from app.as_json import SCHEMA, to_text
from app.engines import engine_maker
from app.exit_codes import BadUsage, ExitCode
from app.output import TransientLine, note, put, table
from app.present.units import percent, rate
from app.session import run_to_end, watching
from app.verbs.chat import serving
from app.which_fleet import which_fleet
from fleet.text import visible

if TYPE_CHECKING:
    from fleet.speculation.comparison import Measured

HEADERS = ("WAY", "TOKENS/S", "OVER PLAIN", "RIGHT", "TOKENS", "")


def run(options: argparse.Namespace) -> int:
    """Measure and print."""
    return run_to_end(lambda: _bench(options))


async def _bench(options: argparse.Namespace) -> int:
    from fleet.speculation.comparison import compare
    from fleet.speculation.settings import DrafterSettings, SpeculationSettings

    key = os.environ.get(options.key_env, "") if options.key_env else ""
    if options.key_env and not key:
        raise BadUsage(f"There is no variable {options.key_env}, or it is empty.", "Put the server's key into it.")
    target = options.target or await _served(options)
    settings = SpeculationSettings(deadline=10.0, drafters=tuple(
        DrafterSettings(f"draft{number}" if number else "draft", url) for number, url in enumerate(options.drafter)))
    progress = TransientLine(sys.stderr)
    try:
        found = await compare(target, settings, key=key, tokens=options.tokens, report=lambda way, done, of: (
            progress.show(f"{way}: {done} of {of} answers")))
    finally:
        progress.clear()
    if options.json:
        plain = _plain(found)
        put(to_text({"schema": SCHEMA, "target": target, "ways": [
            {"way": one.way, "tokens_per_second": one.tokens_per_second, "tokens": one.tokens, "seconds": one.seconds,
             "over_plain": one.tokens_per_second / plain if plain else None, "drafted": one.drafted,
             "accepted": one.accepted, "problem": one.problem} for one in found]}))
    else:
        put("\n".join(lines_of(found)))
        if not settings.drafters:
            note("only drafts from the text itself; --drafter http://HOST:PORT measures a draft model's")
    return ExitCode.OK


async def _served(options: argparse.Namespace) -> str:
    """The URL of what the fleet serves. Raises NothingThere."""
    async with watching(engine_maker(which_fleet(options, demo_counts=True), options)) as engine:
        return serving(engine).endpoint


def _plain(found: list[Measured]) -> float:
    return next((one.tokens_per_second for one in found if one.way == "plain"), 0.0)


def lines_of(found: list[Measured]) -> list[str]:
    """The table."""
    plain = _plain(found)
    rows = [(one.way, rate(one.tokens_per_second or None), f"{one.tokens_per_second / plain:.2f}x" if plain else "",
             percent(one.accepted / one.drafted) if one.drafted else "", str(one.tokens), visible(one.problem))
            for one in found]
    return table(HEADERS, rows, right=frozenset({1, 2, 3, 4}))
