"""The `quarterdeck` command: which verb runs, and what becomes of its errors.

Nothing heavy is imported here: `--help` has to be instant over SSH. Each verb is a module of
`app.verbs` with `run(options) -> ExitCode`, imported when it is asked for.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from app.arguments import build_parser
from app.exit_codes import BadUsage, ExitCode, exit_code_of
from fleet.errors import FleetError

ACTING = frozenset({"up", "down", "swap", "start", "stop", "restart", "demo", "init", "proxy start", "proxy stop",
                    "proxy cancel", "swarm seed", "swarm pull", "swarm verify", "swarm distribute", "manifest create",
                    "experts trace", "processes adopt", "processes end"})


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the `quarterdeck` command; gives the exit code."""
    options = build_parser().parse_args(argv)
    leave_no_core()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal that cannot show a letter is no crash
    if sys.stdin is not None and hasattr(sys.stdin, "reconfigure"):
        sys.stdin.reconfigure(errors="replace")            # nor is a pipe that brings no text
    return guarded(lambda: dispatch(options), options)


def leave_no_core() -> None:
    """Passwords and passphrases that were typed live in our memory: a crash must not write that to a disk."""
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, most))


def dispatch(options: argparse.Namespace) -> int:
    """Run what was asked for."""
    said = f"{options.verb} {getattr(options, 'action', '')}".rstrip()
    if options.read_only and said in ACTING and not getattr(options, "dry_run", False):
        raise BadUsage(f"--read-only and `{said}` do not go together.", "Leave one of them out.")
    if options.verb is not None:
        return import_module(f"app.verbs.{options.verb}").run(options)
    if options.up is not None and options.read_only:
        raise BadUsage("--read-only and --up do not go together.", "Leave one of them out.")
    if options.no_ui or options.once or options.up is not None:
        return import_module("app.headless").run(options)
    return import_module("app.open_cockpit").run(options)


def guarded(work: Callable[[], int], options: argparse.Namespace) -> int:
    """The exit code of `work`, with every error turned into sentences: no traceback reaches a person."""
    try:
        code = work()
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the flush at exit has somewhere to go
        return ExitCode.PIPE
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except FleetError as error:
        return report(error)
    except Exception as error:
        from app.crash import innermost, record_crash

        cause = innermost(error)
        if isinstance(cause, FleetError):
            return report(cause)
        if isinstance(cause, BrokenPipeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return ExitCode.PIPE
        return record_crash(error, options.verb or "cockpit")


def report(error: FleetError) -> ExitCode:
    """Say on stderr what went wrong and what to do about it."""
    from fleet.text import visible

    lines = [visible(line) for line in getattr(error, "problems", ()) or (error.what,)]
    if error.remedy:
        lines.append(f"  {visible(error.remedy)}")
    print(f"quarterdeck: {lines[0]}", *lines[1:], sep="\n", file=sys.stderr, flush=True)
    return exit_code_of(error)
