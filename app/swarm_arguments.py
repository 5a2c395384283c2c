"""The words of `quarterdeck swarm`. Only argparse here, as in `app.arguments`."""

from __future__ import annotations

import argparse
from typing import Protocol


class AddVerb(Protocol):
    """Adds one verb to a set of them, with what all verbs take."""

    def __call__(self, name: str, help_text: str, *, json: bool = True) -> argparse.ArgumentParser: ...


def add_distribute(add: AddVerb) -> None:
    """`swarm distribute`."""
    verb = add("distribute", "bring a model to other machines of the fleet, which share it among themselves")
    verb.add_argument("model", metavar="MODEL",
                      help="a file of this machine, NODE:PATH, or a name the fleet knows")
    verb.add_argument("--to", required=True, metavar="NODE[,NODE...]|all", help="where to")
    verb.add_argument("--sha256", action="append", default=[], metavar="HEX",
                      help="what the hub says of the file; compared before a byte moves (again for each further file)")
    verb.add_argument("--limit", default="", metavar="RATE",
                      help="most that the source sends: 50M, 800k (bytes a second)")
    verb.add_argument("--dry-run", action="store_true", help="print the plan, do nothing")
