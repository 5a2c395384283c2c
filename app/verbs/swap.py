"""`quarterdeck swap MODEL`: serve another model, and lose no request on the way."""

from __future__ import annotations

import argparse

from app.exit_codes import BadUsage, NothingThere
from app.face import EngineFace
from app.verbs.acting import act_on
from fleet.events import BringUp


def run(options: argparse.Namespace) -> int:
    """Do it, or print the plan."""
    if options.back == bool(options.model):
        raise BadUsage("Say either a model or --back.", "`quarterdeck swap MODEL`, or `quarterdeck swap --back`.")
    return act_on(options, lambda engine: BringUp(_wanted(engine, options), drain=options.drain))


def _wanted(engine: EngineFace, options: argparse.Namespace) -> str:
    if not options.back:
        return options.model
    recent = engine.latest.deployment.recent
    if not recent:
        raise NothingThere("No other model was served before this one.", "`quarterdeck swap MODEL` names one.")
    return recent[0]
