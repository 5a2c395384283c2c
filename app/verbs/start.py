"""`quarterdeck start NODE SERVICE`."""

from __future__ import annotations

import argparse

from app.verbs.acting import act
from fleet.events import StartService


def run(options: argparse.Namespace) -> int:
    """Do it, or print the plan."""
    return act(options, StartService(options.node, options.service))
