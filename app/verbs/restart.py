"""`quarterdeck restart NODE SERVICE`."""

from __future__ import annotations

import argparse

from app.verbs.acting import act
from fleet.events import RestartService


def run(options: argparse.Namespace) -> int:
    """Do it, or print the plan."""
    return act(options, RestartService(options.node, options.service))
