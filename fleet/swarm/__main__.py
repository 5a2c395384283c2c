"""`python -m fleet.swarm seed ...`: fleet/node's seeder as a service of this machine; --announce says so by mDNS."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from fleet.node import command
from fleet.node.progress import Note, as_line
from fleet.swarm.nearby import Announcing


def main(argv: Sequence[str] | None = None) -> int:
    """Run the node's command; its exit status."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--announce", action="store_true")
    parser.add_argument("--interface", action="append", default=[])
    options, rest = parser.parse_known_args(argv)
    if not options.announce:
        return command.main(rest)
    listens = argparse.ArgumentParser(add_help=False)
    listens.add_argument("--host", default="127.0.0.1")
    host = listens.parse_known_args(rest)[0].host
    with Announcing(host, options.interface, say=lambda text: print(as_line(Note(text)), flush=True)) as announcing:
        def heard(record: object) -> None:
            if isinstance(record, dict) and record.get("event") == "serving":
                announcing.announce(record["manifest"], record["name"], record["port"])

        return command.main(rest, heard)


if __name__ == "__main__":
    sys.exit(main())
