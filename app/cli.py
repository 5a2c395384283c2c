"""The command line. Nothing heavy is imported here: `--help` has to be instant over SSH."""

from __future__ import annotations


def main() -> int:
    """Entry point of the `quarterdeck` command; gives the exit code."""
    raise SystemExit("quarterdeck: no commands yet")
