"""`quarterdeck swarm status`: who gives models away, and pulls of this machine that run or can go on."""

from __future__ import annotations

import argparse

from app.as_json import SCHEMA, plain, to_text
from app.engines import engine_maker
from app.exit_codes import ExitCode
from app.known_pulls import KnownPull, KnownPulls
from app.output import put, table
from app.present.units import size, span
from app.session import run_to_end, watching
from app.which_fleet import which_fleet
from fleet.swarm.asking import SeederSeen


def run(options: argparse.Namespace) -> int:
    """Ask every seeder that a pid file names, here and on the nodes."""
    which = which_fleet(options, demo_counts=True)

    async def ask() -> int:
        async with watching(engine_maker(which, options)) as engine:
            seeders = await engine.seeders()
        pulls = KnownPulls().all()
        if options.json:
            put(to_text({"schema": SCHEMA, "seeders": [plain(seeder) for seeder in seeders],
                         "pulls": [plain(pull) for pull in pulls]}))
        else:
            put("\n".join(_lines(seeders, pulls)))
        return ExitCode.OK if seeders or pulls else ExitCode.NOT_THERE

    return run_to_end(ask)


def _lines(seeders: tuple[SeederSeen, ...], pulls: list[KnownPull]) -> list[str]:
    if not seeders and not pulls:
        return ["Nothing is given away, and no pull of this machine waits. `quarterdeck swarm seed MODEL` starts one."]
    lines: list[str] = []
    rows = [row for seeder in seeders for row in _rows(seeder)]
    if rows:
        lines += table(("service", "node", "model", "pieces", "size", "sent", "up for", ""), rows,
                       right=frozenset({3, 4, 5}))
    if pulls:
        lines += [""] if lines else []
        lines += table(("pull", "folder", "pieces", "size", ""), [
            (pull.name, pull.folder, f"{pull.have}/{pull.pieces}", size(pull.size),
             f"running, pid {pull.pid}" if pull.running else "stopped; `swarm pull` goes on") for pull in pulls],
            right=frozenset({2, 3}))
    return lines


def _rows(seeder: SeederSeen) -> list[tuple[str, ...]]:
    first = (seeder.service, seeder.node)
    if seeder.problem is not None:
        return [(*first, "", "", "", "", "", seeder.problem.what)]
    rows = [(*first, model.name, f"{model.have_count}/{model.pieces}", size(model.size), size(seeder.sent),
             span(seeder.uptime), model.trouble) for model in seeder.models]
    return rows or [(*first, "", "", "", size(seeder.sent), span(seeder.uptime), "no model yet")]
