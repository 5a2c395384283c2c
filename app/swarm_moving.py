"""What `swarm seed`, `pull` and `verify` have in common: their words as values, signals, tokens."""

from __future__ import annotations

import argparse
import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from app.exit_codes import BadUsage, ExitCode, NothingThere
from app.output import note
from fleet.node.access import check_token, parse_network, read_token
from fleet.node.limits import parse_rate
from fleet.node.manifest import BIGGEST_PIECE, SMALLEST_PIECE
from fleet.node.trouble import Stopped
from fleet.swarm.faults import SwarmFault, told_to_people

ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
EVERYWHERE = "0.0.0.0"
LOOPBACK = "127.0.0.1"
_SIZE = re.compile(r"([0-9]{1,10})\s*(?:([kmg])i?b?|b)?")
_SHIFTS = {"": 0, "k": 10, "m": 20, "g": 30}


@dataclass(frozen=True, slots=True)
class Serving:
    """How what is here is given away. `host` is the address that is listened on."""

    host: str
    port: int
    token: str
    networks: tuple[str, ...]
    open: bool
    limit: float
    limit_each: float


def serving_of(options: argparse.Namespace, *, alone: bool) -> Serving:
    """The words of `--host` to `--limit-up-peer`. `alone`: without one that asks for guests it stays on loopback.

    Raises:
        BadUsage: one of them cannot be.
        SwarmFault: the token file cannot be read, or holds none.
    """
    if not 0 <= options.port <= 65_535:
        raise BadUsage(f"{options.port} is no port.", "Choose one from 1 to 65535.")
    token, networks = token_of(options), tuple(options.allowed_ips)
    with told_to_people():
        for network in networks:
            parse_network(network)
    guests = bool(networks or options.open or (token and (options.port or not alone)))
    return Serving(options.host or (EVERYWHERE if guests else LOOPBACK), options.port, token, networks, options.open,
                   rate_of(options.limit_up), rate_of(options.limit_up_peer))


def token_of(options: argparse.Namespace) -> str:
    """The token of --token-file, of the environment, or of --token, which is warned about."""
    with told_to_people():
        if options.token and not options.token_file:
            note("--token can be read by everybody on this machine: use --token-file or QUARTERDECK_SWARM_TOKEN")
            return check_token(options.token)
        return read_token(os.path.expanduser(options.token_file) or None)


def rate_of(text: str) -> float:
    """Bytes a second of "50M", 0 for "".

    Raises:
        BadUsage: it is no rate.
    """
    try:
        return parse_rate(text) if text else 0.0
    except ValueError:
        raise BadUsage(f"{text!r} is no rate.", "Write it as 50M or 800k: bytes a second.") from None


def piece_size_of(text: str) -> int:
    """Bytes of "64MiB" or "64MB" (a piece of 64 MB has 67,108,864), of "64" (the same, as Tightwad writes it).

    Raises:
        BadUsage: it is no size that a piece may have.
    """
    match = _SIZE.fullmatch(text.strip().lower())
    found = int(match[1]) << _SHIFTS[match[2] or ""] if match else 0
    if match and not match[2] and found < SMALLEST_PIECE:
        found <<= 20
    if not SMALLEST_PIECE <= found <= BIGGEST_PIECE:
        raise BadUsage(f"{text!r} is no size of a piece.", "Write it as 16MiB or 64MiB; from 4KiB to 1GiB.")
    return found


def file_here(path: str) -> str:
    """The absolute path of a file that is there.

    Raises:
        NothingThere: it is not.
    """
    path = os.path.abspath(os.path.expanduser(path))
    if not os.path.lexists(path):
        raise NothingThere(f"There is no file {path}.", "Look at its name and folder.")
    return path


def check_counts(options: argparse.Namespace) -> None:
    """Raises BadUsage for a --parallel, --patience or limit that cannot be."""
    from fleet.node.puller import MOST_PARALLEL

    if not 1 <= options.parallel <= MOST_PARALLEL:
        raise BadUsage(f"--parallel {options.parallel} is not within 1 and {MOST_PARALLEL}.", "Leave it out.")
    if not 0 <= options.patience <= 86_400 * 365:
        raise BadUsage(f"--patience {options.patience:g} is no number of seconds.", "Leave it out.")
    for rate in (options.limit_down, options.limit_down_peer):
        rate_of(rate)


def interfaces_of(options: argparse.Namespace) -> tuple[tuple[str, ...], bool, bool]:
    """`discovery` of fleet.yaml: interfaces, whether mDNS may be listened to, whether we may announce."""
    from app.which_fleet import which_fleet

    discovery = which_fleet(options).config.discovery
    return discovery.interfaces, discovery.mdns, discovery.mdns and discovery.announce


@contextmanager
def halting() -> Iterator[threading.Event]:
    """An event that the first signal sets; the second one leaves at once, and nothing that is finished is lost."""
    halt = threading.Event()

    def end(*_: object) -> None:
        if halt.is_set():
            os._exit(ExitCode.INTERRUPTED)
        halt.set()

    before = {number: signal.signal(number, end) for number in ENDINGS}
    try:
        with told_to_people():
            yield halt
    except SwarmFault as error:
        if isinstance(error.__cause__, Stopped):
            raise KeyboardInterrupt from error
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
