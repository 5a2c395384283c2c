"""The demo that runs, found by what its state folder says: nothing else remembers it."""

from __future__ import annotations

import asyncio

from app.demo.fleet import FLEET, NODE, demo_config, model_of, ports_of, state_folder, usable_cores
from fleet.config.schema import FleetConfig
from fleet.model import ServiceRecord


def running_demo() -> FleetConfig | None:
    """The configuration of the demo that has live services; None when none has."""
    records = demo_records()
    ports, model = ports_of(records), model_of(records)
    if ports is None:
        return None
    name, file = model or ("", "")
    return demo_config(name, file, ports, cores=usable_cores())


def demo_records() -> tuple[ServiceRecord, ...]:
    """What the demo's state folder holds. A machine that never ran it has no such folder."""
    if not state_folder().is_dir():
        return ()
    return asyncio.run(_records())


async def _records() -> tuple[ServiceRecord, ...]:
    from fleet.nodes.local import LocalTransport
    from fleet.nodes.supervisor import Supervisor

    transport = LocalTransport(NODE)
    try:
        records = await Supervisor(transport, str(state_folder())).records()
        return tuple(record for record in records if record.fleet == FLEET)
    finally:
        await transport.close()
