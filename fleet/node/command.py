"""The node's command: seed, pull, verify, manifest, residency and rpc-cache, for whoever drives it over SSH.

    manifest FILE...  [--piece-size N] [--facts FILE]      hash a model, write its manifest beside it
    seed FILE...                                           serve models (each with its manifest) until "stop"
    pull FOLDER --manifest PATH|URL --peer URL...          fetch a model, serving what is here already
    verify FILE [--peer URL...]                            hash everything, repair from peers
    residency FILE... --layout JSON [--pid N]              tell what of a model's experts is in memory (residency.py)
    rpc-cache show|check|prune|seed [FILE...]              see to the workers' caches of tensors (rpc_cache_command.py)

stdout: one JSON object a line (progress.py says which). stdin: one command a line, so that no secret
and no change of mind needs a new process:

    peer add URL        limit down RATE [PER_PEER]        limit up RATE [PER_PEER]        stop

The end of stdin stops nothing unless --until-eof is given. Exit status: 0 done, 1 failed (the last
line is the error), 2 called wrongly, 3 stopped and resumable.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import threading
from pathlib import Path

from . import residency, rpc_cache_command
from .access import Access, read_token
from .files import read_bounded
from .hashing import create_manifest
from .limits import Throttle, parse_rate
from .manifest import PIECE_SIZE, SUFFIX, Manifest, clean_facts
from .puller import PARALLEL, Puller
from .running import Tell, Told, check, fetch_manifest, manifest_of, pull, pulling, seeding, serve_on
from .seeder import PORT, Seeder
from .store import PULL, REPAIR, mark_source
from .trouble import ManifestRefused, Stopped, SwarmError

FAILED, STOPPED = 1, 3
LONGEST_COMMAND = 4_096
_TOKEN_REMARK = "--token can be read by everybody on the machine: use --token-file or the environment."


def main(argv: list[str] | None = None, heard: Tell | None = None) -> int:
    """Run one verb; the exit status. `heard` gets every record, too."""
    options = _arguments().parse_args(argv)
    halt = threading.Event()
    tell = Told(halt.set, heard)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: halt.set())
    try:
        return options.run(options, tell, halt)
    except Stopped as error:
        tell({"event": "error", "code": error.code, "what": error.what, "remedy": error.remedy})
        return STOPPED
    except SwarmError as error:
        tell({"event": "error", "code": error.code, "what": error.what, "remedy": error.remedy})
        return FAILED
    except OSError as error:
        tell({"event": "error", "code": "file", "what": f"{error.filename or ''} {error.strerror or error}".strip(),
              "remedy": ""})
        return FAILED


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="quarterdeck-node", description="Move a model's pieces between machines.")
    verbs = parser.add_subparsers(metavar="VERB", required=True)

    verb = verbs.add_parser("manifest", help="hash a model and write its manifest")
    verb.add_argument("files", nargs="+", type=Path, metavar="FILE")
    verb.add_argument("--piece-size", type=int, default=PIECE_SIZE, metavar="BYTES")
    verb.add_argument("--facts", type=Path, metavar="FILE", help="JSON object with GGUF facts to carry along")
    verb.set_defaults(run=_manifest)

    verb = verbs.add_parser("seed", help="serve models")
    verb.add_argument("files", nargs="+", type=Path, metavar="FILE", help="the (first) file of a model")
    verb.add_argument("--port", type=int, default=PORT)
    verb.add_argument("--once", action="store_true",
                      help="give each piece to one guest first, and let the guests share the rest")
    _add_serving(verb, "127.0.0.1")
    verb.set_defaults(run=_seed)

    verb = verbs.add_parser("pull", help="fetch a model")
    verb.add_argument("folder", type=Path, metavar="FOLDER")
    verb.add_argument("--manifest", required=True, metavar="PATH|URL")
    _add_pulling(verb)
    verb.add_argument("--keep-seeding", action="store_true", help="serve on when the model is whole, until 'stop'")
    verb.set_defaults(run=_pull)

    verb = verbs.add_parser("verify", help="hash everything and repair from peers")
    verb.add_argument("file", type=Path, metavar="FILE", help="the (first) file of a model with its manifest beside it")
    _add_pulling(verb)
    verb.set_defaults(run=_verify)

    residency.add_arguments(verbs.add_parser("residency", help="tell what of a model's experts is in memory"))
    rpc_cache_command.add_arguments(verbs.add_parser("rpc-cache", help="see to the workers' caches of tensors"))
    return parser


def _add_serving(verb: argparse.ArgumentParser, host: str | None) -> None:
    verb.add_argument("--host", default=host, metavar="ADDRESS")
    verb.add_argument("--token-file", metavar="FILE")
    verb.add_argument("--token", help=argparse.SUPPRESS)
    verb.add_argument("--allowed-ips", action="append", default=[], metavar="CIDR")
    verb.add_argument("--open", action="store_true", help="let anybody fetch, also from other machines")
    verb.add_argument("--limit-up", type=parse_rate, default=0.0, metavar="RATE")
    verb.add_argument("--limit-up-peer", type=parse_rate, default=0.0, metavar="RATE")
    verb.add_argument("--linger", type=float, default=0.0, metavar="SECONDS",
                      help="stop serving when nobody took a byte for so long (0: never)")
    verb.add_argument("--until-eof", action="store_true", help="stop when stdin ends")


def _add_pulling(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--peer", action="append", default=[], metavar="URL")
    verb.add_argument("--tracker", action="append", default=[], metavar="URL")
    verb.add_argument("--parallel", type=int, default=PARALLEL)
    verb.add_argument("--port", type=int, default=0, help="serve what is here on this port (0: a free one)")
    verb.add_argument("--patience", type=float, default=60.0, metavar="SECONDS", help="0: wait for peers for ever")
    verb.add_argument("--limit-down", type=parse_rate, default=0.0, metavar="RATE")
    verb.add_argument("--limit-down-peer", type=parse_rate, default=0.0, metavar="RATE")
    verb.add_argument("--seed", type=int, help=argparse.SUPPRESS)   # of the choices, for tests
    _add_serving(verb, None)


def _manifest(options: argparse.Namespace, tell: Told, halt: threading.Event) -> int:
    folder = options.files[0].resolve().parent
    if any(path.resolve().parent != folder for path in options.files):
        raise ManifestRefused("The shards are not in one folder.")
    facts = {}
    if options.facts is not None:
        try:
            facts = clean_facts(json.loads(read_bounded(options.facts, 65_536)))
        except ValueError:
            raise ManifestRefused(f"{options.facts} is no JSON object.") from None
    last = [0]

    def progress(done: int, total: int) -> None:
        if done - last[0] >= 1 << 28 or done == total:
            last[0] = done
            tell({"event": "progress", "phase": "hashing", "done": done, "bytes": total})

    manifest = create_manifest(options.files, piece_size=options.piece_size, facts=facts, progress=progress, stop=halt)
    mark_source(manifest, folder)
    path = folder / (manifest.name + SUFFIX)
    tell({"event": "done", "paths": [str(path)], "manifest": manifest.id, "pieces": manifest.count,
          "sha256": [entry.sha256 for entry in manifest.files]})
    return 0


def _seed(options: argparse.Namespace, tell: Told, halt: threading.Event) -> int:
    seeder = _seeder(options, options.host, tell)
    with seeding(seeder, options.files, tell, halt, once=options.once):
        _listen(options, halt, tell, seeder, None)
        serve_on(seeder, tell, halt, options.linger)
    return 0


def _pull(options: argparse.Namespace, tell: Told, halt: threading.Event) -> int:
    manifest, base = fetch_manifest(options.manifest, _token(options, tell) if "://" in options.manifest else "")
    peers = list(dict.fromkeys([*options.peer, *([base] if base else [])]))
    return _run(options, manifest, options.folder, peers, tell, halt, PULL)


def _verify(options: argparse.Namespace, tell: Told, halt: threading.Event) -> int:
    manifest, folder = manifest_of(options.file), options.file.resolve().parent
    if options.peer or options.tracker:
        return _run(options, manifest, folder, options.peer, tell, halt, REPAIR)
    check(manifest, folder, tell, halt)
    return 0


def _run(options: argparse.Namespace, manifest: Manifest, folder: Path, peers: list[str], tell: Told,
         halt: threading.Event, mode: str) -> int:
    seeder = _seeder(options, options.host or "127.0.0.1", tell)
    puller = Puller(manifest, folder, peers, parallel=options.parallel, token=_token(options, tell), seeder=seeder,
                    trackers=options.tracker, throttle=Throttle(options.limit_down, options.limit_down_peer),
                    tell=tell, patience=options.patience or None, mode=mode, trust=mode != REPAIR,
                    rng=random.Random(options.seed))
    with pulling(puller, seeder, tell, halt):
        _listen(options, halt, tell, seeder, puller)
        pull(puller, tell)
        if getattr(options, "keep_seeding", False):
            serve_on(seeder, tell, halt, options.linger)
    return 0


def _seeder(options: argparse.Namespace, host: str, tell: Told) -> Seeder:
    return Seeder(host, options.port, access=Access(_token(options, tell), options.allowed_ips),
                  allow_open=options.open, throttle=Throttle(options.limit_up, options.limit_up_peer))


def _token(options: argparse.Namespace, tell: Told) -> str:
    if options.token:
        tell({"event": "note", "what": _TOKEN_REMARK})
        options.token_file, os.environ["QUARTERDECK_SWARM_TOKEN"], options.token = None, options.token, None
    return read_token(options.token_file)


def _listen(options: argparse.Namespace, halt: threading.Event, tell: Told, seeder: Seeder,
            puller: Puller | None) -> None:
    """Obey stdin in a thread of its own."""
    def read() -> None:
        while not halt.is_set():
            line = sys.stdin.readline(LONGEST_COMMAND)
            if not line:
                if options.until_eof:
                    halt.set()
                return
            words = line.split()
            if words:
                try:
                    _obey(words, halt, seeder, puller)
                except (ValueError, SwarmError) as error:
                    tell({"event": "note", "what": f"Not understood: {str(error)[:200]}"})

    threading.Thread(target=read, name="commands", daemon=True).start()


def _obey(words: list[str], halt: threading.Event, seeder: Seeder, puller: Puller | None) -> None:
    if words == ["stop"]:
        halt.set()
    elif words[:2] == ["peer", "add"] and len(words) == 3 and puller is not None:
        puller.add_peer(words[2])
    elif words[0] == "limit" and len(words) in (3, 4) and words[1] in ("down", "up"):
        total, per_peer = parse_rate(words[2]), parse_rate(words[3]) if len(words) == 4 else 0.0
        throttle = seeder.throttle if words[1] == "up" else puller.throttle if puller is not None else None
        if throttle is None:
            raise ValueError("a seeder receives nothing")
        throttle.set_rates(total, per_peer)
    else:
        raise ValueError(" ".join(words)[:80])


