"""Which fleet a command is about: the one of a fleet.yaml, the demo that runs, or what is around."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path

from fleet.config.load import find, load
from fleet.config.schema import FleetConfig


@dataclass(frozen=True, slots=True)
class WhichFleet:
    """A fleet to make an engine for."""

    config: FleetConfig
    path: Path | None = None
    demo: bool = False

    @property
    def has_file(self) -> bool:
        """Whether the user has written down what the fleet is."""
        return self.path is not None


def which_fleet(options: argparse.Namespace, *, demo_counts: bool = False) -> WhichFleet:
    """The fleet that `options` are about.

    With no fleet.yaml and `demo_counts`, a demo that runs is that fleet, and stderr says so.

    Raises:
        ConfigErrors: the file says something that cannot be.
    """
    path = find(options.config, os.environ, Path.cwd())
    if path is not None:
        return WhichFleet(load(path), path)
    if demo_counts:
        from app.demo.running import running_demo

        if (config := running_demo()) is not None:
            from app.output import note

            note("no fleet.yaml: using the demo that runs on this machine")
            return WhichFleet(config, demo=True)
    return WhichFleet(FleetConfig())
