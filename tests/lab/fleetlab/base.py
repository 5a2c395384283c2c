"""What all parts of the lab share: its names, its folder, and how it runs a program."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL
from time import sleep
from typing import Any, TypeVar

DIR = Path(os.environ.get("FLEETLAB_DIR") or Path(tempfile.gettempdir(), "fleetlab"))
BRIDGE, NET = "fl0", "10.77.0"
USER, UID, PASSWORD, PASSPHRASE = "fleet", 7700, "fleetlab-pw", "fleetlab phrase"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
OURS = re.compile(r"fl-(\d+|ctl)$")   # our network namespaces, and our interfaces on the root side

Json = dict[str, Any]
T = TypeVar("T")


class LabError(Exception):
    """The lab cannot do what it was told."""


def run(line: str, *more: object, check: bool = True) -> str:
    """Run LINE, split at blanks, with MORE arguments as they are; what it prints."""
    argv = line.split() + [str(word) for word in more]
    try:
        done = subprocess.run(argv, text=True, capture_output=True, check=False)
    except FileNotFoundError as error:
        raise LabError(f"{argv[0]} is not installed") from error
    if check and done.returncode:
        raise LabError(f"{' '.join(argv)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def background(argv: list[object], log: str) -> None:
    """Start a program that outlives us, its output in DIR/log."""
    home = Path(__file__).parent.parent
    with open(DIR / "log" / f"{log}.log", "ab") as out:
        subprocess.Popen([str(word) for word in argv], stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd="/",
                         start_new_session=True,
                         env={"PATH": PATH, "HOME": "/root", "FLEETLAB_DIR": str(DIR), "PYTHONPATH": str(home)})


def each_process(read: Callable[[Path], T]) -> Iterator[tuple[int, T]]:
    """(PID, read(its folder in /proc)) of every process that is still there when it is read."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            yield int(pid), read(Path("/proc", pid))


def end(list_pids: Callable[[], list[int]]) -> None:
    """SIGKILL what list_pids() lists, until it lists nothing."""
    for _ in range(200):
        if not (pids := list_pids()):
            return
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, SIGKILL)
        sleep(0.02)
    raise LabError(f"these do not end: {list_pids()}")
