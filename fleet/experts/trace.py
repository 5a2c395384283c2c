"""What the shim wrote of every routing decision: which experts each layer of each pass sent its rows through."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from fleet.errors import ModelFileError

MAGIC = b"QDMOETRC"
MOST_BYTES = 256 << 20         # of a file: the shim writes no more (QUARTERDECK_MOE_TRACE_LIMIT)
MOST_PASSES = 4_000_000        # of a layer each: a record of each takes 200 bytes here
MOST_LAYERS = 512
MOST_EXPERTS = 65_536
_HEAD = struct.Struct("=8s4IQ")
_PASS = struct.Struct("=HHI")


@dataclass(frozen=True, slots=True)
class Routed:
    """One layer of one pass."""

    layer: int
    rows: tuple[tuple[int, ...], ...]     # the experts of each token


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace. What was being written when it was read is left out."""

    layers: int
    experts: int
    decode_rows: int                      # up to so many rows of a pass are decoding
    passes: tuple[Routed, ...]

    def decoding(self) -> Iterator[Routed]:
        """The passes of decoding alone: what a pass is, its first layer tells."""
        first = min((routed.layer for routed in self.passes), default=0)
        decoding = False
        for routed in self.passes:
            if routed.layer == first:
                decoding = len(routed.rows) <= self.decode_rows
            if decoding:
                yield routed


def read_trace(data: bytes) -> Trace:
    """A trace from the bytes of its file.

    Raises:
        ModelFileError: it is none, is too large, or makes no sense.
    """
    if len(data) > MOST_BYTES:
        raise too_large()
    if len(data) < _HEAD.size or data[:8] != MAGIC:
        raise ModelFileError("This is no trace of the expert shim.", "Record one anew.")
    _, version, layers, experts, decode_rows, _started = _HEAD.unpack_from(data)
    if version != 1:
        raise ModelFileError(f"The trace is of version {version}, which is not known here.", "Record one anew.")
    if not (0 < layers <= MOST_LAYERS and 0 < experts <= MOST_EXPERTS and decode_rows):
        raise ModelFileError(f"The trace claims {layers} layers of {experts} experts, which no model has.",
                             "Record one anew.")
    passes, at = [], _HEAD.size
    while at + _PASS.size <= len(data):
        layer, used, rows = _PASS.unpack_from(data, at)
        count = used * rows
        if not 0 < used <= experts or layer >= layers or not rows:
            raise ModelFileError(f"The trace makes no sense at byte {at}.", "Record one anew.")
        if at + _PASS.size + 2 * count > len(data):
            break
        ids = struct.unpack_from(f"={count}H", data, at + _PASS.size)
        if max(ids) >= experts or len(passes) >= MOST_PASSES:
            raise too_large() if len(passes) >= MOST_PASSES else ModelFileError(
                f"The trace names expert {max(ids)} of {experts} at byte {at}.", "Record one anew.")
        at += _PASS.size + 2 * count
        passes.append(Routed(layer, tuple(ids[row * used:(row + 1) * used] for row in range(rows))))
    return Trace(layers, experts, decode_rows, tuple(passes))


def too_large() -> ModelFileError:
    """What is said of a trace that is more than can be kept here."""
    return ModelFileError(f"The trace is too large: {MOST_PASSES} passes of a layer, or {MOST_BYTES >> 20} MiB, are "
                          "read at the most.", "Record fewer tokens: a few thousand say all there is to know.")
