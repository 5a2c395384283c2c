"""What is left of a fault of our own: a file with all that is needed to mend it, and one line that says where."""

from __future__ import annotations

import os
import platform
import sys
import time
import traceback
from pathlib import Path

from app.exit_codes import ExitCode
from app.version import version

KEPT = 10  # crash files; older ones go


def state_home() -> Path:
    """Where Quarterdeck keeps what is worth keeping on the machine that it runs on."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "quarterdeck"


def innermost(error: BaseException) -> BaseException:
    """The first error inside nested exception groups: a task group wraps even a single one."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def record_crash(error: BaseException, verb: str) -> ExitCode:
    """Write a crash file and say where it is. What the user typed and the environment are not in it."""
    text = (f"quarterdeck {version()}, verb {verb}\n"
            f"Python {platform.python_version()} on {platform.platform()}\n"
            f"{time.strftime('%Y-%m-%d %H:%M:%S %z')}\n\n"
            f"{''.join(traceback.format_exception(error))}")
    cause = innermost(error)
    what = f"quarterdeck: a fault of its own: {type(cause).__name__}: {cause}"
    try:
        path = _write(text)
    except OSError as failure:
        print(text, what, f"  (no crash file: {failure})", sep="\n", file=sys.stderr, flush=True)
        return ExitCode.INTERNAL
    print(what, f"  Everything about it is in {path}", sep="\n", file=sys.stderr, flush=True)
    return ExitCode.INTERNAL


def _write(text: str) -> Path:
    folder = state_home()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"crash-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    for old in sorted(folder.glob("crash-*.txt"))[:-KEPT]:
        old.unlink(missing_ok=True)
    return path
