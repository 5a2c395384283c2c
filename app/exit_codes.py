"""What the `quarterdeck` command ends with. Part of its interface: numbers never change their meaning."""

from __future__ import annotations

from enum import IntEnum

from fleet.errors import ConfigError, FleetError, PlanRefused


class ExitCode(IntEnum):
    """Exit codes of every verb."""

    OK = 0               # done, or shown
    FAILED = 1           # tried and failed; what was begun has been undone
    USAGE = 2            # the command line says something that cannot be
    CONFIG = 3           # fleet.yaml says something that cannot be
    NOT_THERE = 4        # no such node, service or model, or nothing serves
    REFUSED = 5          # the plan cannot work on this fleet; nothing was started
    INTERNAL = 70        # a fault of Quarterdeck itself; a crash file tells more
    INTERRUPTED = 130    # ctrl+c, or asked to end; an operation in flight was undone
    PIPE = 141           # whoever read the output went away


MEANINGS = {
    ExitCode.OK: "done",
    ExitCode.FAILED: "tried and failed; what was begun has been undone",
    ExitCode.USAGE: "wrong command line",
    ExitCode.CONFIG: "fleet.yaml cannot be used",
    ExitCode.NOT_THERE: "no such node, service or model, or nothing serves",
    ExitCode.REFUSED: "the plan cannot work; nothing was started",
    ExitCode.INTERNAL: "a fault of Quarterdeck; a crash file tells more",
    ExitCode.INTERRUPTED: "interrupted; an operation in flight was undone",
    ExitCode.PIPE: "whoever read the output went away",
}


class NothingThere(FleetError):
    """What was asked for does not exist: a node, a service, a model, or anything that serves."""

    code = "not-there"


class BadUsage(FleetError):
    """The words of the command line do not go together."""

    code = "usage"


def exit_code_of(error: Exception) -> ExitCode:
    """The exit code for an error that was raised on purpose (a `FleetError`)."""
    if isinstance(error, ConfigError):
        return ExitCode.CONFIG
    if isinstance(error, PlanRefused):
        return ExitCode.REFUSED
    if isinstance(error, NothingThere):
        return ExitCode.NOT_THERE
    if isinstance(error, BadUsage):
        return ExitCode.USAGE
    return ExitCode.FAILED
