"""`quarterdeck proxy`: the proxy in the foreground, from fleet.yaml or from `QUARTERDECK_*` variables alone."""

from __future__ import annotations

import argparse
import os
import sys

from app.exit_codes import ExitCode
from fleet.errors import ConfigError
from fleet.proxy.exchange import ProxySettings


def run(options: argparse.Namespace) -> int:
    """Serve, or ask whether it serves, or list the variables."""
    from fleet.proxy.environment import table

    if options.action == "variables":
        print(table())
        return ExitCode.OK
    settings = settings_here(options)
    from fleet.proxy.__main__ import health, serve_here

    return health(settings.host, settings.port) if options.action == "health" else serve_here(settings)


def settings_here(options: argparse.Namespace) -> ProxySettings:
    """What fleet.yaml says of the proxy, where there is one; else what the variables say.

    Raises:
        ConfigError: neither names a server, or something in them cannot be; all of it at once.
    """
    from app.which_fleet import which_fleet
    from fleet.proxy.environment import from_environment, is_configured
    from fleet.proxy.settings import settings_of

    which = which_fleet(options)
    if which.has_file and (which.config.proxy.upstreams or not is_configured(os.environ)):
        if not which.config.proxy.upstreams:
            raise ConfigError(f"{which.path} names no server for the proxy.",
                              "Name one under proxy: upstreams:, as fleet.example.yaml shows, or set "
                              "QUARTERDECK_TARGET_URL.", code="proxy")
        return settings_of(which.config.proxy, os.environ)
    found = from_environment(os.environ)
    for warning in found.warnings:
        print(f"quarterdeck: {warning}", file=sys.stderr)
    return found.settings
