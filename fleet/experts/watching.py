"""Samples of what of a running head's experts is in memory, from a probe on its node: started, fed, read.

The probe is the node's own python3 with our zipapp; it ends with the connection.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing

from fleet.errors import OperationFailed
from fleet.experts.layout import Layout
from fleet.experts.residency import Residency, ResidencyReader
from fleet.nodes.transport import Transport
from fleet.swarm.push import Parcels, look
from fleet.text import visible

_SHIFT = 'qd_python=$1 qd_program=$2 qd_layout=$3 qd_pid=$4 qd_every=$5; shift 5\n'
_SCRIPT = _SHIFT + ('exec "$qd_python" "$qd_program" residency "$@" --layout "@$qd_layout" --pid "$qd_pid" '
                    '--every "$qd_every" 2>&1')
LINE = 1 << 20                 # bytes of a line: one of 2 KB is usual


async def residencies(transport: Transport, state_dir: str, paths: Sequence[str], layout: Layout, *, pid: int,
                      every: float = 2.0) -> AsyncIterator[Residency]:
    """One sample after the other, until the caller has enough.

    Args:
        state_dir: the node's state folder as fleet.yaml has it, "" = the usual one.
        paths: of the model's files, in order.
        pid: of the head, for its figures.
        every: seconds between two at the least.

    Raises:
        OperationFailed: the node has no python3 that can, or the probe ends.
        FleetError: the node does not answer.
    """
    ground = await look(transport, state_dir, (), ())
    if not ground.python:
        raise OperationFailed(f"{transport.name} has no python3 (3.9 or newer): what of the model is in memory is not "
                              "known.", "Install python3 there.", code="no-python")
    parcels, text = Parcels(transport, state_dir, ground.python), layout.to_json().encode()
    program = await parcels.push_program()
    where = await parcels.push(f"layout-{hashlib.sha256(text).hexdigest()[:16]}.json", text)
    reader, said = ResidencyReader(), ""
    lines = transport.lines(_SCRIPT, (ground.python, program, where, str(pid), f"{every:g}", *paths), limit=LINE)
    async with aclosing(lines):
        async for line in lines:
            sample = reader.feed(line)
            if sample is not None:
                yield sample
            elif not line.startswith("{"):
                said = line
    raise OperationFailed(f"The probe of {transport.name} has ended: {visible(said)[-200:] or 'it said nothing'}.",
                          "See that the model's files can be read there.", code="probe")
