"""How long a person waits: `quarterdeck --help` against bare Python, the cockpit's first frame against a blank app.

    python tests/bench/startup.py [--quick] [--json]

Medians of wall times on an otherwise quiet machine, and their ratios. The limits are 1.5 for --help
(against `python -c 'import argparse, yaml'`) and 2.5 for the first frame.
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

HELP_LIMIT, PAINT_LIMIT = 1.5, 2.5
FRAME = (b"\x1b[?2026h", b"\x1b[1;1H", b"\x1b[H")   # a frame: synchronised, or by its cursor
BLANK = "from textual.app import App; App().run(mouse=False)"
COMMAND = "import sys; from app.cli import main; sys.exit(main())"
FLEET = "nodes:\n  here:\n    address: local\ndiscovery:\n  mdns: false\n  ssh_config: false\n  announce: false\n"


def wall(argv: list[str]) -> float:
    """Seconds of a command from start to end."""
    begun = time.perf_counter()
    subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True, timeout=60)
    return time.perf_counter() - begun


def first_frame(argv: list[str], environ: dict[str, str]) -> float:
    """Seconds from start to the first frame in a terminal of 120x40 that can do synchronised output."""
    begun = time.perf_counter()
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(argv[0], argv, {**os.environ, **environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"})
    seen = b""
    try:
        while not any(mark in seen for mark in FRAME):
            if not select.select([terminal], [], [], 30)[0]:
                raise SystemExit(f"no frame within 30 s: {seen[-300:]!r}")
            seen += os.read(terminal, 65536)
            if b"\x1b[?2026$p" in seen:
                os.write(terminal, b"\x1b[?2026;2$y")
        return time.perf_counter() - begun
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)


def medians(rounds: int, first: Callable[[], float], second: Callable[[], float]) -> tuple[float, float, float]:
    """Medians of both and of their ratio, taken in turns so that a busy moment hits both."""
    first(), second()
    pairs = [(first(), second()) for _ in range(rounds)]
    return (statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs),
            statistics.median(b / a for a, b in pairs))


def main() -> int:
    """Measure, print, and end with 1 when a limit is passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="5 rounds instead of 25")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rounds = 5 if options.quick else 25
    python = sys.executable
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "fleet.yaml")
        config.write_text(FLEET)
        # Byte code of both sides is kept from the first, unmeasured turn on, as it is where a person installs it.
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = str(Path(folder, "bytecode"))
        home = {"HOME": folder, "XDG_STATE_HOME": folder}
        help_times = medians(rounds, lambda: wall([python, "-c", "import argparse, yaml"]),
                             lambda: wall([python, "-c", COMMAND, "--help"]))
        paint_times = medians(rounds, lambda: first_frame([python, "-c", BLANK], home),
                              lambda: first_frame([python, "-c", COMMAND, "--config", str(config)], home))
    results = {name: {"base_ms": round(base * 1000, 1), "ours_ms": round(ours * 1000, 1), "ratio": round(ratio, 2),
                      "limit": limit}
               for name, (base, ours, ratio), limit in (("help", help_times, HELP_LIMIT),
                                                        ("first_frame", paint_times, PAINT_LIMIT))}
    if options.json:
        print(json.dumps({"rounds": rounds, "results": results}))
    else:
        for name, row in results.items():
            print(f"{name}: {row['ours_ms']} ms, base {row['base_ms']} ms, ratio {row['ratio']} (limit {row['limit']})")
    return int(any(row["ratio"] > row["limit"] for row in results.values()))


if __name__ == "__main__":
    sys.exit(main())
