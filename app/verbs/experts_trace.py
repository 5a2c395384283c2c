"""`quarterdeck experts trace`: which experts a running head chooses, into a file."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import suppress

from app.as_json import SCHEMA, to_text
from app.exit_codes import BadUsage, ExitCode, NothingThere
from app.face import EngineFace
from app.output import TransientLine, note, put
from app.present.units import count, size
from app.verbs.experts import StreamedHead, on_head
from fleet.errors import FleetError, OperationFailed
from fleet.experts.layout import layout_of
from fleet.experts.offline import PROMPT, trace_offline
from fleet.experts.recording import record
from fleet.experts.trace import Trace, read_trace
from fleet.models.local import header_of_file


def run(options: argparse.Namespace) -> int:
    """Record it. Ctrl+c ends it, and nothing is written then."""
    path = os.path.expanduser(options.output)
    if os.path.lexists(path):
        raise FleetError(f"{path} is there already.", "Name another file: a trace is never overwritten.", code="there")

    if options.offline:
        return _offline(options, path)

    async def work(engine: EngineFace, head: StreamedHead) -> int:
        if not head.counts:
            raise OperationFailed(f"The head on {head.node.name} runs without the expert shim: nothing sees what it "
                                  "chooses.", "The plan of `quarterdeck up` says why it has none.", code="no-shim")
        note(f"recording {count(options.tokens, 'token')} of {head.record.id} on {head.node.name}; ask it for "
             "something")
        line = TransientLine(sys.stderr)
        try:
            data = await record(head.transport, head.state_folder, head.record.id, options.tokens,
                                progress=lambda done, wanted: line.show(f"{done} of {wanted} tokens"))
        finally:
            line.clear()
        return _keep(options, path, data, head.node.name, head.record.id)

    return on_head(options, work)


def _offline(options: argparse.Namespace, path: str) -> int:
    if options.node:
        raise BadUsage(f"{options.node} and --offline do not go together.", "Leave one of them out.")
    model = os.path.abspath(os.path.expanduser(options.offline))
    layout = layout_of(header_of_file(model))
    if layout is None:
        raise NothingThere(f"{model} is no mixture of experts.", "`quarterdeck inspect` shows what it is.")
    note(f"running {model} for {count(options.tokens, 'token')}")
    return _keep(options, path, trace_offline(model, layout, options.tokens, options.prompt or PROMPT))


def _keep(options: argparse.Namespace, path: str, data: bytes, node: str = "", service: str = "") -> int:
    trace = read_trace(data)
    written = "".join(as_lines(trace)).encode() if options.lines else data
    _write(path, written)
    decoded = sum(1 for _ in _positions(trace))
    if options.json:
        put(to_text({"schema": SCHEMA, "node": node or None, "service": service or None, "file": path,
                     "passes": len(trace.passes), "tokens": decoded, "layers": trace.layers,
                     "experts": trace.experts}))
    else:
        put(f"{path}: {count(decoded, 'decoded token')}, {size(len(written))}. "
            f"`quarterdeck experts simulate {path}` says what budgets would hit.")
    return ExitCode.OK


def as_lines(trace: Trace) -> Iterator[str]:
    """`position layer expert expert ...`, a line for each decoded token and layer."""
    position, first = -1, min((routed.layer for routed in trace.passes), default=0)
    for routed in trace.decoding():
        position += routed.layer == first
        for row in routed.rows:
            yield f"{position} {routed.layer} {' '.join(map(str, row))}\n"


def _positions(trace: Trace) -> Iterator[int]:
    first = min((routed.layer for routed in trace.passes), default=0)
    for routed in trace.decoding():
        if routed.layer == first:
            yield from range(len(routed.rows))


def _write(path: str, data: bytes) -> None:
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise FleetError(f"{path} cannot be written: {error.strerror}.", "Name another file.", code="output") from None
    try:
        with os.fdopen(file, "wb") as out:
            out.write(data)
    except OSError as error:
        with suppress(OSError):
            os.unlink(path)
        raise FleetError(f"{path} cannot be written: {error.strerror}.", "Make room, or name another file.",
                         code="output") from None
