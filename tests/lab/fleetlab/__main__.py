"""The command line of the lab: see the package's own text."""

from __future__ import annotations

import argparse
import os
import sys

from . import __doc__ as manual
from . import lab as labs
from .base import USER, LabError
from .netns import cable_state, pids_in
from .node import answers, enter, init_of
from .traits import TRAITS, available


def main() -> None:
    """Do what the arguments say."""
    args = _arguments()
    try:
        _do(args)
    except LabError as error:
        sys.exit(f"fleetlab: {error}")


def _do(args: argparse.Namespace) -> None:
    if args.verb == "traits":
        print("\n".join(f"{name:13} {text}" for name, text in TRAITS.items()))
        return
    if os.geteuid():
        raise LabError("must be root")
    if args.verb == "exec":
        command = enter(labs.load(args.node)[1][0], args.cmd, args.user)
        os.execvp(command[0], command)
    if args.verb == "ctl":
        os.execvp("ip", ["ip", "netns", "exec", "fl-ctl", *args.cmd])
    if args.verb == "status":
        _status()
        return
    with labs.changing():
        _change(args)


def _change(args: argparse.Namespace) -> None:
    if args.verb == "up":
        zoo = [(trait,) for trait in available() if trait != "plain"] if args.zoo else []
        wish = labs.Wish(
            (*[("plain",)] * args.nodes, *(tuple(with_.split("+")) for with_ in args.with_), *zoo),
            tuple(args.hostnames.split(",")), args.delay_ms, args.rate_mbit, args.bin, args.models)
        made = labs.up(wish)
        print(f"fleetlab: {len(made['nodes'])} nodes up; {made['dir']}/lab.json")
        return
    if args.verb == "down":
        labs.down()
        return
    lab, nodes = labs.load(args.node)
    for node in nodes:
        match args.verb:
            case "link":
                labs.link(node, args.delay_ms, args.rate_mbit, args.loss_pct)
            case "memory":
                labs.limit(node, args.mib)
            case "cut":
                labs.cut(node, silent=args.silent)
            case "heal":
                labs.heal(node)
            case "kill":
                labs.kill(node)
            case "boot":
                labs.start(node, lab)
    labs.save(lab)


def _status() -> None:
    for node in labs.load()[1]:
        name = node["name"]
        state = "off" if not init_of(name) else cable_state(name)
        if state == "up" and not answers(node):
            state = "no-sshd"
        link = " ".join(f"{key}={node[key]:g}" for key in ("delay_ms", "rate_mbit", "loss_pct", "memory_mib")
                        if node[key])
        print(f"{name:7} {node['hostname']:10} {node['addr']}:{node['port']:<5} {state:8} "
              f"{len(pids_in(name)):3} processes  {'+'.join(node['traits'])} {link}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="fleetlab", description=manual,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    names = ("up", "exec", "ctl", "link", "memory", "cut", "heal", "kill", "boot", "status", "traits", "down")
    by_name = {name: verbs.add_parser(name) for name in names}
    up = by_name["up"]
    up.add_argument("--nodes", type=int, default=3)
    up.add_argument("--with", dest="with_", action="append", default=[], metavar="TRAIT[+TRAIT]")
    up.add_argument("--zoo", action="store_true")
    for option in ("hostnames", "bin", "models"):
        up.add_argument(f"--{option}", default=os.environ.get(f"FLEETLAB_{option.upper()}", ""))
    by_name["exec"].add_argument("-u", "--user", choices=("root", USER), default="root")
    by_name["cut"].add_argument("--silent", action="store_true")
    for verb, options in (("up", ("delay-ms", "rate-mbit")), ("link", ("delay-ms", "rate-mbit", "loss-pct"))):
        for option in options:
            by_name[verb].add_argument(f"--{option}", type=float, default=0.0)
    by_name["memory"].add_argument("--mib", type=int, default=0)
    for verb in ("exec", "link", "memory", "cut", "heal", "kill", "boot"):
        by_name[verb].add_argument("node")
    for verb in ("exec", "ctl"):
        by_name[verb].add_argument("cmd", nargs=argparse.REMAINDER)
    return parser.parse_args()


if __name__ == "__main__":
    main()
