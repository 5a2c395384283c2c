"""Routing traces of every kind that is known, from the bytes of a file that is not believed.

    the shim's               `trace.py`
    TinyTitan's routes       lines `position layer expert expert ...` of decoding (TINYTITAN_ROUTE_TRACE)
    TinyTitan's prefetches   a JSON object a line with "position", "layer" and "experts" (TINYTITAN_PREFETCH_TRACE)
"""

from __future__ import annotations

import io
import json
import os
import stat
from collections.abc import Iterator

from fleet.errors import ModelFileError
from fleet.experts.trace import (
    MAGIC,
    MOST_BYTES,
    MOST_EXPERTS,
    MOST_LAYERS,
    MOST_PASSES,
    Routed,
    Trace,
    read_trace,
    too_large,
)
from fleet.models.experts import Experts

MOST_USED = 1024               # experts a token and layer; real models have up to 32
_LONGEST = 65_536              # bytes of a line


def trace_of_file(path: str) -> Trace:
    """The trace in a file of this machine.

    Raises:
        ModelFileError: it is not there, cannot be read, or is none.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)    # a FIFO must not hold us
    except FileNotFoundError:
        raise ModelFileError(f"There is no file {path}.", "Check the path.", code="no-file") from None
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.",
                             "Check the path and that you may read it.", code="unreadable") from None
    try:
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode):
            raise ModelFileError(f"{path} is not a regular file.", "Name a trace.", code="no-file")
        if about.st_size > MOST_BYTES:
            raise too_large()
        with os.fdopen(file, "rb", closefd=False) as opened:
            data = opened.read(MOST_BYTES + 1)
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror}.", "Check its disk.",
                             code="unreadable") from None
    finally:
        os.close(file)
    return read_any(data)


def read_any(data: bytes) -> Trace:
    """A trace of whichever kind.

    Raises:
        ModelFileError: it is none, is too large, or makes no sense.
    """
    if data[:8] == MAGIC:
        return read_trace(data)
    if len(data) > MOST_BYTES:
        raise too_large()
    start = data[:256].lstrip()[:1]
    if start not in (b"{", b"[") and not start.isdigit():
        raise ModelFileError("This is no routing trace: neither the expert shim's nor TinyTitan's.",
                             "`quarterdeck experts trace` records one.")
    passes, experts, layers = [], 0, 0
    for number, layer, chosen in _told(data, start == b"{"):
        if len(passes) >= MOST_PASSES:
            raise too_large()
        if not (0 <= layer < MOST_LAYERS and 0 < len(chosen) <= MOST_USED
                and all(0 <= expert < MOST_EXPERTS for expert in chosen)):
            raise _nonsense(number)
        passes.append(Routed(layer, (chosen,)))
        experts, layers = max(experts, *chosen), max(layers, layer)
    return Trace(layers + 1, experts + 1, 1, tuple(passes))


def check_model(trace: Trace, experts: Experts) -> None:
    """Refuse a trace of another model than this.

    Raises:
        ModelFileError: it is.
    """
    layers = {layer.layer: layer.count for layer in experts.layers}
    used = max((len(routed.rows[0]) for routed in trace.passes), default=0)
    if experts.used and used != experts.used:
        raise ModelFileError(f"The trace is of another model: it sends a token through {used} experts of a layer, this "
                             f"one through {experts.used}.", "Give the model that it was recorded of.")
    most: dict[int, int] = {}
    for routed in trace.passes:
        most[routed.layer] = max(most.get(routed.layer, 0), *(max(row) for row in routed.rows))
    for layer, expert in most.items():
        if expert >= layers.get(layer, 0):
            raise ModelFileError(f"The trace is of another model: it asks layer {layer} for expert {expert}, and this "
                                 f"one has {layers.get(layer, 0)} there.", "Give the model that it was recorded of.")


def _told(data: bytes, as_json: bool) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """Line, layer and experts of every whole line; one that was being written when it was read is left out."""
    for number, line in enumerate(io.BytesIO(data), 1):
        if not line.endswith(b"\n") and number > 1:
            break
        if len(line) > _LONGEST:
            raise _nonsense(number)
        if not line.strip():
            continue
        try:
            if as_json:
                told = json.loads(line)
                layer, chosen = told["layer"], tuple(told["experts"])
                if type(layer) is not int or any(type(expert) is not int for expert in chosen):
                    raise _nonsense(number)
            else:
                _, layer, *rest = map(int, line.split())
                chosen = tuple(rest)
        except (ValueError, TypeError, KeyError, RecursionError):
            raise _nonsense(number) from None
        yield number, layer, chosen


def _nonsense(number: int) -> ModelFileError:
    return ModelFileError(f"The trace makes no sense in line {number}.", "Record one anew.")
