"""The words of `quarterdeck proxy`. Only argparse here: `--help` imports this."""

from __future__ import annotations

import argparse
from collections.abc import Callable

Action = Callable[..., argparse.ArgumentParser]


def add_proxy(action: Action, count: Callable[[str], int]) -> None:
    """Its actions, one sub-parser each."""
    start = action("start", "start the proxy of fleet.yaml as a service of its own, on this machine or on NODE")
    start.add_argument("node", nargs="?", default="", metavar="NODE", help="default: this machine")
    start.add_argument("--dry-run", action="store_true", help="print the plan, do nothing")

    stop = action("stop", "end a proxy; running requests get a few seconds")
    stop.add_argument("node", nargs="?", default="", metavar="NODE", help="needed when several nodes have one")
    stop.add_argument("--dry-run", action="store_true", help="print the plan, do nothing")

    action("status", "show every proxy: where clients point at, what is behind it, what goes through it")

    requests = action("requests", "list live requests and the last ended ones")
    requests.add_argument("-n", "--last", type=count, default=20, metavar="N", help="ended ones (default 20)")

    cancel = action("cancel", "end a live request; its client gets an error")
    cancel.add_argument("request", metavar="ID", help="as `proxy requests` shows it")

    action("run", "serve in the foreground until ctrl+c, what fleet.yaml or QUARTERDECK_* variables say", json=False)
    action("health", "ask the one that runs with the same settings; exit code 0 when it serves", json=False)
    action("variables", "list the QUARTERDECK_* variables", json=False)
