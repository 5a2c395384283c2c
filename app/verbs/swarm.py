"""`quarterdeck swarm ACTION`: models on their way from machine to machine."""

from __future__ import annotations

import argparse
from importlib import import_module


def run(options: argparse.Namespace) -> int:
    """Each action is a module of its own, imported when it is asked for."""
    return import_module(f"app.verbs.swarm_{options.action}").run(options)
