"""A routing trace of a head that runs: asked for, waited for, fetched.

The shim traces while a file lies beside its counters, and begins anew each time. Nothing else of the head changes; a
token of 48 layers and 8 experts takes 1.1 KB.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fleet.errors import FleetError, ModelFileError, OperationFailed
from fleet.experts.counters import counters_of
from fleet.experts.shim import ASKED, TRACE
from fleet.experts.trace import MOST_BYTES, too_large
from fleet.nodes.transport import Transport

EVERY = 0.5                    # seconds between two looks at the counters
PATIENCE = 30                  # tokens that may be decoded before the first of them has to be in the trace
_PIECE = 1 << 20
_TIMEOUT = 15.0
_ASK = 'umask 077; [ -d "$1" ] && : >"$1/$2" && printf "asked\\n"'
_CEASE = 'rm -f "$1/$2"'
_FORGET = 'rm -f "$1/$2" "$1/$3"'
Progress = Callable[[int, int], None]


async def record(transport: Transport, state_folder: str, service: str, tokens: int, *, every: float = EVERY,
                 progress: Progress = lambda done, wanted: None) -> bytes:
    """The trace of so many decoded tokens, as the shim's file has it; whoever asks the head meanwhile decides of what.

    Args:
        state_folder: of the node, as its reading tells it.
        service: id of the head.
        progress: told of tokens until now, and how many are wanted.

    Raises:
        ModelFileError: the head has no counters, or its trace is too large.
        OperationFailed: it traces nothing.
        FleetError: the node does not answer.
    """
    folder = f"{state_folder}/services/{service}"
    before = await counters_of(transport, state_folder, service, cells=False)
    async with asked(transport, folder):
        done = 0
        while done < tokens:
            await asyncio.sleep(every)
            now = await counters_of(transport, state_folder, service, cells=False)
            if (now.pid, now.started) != (before.pid, before.started):
                raise OperationFailed(f"{service} on {transport.name} was started anew.", "Record again.", code="trace")
            done = now.decode.tokens - before.decode.tokens
            if now.trace_full:
                break
            if done > PATIENCE and not now.trace_bytes:
                raise OperationFailed(f"{service} on {transport.name} writes no trace: it was started by an older "
                                      "Quarterdeck.", "Start the model again.", code="trace")
            progress(min(done, tokens), tokens)
    return await _fetch(transport, f"{folder}/{TRACE}")


@asynccontextmanager
async def asked(transport: Transport, folder: str) -> AsyncIterator[None]:
    """The shim traces while this is open; what was traced before is gone."""
    done = await transport.run(_FORGET + "; " + _ASK.replace("$2", "$3"), (folder, TRACE, ASKED), timeout=_TIMEOUT)
    if "asked" not in done.text.split():
        raise OperationFailed(f"A trace cannot be asked for in {folder} on {transport.name}.",
                              "See that its disk is not full.", code="trace")
    try:
        yield
    finally:
        await asyncio.shield(_cease(transport, folder))


async def _cease(transport: Transport, folder: str) -> None:
    try:
        await transport.run(_CEASE, (folder, ASKED), timeout=_TIMEOUT)
    except FleetError:
        return                           # the node is gone: it goes on to its limit, or to the head's end


async def _fetch(transport: Transport, path: str) -> bytes:
    data = bytearray()
    while piece := await transport.read_file(path, len(data), _PIECE):
        data += piece
        if len(data) > MOST_BYTES:
            raise too_large()
    if not data:
        raise ModelFileError("Nothing was traced.", "Ask the model for something meanwhile.")
    return bytes(data)
