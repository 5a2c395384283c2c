"""`python -m fleet.proxy`: the proxy alone, configured by `QUARTERDECK_*` variables; `--health` asks whether it serves.

What a container runs; with `--settings FILE` what the supervisor starts detached, here and on nodes. It imports neither
the cockpit nor anything of SSH, so that the image holds uvicorn and PyYAML beside Python, and nothing else.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from fleet.errors import ConfigError, FleetError
from fleet.proxy.exchange import ProxySettings

HEALTH_TIMEOUT = 4.0         # seconds; the container's own is 5
USAGE = """\
usage: python -m fleet.proxy [--health | --variables | --settings FILE]

Serves the proxy that QUARTERDECK_* variables configure, until SIGTERM.

  --health      ask the proxy that runs with the same variables; exit code 0 when it serves
  --variables   list them
  --settings    read the settings from a file that Quarterdeck has written, instead of variables
"""


def main(argv: list[str], env: Mapping[str, str]) -> int:
    """Exit codes as the README has them: 0, 1 (tried and failed), 2 (wrong command line), 3 (wrong configuration)."""
    from fleet.proxy.environment import from_environment, table

    if argv in (["-h"], ["--help"]):
        print(USAGE, end="")
        return 0
    if argv == ["--variables"]:
        print(table())
        return 0
    named = argv[1] if len(argv) == 2 and argv[0] == "--settings" else ""
    if argv not in ([], ["--health"]) and not named:
        print(USAGE, end="", file=sys.stderr)
        return 2
    try:
        if named:
            from fleet.proxy.settings_file import read_settings

            return serve_here(read_settings(Path(named)))
        found = from_environment(env)
        if argv:
            return health(found.settings.host, found.settings.port)
        for warning in found.warnings:
            print(f"quarterdeck: {warning}", file=sys.stderr)
        return serve_here(found.settings)
    except ConfigError as error:
        problems = getattr(error, "problems", ()) or (str(error),)
        for problem in problems:
            print(f"quarterdeck: {problem}", file=sys.stderr)
        return 3
    except FleetError as error:
        print(f"quarterdeck: {error}", file=sys.stderr)
        return 1


def health(host: str, port: int) -> int:
    """0 when the proxy on this machine answers /health with 200, else 1 and the reason on stderr."""
    import http.client

    reach = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
    connection = http.client.HTTPConnection(reach, port, timeout=HEALTH_TIMEOUT)
    try:
        connection.request("GET", "/health")
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        print(f"quarterdeck: the proxy on {reach}:{port} does not answer: {error}", file=sys.stderr)
        return 1
    finally:
        connection.close()
    if status != 200:
        print(f"quarterdeck: the proxy on {reach}:{port} answers {status}", file=sys.stderr)
        return 1
    return 0


def serve_here(settings: ProxySettings) -> int:
    """Serve in the foreground until SIGTERM or ctrl+c; says on stderr where."""
    from fleet.proxy.serve import serve

    asyncio.run(serve(settings, started=lambda proxy: print(f"quarterdeck: the proxy serves at {proxy.url}",
                                                            file=sys.stderr, flush=True)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:], os.environ))
