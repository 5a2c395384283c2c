"""The command line's words. Only argparse here: this is all that `--help` imports."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence

from app.exit_codes import MEANINGS
from app.experts_arguments import add_experts
from app.proxy_arguments import add_proxy
from app.swarm_arguments import add_distribute, add_manifest, add_moving

DESCRIPTION = ("Turn the machines in your home into one LLM server: stock llama.cpp over plain SSH. "
               "Without a verb the cockpit opens.")
LOWEST_RATE, HIGHEST_RATE = 0.2, 20.0   # repaints a second


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Help of at most 100 columns. Given the width, argparse does not import shutil (and zlib, bz2, lzma)."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=_columns())


def _columns() -> int:
    try:
        columns = os.get_terminal_size().columns
    except OSError:
        columns = 80
    return max(40, min(columns, 100)) - 2


class _Version(argparse.Action):
    """Print the version and end. Reading it costs 20 ms, so that is done when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace,
                 values: str | Sequence[object] | None, option_string: str | None = None) -> None:
        from app.version import version

        print(f"quarterdeck {version()}")
        parser.exit()


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of times a second") from None
    if not LOWEST_RATE <= rate <= HIGHEST_RATE:
        raise argparse.ArgumentTypeError(f"{text} is not between {LOWEST_RATE:g} and {HIGHEST_RATE:g} times a second")
    return rate


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number")
    return int(text)


def _at_least_one(text: str) -> int:
    if (count := _count(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return count


def _temperature(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
    if not 0.0 <= value <= 5.0:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 5")
    return value


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds") from None
    if not 0.0 <= value <= 3600.0:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 3600 seconds")
    return value


def _speed(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
    if not 0.1 <= value <= 1000.0:
        raise argparse.ArgumentTypeError(f"{text} is not between 0.1 and 1000")
    return value


def _epilog() -> str:
    codes = "\n".join(f"  {code.value:>3}  {meaning}" for code, meaning in MEANINGS.items())
    return f"exit codes:\n{codes}\n\n`quarterdeck VERB --help` tells more of a verb."


def _add_common(parser: argparse.ArgumentParser, *, json: bool) -> None:
    """What may stand before the verb and after it. SUPPRESS: what stood before is not overwritten."""
    parser.add_argument("--config", metavar="FILE", default=argparse.SUPPRESS,
                        help="use this fleet.yaml")
    parser.add_argument("--accept-new", action="store_true", default=argparse.SUPPRESS,
                        help="accept SSH host keys that were never seen (a changed one never is)")
    if json:
        parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON")


DEFAULTS = {"config": None, "accept_new": False, "json": False}


def build_parser() -> argparse.ArgumentParser:
    """The whole command line. The result of parsing has `verb`: a name, or None for the cockpit."""
    parser = argparse.ArgumentParser(prog="quarterdeck", description=DESCRIPTION, epilog=_epilog(),
                                     formatter_class=_Formatter)
    parser.set_defaults(**DEFAULTS)
    _add_common(parser, json=True)
    parser.add_argument("--no-ui", action="store_true", help="no cockpit: print what happens, a line each")
    parser.add_argument("--once", action="store_true", help="with --no-ui: print one snapshot and end")
    parser.add_argument("--up", nargs="?", const="", default=None, metavar="MODEL",
                        help="with --no-ui: bring MODEL up (or the fleet's own) and keep it up")
    parser.add_argument("--read-only", action="store_true", help="look, but change nothing")
    parser.add_argument("--rate", type=_rate, default=None, metavar="HZ",
                        help="repaint the cockpit at most so many times a second (default 5, over SSH 2)")
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and end")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", title="verbs", parser_class=argparse.ArgumentParser)
    _add_verbs(verbs)
    return parser


def _add_bench(action: Callable[..., argparse.ArgumentParser]) -> None:
    speculation = action("speculation", "every way to draft, side by side with the target alone")
    speculation.add_argument("--target", default="", metavar="URL",
                             help="a llama-server (default: what the fleet serves)")
    speculation.add_argument("--drafter", action="append", default=[], metavar="URL",
                             help="a llama-server with a draft model; may be repeated")
    speculation.add_argument("--key-env", default="", metavar="NAME",
                             help="variable with the key that the target wants")
    speculation.add_argument("--tokens", type=_at_least_one, default=96, metavar="N",
                             help="of each answer (default 96)")


def _add_plan(plan: argparse.ArgumentParser) -> None:
    plan.add_argument("model", nargs="?", default="", metavar="MODEL", help="default: fleet.yaml's `model:`")
    plan.add_argument("--context", type=_count, default=None, metavar="N",
                      help="tokens of all slots together; 0 = all that the model was trained for")
    plan.add_argument("--kv", default="", metavar="TYPE[,TYPE]", help="type of K and V: f16, q8_0, q4_0 ...")
    plan.add_argument("--slots", type=_at_least_one, default=None, metavar="N", help="requests at once")
    plan.add_argument("--nodes", default=None, metavar="A,B", help="these workers; `none` = the head alone")
    plan.add_argument("--without", action="append", default=[], metavar="NODE[:DEVICE]",
                      help="leave a node or one of its devices out (may be given again)")
    plan.add_argument("--head", default="", metavar="NODE", help="this head")
    plan.add_argument("--mode", choices=("time", "memory"), default=None,
                      help="time: the fewest predicted seconds a token; memory: shares by memory")
    plan.add_argument("--fleet", default=None, metavar="FILE",
                      help="plan for the fleet that this YAML describes; no machine is asked (see the README)")


def actions_of(parser: argparse.ArgumentParser) -> Callable[..., argparse.ArgumentParser]:
    """A maker of the actions of a verb: a sub-parser for each, with what is common to all."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", title="actions", required=True,
                                    parser_class=argparse.ArgumentParser)

    def action(name: str, help_text: str, *, json: bool = True) -> argparse.ArgumentParser:
        added = actions.add_parser(name, help=help_text, description=f"{help_text[0].upper()}{help_text[1:]}.",
                                   formatter_class=_Formatter)
        _add_common(added, json=json)
        return added

    return action


def _add_verbs(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    def verb(name: str, help_text: str, *, json: bool = True) -> argparse.ArgumentParser:
        added = verbs.add_parser(name, help=help_text, description=f"{help_text[0].upper()}{help_text[1:]}.",
                                 formatter_class=_Formatter)
        _add_common(added, json=json)
        return added

    demo = verb("demo", "bring a small model up on this machine alone, split over two workers")
    demo.add_argument("--no-ui", action="store_true", default=argparse.SUPPRESS,
                      help="no cockpit: print the steps, and say when it serves")
    demo.add_argument("--once", action="store_true", default=argparse.SUPPRESS,
                      help="no cockpit, and end when it serves (it goes on serving)")
    demo.add_argument("--screenshots", metavar="DIR",
                      help="bring it up, write pictures of the cockpit into DIR, and take it down again")

    init = verb("init", "write a first fleet.yaml from what can be found", json=False)
    init.add_argument("--print", action="store_true", dest="print_only", help="print it, write nothing")
    init.add_argument("--name", default="", metavar="NAME", help="what the fleet is called")
    init.add_argument("-o", "--output", metavar="FILE", help="where to write it (never overwritten)")

    verb("nodes", "list the machines of the fleet and those found around it")

    up = verb("up", "bring a model up over the fleet")
    up.add_argument("model", nargs="?", default="", metavar="MODEL", help="default: fleet.yaml's `model:`")
    up.add_argument("--dry-run", action="store_true", help="print the plan, do nothing")

    swap = verb("swap", "serve another model; requests wait meanwhile, and none is lost")
    swap.add_argument("model", nargs="?", default="", metavar="MODEL")
    swap.add_argument("--back", action="store_true", help="the model that was served before")
    swap.add_argument("--drain", type=_seconds, default=120.0, metavar="SECONDS",
                      help="let running requests end for so long, then cut them (default 120)")
    swap.add_argument("--dry-run", action="store_true", help="print the plan, do nothing")

    down = verb("down", "end every service of this fleet")
    down.add_argument("--dry-run", action="store_true", help="print the plan, do nothing")

    _add_plan(verb("plan", "show what would go where, how fast it would be, and why; nothing is done"))

    verb("status", "show what serves, and where the model really is")

    logs = verb("logs", "print a service's log", json=False)
    logs.add_argument("node", nargs="?", metavar="NODE", help="needed when several nodes have such a service")
    logs.add_argument("service", metavar="SERVICE", help="as `status` shows it: coordinator-8080, worker-50052")
    logs.add_argument("-f", "--follow", action="store_true", help="go on printing what is added")
    logs.add_argument("-n", "--lines", type=_count, default=200, metavar="N", help="the last N lines (default 200)")

    chat = verb("chat", "talk to the model that the fleet serves")
    chat.add_argument("prompt", nargs="*", metavar="PROMPT",
                      help="one question; `-` or a pipe: read it from standard input; without: a conversation")
    chat.add_argument("--system", default="", metavar="TEXT", help="system message")
    chat.add_argument("--max-tokens", type=_at_least_one, default=None, metavar="N", help="longest answer")
    chat.add_argument("--temperature", type=_temperature, default=None, metavar="T",
                      help="0 = always the likeliest (default: the server's own, 0.8; 0 for a model not made to chat)")

    for name, help_text in (("start", "start a service that ended, as it was"), ("stop", "end one service"),
                            ("restart", "end one service and start it again")):
        service = verb(name, help_text)
        service.add_argument("node", metavar="NODE")
        service.add_argument("service", metavar="SERVICE", help="as `status` shows it")
        service.add_argument("--dry-run", action="store_true", help="print the plan, do nothing")

    processes = actions_of(verb("processes", "list the engines' processes of all nodes; adopt or end what is nobody's",
                                json=False))
    processes("list", "list every engine's process and port owner, ours and nobody's")
    for name, help_text in (("adopt", "take a process that somebody else started under our care"),
                            ("end", "end a process that is not ours")):
        one = processes(name, help_text)
        one.add_argument("node", metavar="NODE")
        one.add_argument("pid", type=_at_least_one, metavar="PID", help="as `processes list` shows it")
        one.add_argument("--dry-run", action="store_true", help="print the plan, do nothing")

    add_proxy(actions_of(verb("proxy", "serve one endpoint before everything that the fleet serves", json=False)),
              _count)

    _add_bench(actions_of(verb("bench", "measure what a way of serving is worth on this fleet", json=False)))

    verb("doctor", "check everything that has to be right, and say what to do about the rest")

    inspect = verb("inspect", "show what a model is: size, layers, attention, experts, vocabulary, where it lies")
    inspect.add_argument("model", metavar="MODEL", help="a file of this machine, NODE:PATH, or a name the fleet knows")
    inspect.add_argument("--node", default="", metavar="NODE", help="the copy on this node")

    flight = verb("flight", "list what the flight recorder kept, or put it into one file for a bug report")
    flight.add_argument("action", choices=("list", "export"))
    flight.add_argument("file", nargs="?", default="", metavar="FILE", help="export: write to this file")
    flight.add_argument("--runs", type=_at_least_one, default=1, metavar="N",
                        help="export: the last N runs of a cockpit, --no-ui or verb (default 1)")

    replay = verb("replay", "play a recording of the flight recorder in the cockpit")
    replay.add_argument("file", nargs="?", default="", metavar="FILE",
                        help="a recording, or an exported one (default: the last run)")
    replay.add_argument("--speed", type=_speed, default=8.0, metavar="TIMES", help="times as fast (default 8)")
    replay.add_argument("--no-ui", action="store_true", default=argparse.SUPPRESS,
                        help="no cockpit: print all that happened, a line each, at once")

    swarm = verb("swarm", "move models between machines", json=False)
    action = actions_of(swarm)
    add_moving(action)
    add_distribute(action)
    add_manifest(actions_of(verb("manifest", "hash models, so that they can be moved", json=False)))

    add_experts(actions_of(verb("experts", "see to mixtures of experts that are larger than memory", json=False)),
                _at_least_one, _seconds)

    completion = verb("completion", "print a completion script for a shell", json=False)
    completion.add_argument("shell", choices=("bash", "zsh", "fish"))
