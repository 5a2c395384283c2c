"""Makes the engine for a command. The one place where the command line meets `fleet.engine`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from app.crash import state_home
from app.face import EngineFace, MakeEngine
from app.which_fleet import WhichFleet

if TYPE_CHECKING:
    from fleet.operations.journal import Journal
    from fleet.telemetry.recorder import Recorder


def engine_maker(which: WhichFleet, options: argparse.Namespace, *, discover: bool | None = None,
                 interactive: bool = False, record: bool = False, tend: bool = False,
                 recover: bool = False) -> MakeEngine:
    """A function that makes the engine; importing the engine is left to its first call.

    `discover` None: machines are looked for where no fleet.yaml says which ones there are. With `record` the flight
    recorder keeps what happens; with `tend` proxies are told what the fleet serves, with `recover`
    what has broken is brought up again as fleet.yaml says.
    """
    looks = (not which.has_file and not which.demo) if discover is None else discover

    def make() -> EngineFace:
        from fleet.engine import Engine

        return Engine(which.config, config_path=which.path, accept_new=options.accept_new, interactive=interactive,
                      discover=looks, recorder=recorder(which.config.fleet) if record else None,
                      tend=tend, recover=recover,
                      inside=inside_folder(), journal=journal(which.config.fleet))

    return make


def recorder(fleet: str) -> Recorder:
    """The flight recorder of one run."""
    from fleet.telemetry.recorder import Recorder

    return Recorder(recordings(), fleet)


def recordings() -> Path:
    """The folder of all recordings of this user."""
    return state_home() / "flight"


def inside_folder() -> Path:
    """Where headless engines on this machine leave the control files of the proxies that they run in themselves."""
    return state_home() / "inside"


def journal(fleet: str) -> Journal:
    """Where operations are written down while they run."""
    from fleet.operations.journal import Journal

    return Journal(state_home() / "journal", fleet)
