"""`quarterdeck stop NODE SERVICE`."""

from __future__ import annotations

import argparse

from app.verbs.acting import act
from fleet.events import StopService


def run(options: argparse.Namespace) -> int:
    """Do it, or print the plan."""
    return act(options, StopService(options.node, options.service))
