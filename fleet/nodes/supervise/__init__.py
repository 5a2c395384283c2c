"""The sh scripts of the supervisor: constants, one a file, each after what they share."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from fleet.nodes.records import STATE_SH


@cache
def script(name: str) -> str:
    """The text of the script `name`, with the functions of state.sh and claim.sh before it."""
    folder = files(__name__)
    return "\n".join((STATE_SH, folder.joinpath("claim.sh").read_text(encoding="utf-8"),
                      folder.joinpath(f"{name}.sh").read_text(encoding="utf-8")))
