"""`quarterdeck completion SHELL`: print a completion script, made from the command line's own words."""

from __future__ import annotations

import argparse

from app.arguments import build_parser
from app.exit_codes import ExitCode
from app.output import put


def run(options: argparse.Namespace) -> int:
    """Print the script. Made here and now, so that pressing Tab never starts Python."""
    import shtab

    put(shtab.complete(build_parser(), shell=options.shell))
    return ExitCode.OK
