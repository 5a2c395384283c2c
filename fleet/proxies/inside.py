"""Proxies inside of headless engines on this machine: one runs its own, the others find it by its control file."""

from __future__ import annotations

import json
import os
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import psutil

from fleet.config.schema import ProxyConfig
from fleet.model import ServiceKind, ServiceRecord

if TYPE_CHECKING:
    from fleet.proxy.serve import Running

SERVICE = "inside"            # what stands for a service's id: nobody can stop it but its engine
FILE_LIMIT = 64 * 1024
MOST = 16


@asynccontextmanager
async def proxy_inside(config: ProxyConfig, env: Mapping[str, str], folder: Path, fleet: str) -> AsyncIterator[Running]:
    """A proxy that serves in this process while the block runs; its control file lies in `folder`.

    Raises:
        FleetError: it cannot be as it is configured, or cannot listen.
    """
    from fleet.proxy.serve import running  # uvicorn and all: only whoever serves pays for it
    from fleet.proxy.settings import settings_of

    settings = settings_of(config, env, control_file=str(folder / f"{_plain(fleet)}-{os.getpid()}.json"))
    async with running(settings) as proxy:
        yield proxy


def found(folder: Path, fleet: str) -> tuple[ServiceRecord, ...]:
    """Proxies inside of other engines of this fleet, as if they were services."""
    records = []
    with suppress(OSError):
        for path in sorted(folder.glob(f"{_plain(fleet)}-*.json"))[:MOST]:
            record = _read(path)
            if record is not None and record.pid != os.getpid():
                records.append(record)
    return tuple(records)


def _read(path: Path) -> ServiceRecord | None:
    """None: torn, or left by a process that is gone."""
    try:
        with path.open("rb") as file:
            said = json.loads(file.read(FILE_LIMIT))
        pid, url = int(said["pid"]), urlsplit(str(said["url"]))
        process = psutil.Process(pid)
        if not process.is_running() or process.create_time() > path.stat().st_mtime + 1.0:
            return None
        return ServiceRecord(SERVICE, ServiceKind.PROXY, pid, "", (), int(url.port or 0), url.hostname or "", True,
                             process.create_time(), str(path.parent), facts={"control": str(path)})
    except (OSError, ValueError, TypeError, KeyError, RecursionError, psutil.Error):
        return None


def _plain(fleet: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.]+", "_", fleet)[:40] or "fleet"
