"""`quarterdeck up [MODEL]`: bring a model up over the fleet."""

from __future__ import annotations

import argparse

from app.verbs.acting import act
from fleet.events import BringUp


def run(options: argparse.Namespace) -> int:
    """Bring it up, or print the plan."""
    return act(options, BringUp(options.model))
