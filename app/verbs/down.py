"""`quarterdeck down`: end every service of this fleet."""

from __future__ import annotations

import argparse

from app.verbs.acting import act
from fleet.events import TearDown


def run(options: argparse.Namespace) -> int:
    """Take everything down, or print the plan."""
    return act(options, TearDown())
