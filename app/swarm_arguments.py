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


def add_manifest(add: AddVerb) -> None:
    """`manifest create`."""
    verb = add("create", "hash a model and write its manifest beside it; one of several files stands for all")
    verb.add_argument("files", nargs="+", metavar="FILE")
    verb.add_argument("--piece-size", default="64MiB", metavar="SIZE",
                      help="16MiB, 64MiB (default), a number of bytes")


def add_moving(add: AddVerb) -> None:
    """`swarm seed`, `pull`, `status` and `verify`."""
    seed = add("seed", "give models of this machine away, by a process that goes on when this one ends")
    seed.add_argument("models", nargs="+", metavar="MODEL", help="a file, whole or half-fetched; a missing manifest "
                      "is made first")
    seed.add_argument("--foreground", action="store_true", help="run it here, until ctrl+c")
    seed.add_argument("--dry-run", action="store_true", help="print the plan, do nothing")
    _serving(seed, port=9080)

    pull = add("pull", "fetch a model from many peers; what came is kept, and the same command goes on")
    pull.add_argument("what", nargs="?", default="", metavar="URL|MANIFEST|NAME",
                      help="of a seeder, of a file, or of a model that a seeder nearby announces")
    pull.add_argument("folder", nargs="?", default="", metavar="FOLDER", help="default: this one")
    pull.add_argument("--manifest", default="", metavar="URL|FILE", help="the same as the first word")
    pull.add_argument("--sha256", action="append", default=[], metavar="HEX",
                      help="what the hub says of the file; compared before a byte moves (again for each further file)")
    pull.add_argument("--keep-seeding", action="store_true", help="give it away when it is whole, until ctrl+c")
    _fetching(pull, "those nearby")

    verify = add("verify", "hash all of a model, and mend what is wrong from peers")
    verify.add_argument("file", metavar="FILE", help="the (first) file of a model with its manifest beside it")
    _fetching(verify, "nothing is mended")

    add("status", "show who gives models away, and pulls of this machine that run or can go on")


def _serving(verb: argparse.ArgumentParser, port: int) -> None:
    verb.add_argument("--host", default="", metavar="ADDRESS",
                      help="listen here (default: this machine alone; with a token, networks or --open everywhere)")
    verb.add_argument("--port", type=int, default=port, metavar="PORT", help="default 9080" if port else "0 = any")
    verb.add_argument("--token-file", default="", metavar="FILE",
                      help="ask for and show this token (or QUARTERDECK_SWARM_TOKEN)")
    verb.add_argument("--token", default="", help=argparse.SUPPRESS)    # others see it in the list of processes
    verb.add_argument("--allowed-ips", action="append", default=[], metavar="CIDR",
                      help="who may ask: 192.168.1.0/24, fd00::/8 (may be given again)")
    verb.add_argument("--open", action="store_true", help="let anybody fetch, also from other machines")
    verb.add_argument("--limit-up", default="", metavar="RATE", help="most that is sent: 50M, 800k (bytes a second)")
    verb.add_argument("--limit-up-peer", default="", metavar="RATE", help="most that is sent to each")


def _fetching(verb: argparse.ArgumentParser, without: str) -> None:
    verb.add_argument("--peer", action="append", default=[], metavar="URL",
                      help=f"who has it, or a part (may be given again; without one: {without})")
    verb.add_argument("--tracker", action="append", default=[], metavar="URL",
                      help="a seeder that knows further peers (may be given again)")
    verb.add_argument("--parallel", type=int, default=4, metavar="N", help="requests at once (default 4)")
    verb.add_argument("--patience", type=float, default=60.0, metavar="SECONDS",
                      help="give up after so long without progress (default 60; 0: never)")
    verb.add_argument("--limit-down", default="", metavar="RATE", help="most that is received: 50M, 800k")
    verb.add_argument("--limit-down-peer", default="", metavar="RATE", help="most that is received from each")
    _serving(verb, port=0)
