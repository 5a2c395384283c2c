"""Makes the engine for a command. The one place where the command line meets `fleet.engine`."""

from __future__ import annotations

import argparse

from app.face import EngineFace, MakeEngine
from app.which_fleet import WhichFleet


def engine_maker(which: WhichFleet, options: argparse.Namespace, *, discover: bool | None = None,
                 interactive: bool = False) -> MakeEngine:
    """A function that makes the engine; importing the engine is left to its first call.

    `discover` None: machines are looked for where no fleet.yaml says which ones there are.
    """
    looks = (not which.has_file and not which.demo) if discover is None else discover

    def make() -> EngineFace:
        from fleet.engine import Engine

        return Engine(which.config, config_path=which.path, accept_new=options.accept_new, interactive=interactive,
                      discover=looks)

    return make
