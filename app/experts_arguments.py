"""The words of `quarterdeck experts`. Only argparse here, as in `app.arguments`."""

from __future__ import annotations

import argparse
from collections.abc import Callable

Action = Callable[..., argparse.ArgumentParser]
MODEL = "a file of this machine, NODE:PATH, or a name the fleet knows"


def add_experts(action: Action, at_least_one: Callable[[str], int], seconds: Callable[[str], float]) -> None:
    """Its actions, one sub-parser each."""
    inspect = action("inspect", "show where a model's experts lie, and the smallest budget that is worth it")
    _model(inspect, at_least_one)

    plan = action("plan", "show what budgets would hold, and what would be refused on its node, and why")
    _model(plan, at_least_one)
    _budgets(plan, "this budget (may be given again; default: fleet.yaml's, and some between the least and all)")

    watch = action("watch", "follow what a running head hits and reads, a line a second")
    _head(watch)
    watch.add_argument("--every", type=seconds, default=1.0, metavar="SECONDS", help="between two lines (default 1)")
    watch.add_argument("-n", "--count", type=at_least_one, default=None, metavar="N", help="end after N lines")
    watch.add_argument("--layers", action="store_true",
                       help="also the layers that hit least (16 bytes of each expert are read every time)")
    watch.add_argument("--residency", action="store_true",
                       help="also what of the experts is in memory (needs python3 on its node)")

    trace = action("trace", "record which experts a running head chooses, while it answers somebody; or a model here")
    _head(trace)
    trace.add_argument("--offline", default="", metavar="FILE",
                       help="run this model of this machine for it, with llama.cpp's own library (at most 1500 tokens)")
    trace.add_argument("--prompt", default="", metavar="TEXT", help="with --offline: what it goes on from")
    trace.add_argument("-o", "--output", required=True, metavar="FILE", help="where it goes (never overwritten)")
    trace.add_argument("--tokens", type=at_least_one, default=500, metavar="N", help="decoded ones (default 500)")
    trace.add_argument("--lines", action="store_true",
                       help="as text, `position layer expert expert ...`, of decoding alone")

    simulate = action("simulate", "run caches of every size over a trace: hits against the budget, and what to do")
    simulate.add_argument("trace", nargs="?", default="", metavar="TRACE",
                          help="of `experts trace`, or of TinyTitan (TINYTITAN_ROUTE_TRACE, _PREFETCH_TRACE)")
    simulate.add_argument("--model", default="", metavar="MODEL", help=f"it is of: {MODEL}; without, budgets are "
                          "numbers of experts")
    simulate.add_argument("--node", default="", metavar="NODE", help=argparse.SUPPRESS)
    _context(simulate, at_least_one)
    _budgets(simulate, "the present one (default: fleet.yaml's)", again=False)
    simulate.add_argument("--imatrix", default="", metavar="FILE",
                          help="an imatrix file with counts of experts: in the place of a trace, or beside it")
    simulate.add_argument("--disk-rate", default="", metavar="RATE|measure",
                          help="what its disk reads of single experts in a second: 500MB; `measure` reads for 2 s")
    simulate.add_argument("--speed", type=float, default=None, metavar="TOKENS",
                          help="a second, as it runs at the present budget")
    simulate.add_argument("--whole-speed", type=float, default=None, metavar="TOKENS",
                          help="a second, with all experts in memory")
    simulate.add_argument("--acceptance", type=_part, default=None, metavar="A",
                          help="chance that a draft is right, 0 to 1: say whether drafts would pay")
    simulate.add_argument("--width", type=at_least_one, default=2, metavar="N",
                          help="tokens of a pass with drafts, one and the drafted (default 2)")
    simulate.add_argument("--skip", type=int, default=None, metavar="N",
                          help="tokens at the beginning that fill the cache (default: a quarter, at most 200)")


def _part(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
    if not 0.0 <= value <= 1.0:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return value


def _model(verb: argparse.ArgumentParser, at_least_one: Callable[[str], int]) -> None:
    verb.add_argument("model", metavar="MODEL", help=MODEL)
    verb.add_argument("--node", default="", metavar="NODE", help="the copy on this node")
    _context(verb, at_least_one)


def _context(verb: argparse.ArgumentParser, at_least_one: Callable[[str], int]) -> None:
    verb.add_argument("--context", type=at_least_one, default=None, metavar="N",
                      help="tokens (default: fleet.yaml's, or 4096)")


def _budgets(verb: argparse.ArgumentParser, help_text: str, *, again: bool = True) -> None:
    verb.add_argument("--budget", action="append" if again else "store", default=[] if again else "", metavar="SIZE",
                      help=help_text)


def _head(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("node", nargs="?", default="", metavar="NODE",
                      help="needed when heads of several nodes read experts from disk")
