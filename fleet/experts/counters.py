"""What the shim counts, read from its mapped file: `struct head` and `struct cell` of moe_shim.c, version 1.

The file belongs to whoever runs the server, so all of it is checked; what cannot be is told, never guessed.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from fleet.errors import ModelFileError
from fleet.experts.shim import STATS
from fleet.nodes.transport import Transport

MAGIC = b"QDMOESTA"
_HEAD = struct.Struct("=8s10I19Q24x")
_CELL = struct.Struct("=4I")
_PIECE = 256 * 1024
MOST_CELLS = 512 * 65_536
PREFETCHES, LAZY, BLIND, AMBIGUOUS, TRACE_FULL = 1, 2, 4, 8, 16


@dataclass(frozen=True, slots=True)
class Tally:
    """Experts that were asked for, a layer and pass each counting an expert once."""

    tokens: int
    requests: int
    hits: int                    # wholly in memory when they were asked for
    bytes: int                   # of their pages
    missing: int                 # of those, the bytes that were not in memory

    @property
    def hit_rate(self) -> float | None:
        """By experts; None before the first."""
        return self.hits / self.requests if self.requests else None

    @property
    def byte_hit_rate(self) -> float | None:
        """By bytes: a part of an expert that is there counts."""
        return 1 - self.missing / self.bytes if self.bytes else None

    @property
    def missing_per_token(self) -> float | None:
        """Bytes that had to be read for each token."""
        return self.missing / self.tokens if self.tokens else None

    def since(self, before: Tally) -> Tally:
        """What was added since an earlier reading of the same server."""
        return Tally(self.tokens - before.tokens, self.requests - before.requests, self.hits - before.hits,
                     self.bytes - before.bytes, self.missing - before.missing)


@dataclass(frozen=True, slots=True)
class Counters:
    """One reading. With `blind` nothing is known of hits: they are 0, and no rate may be made of them."""

    pid: int
    layers: int                  # rows of the cells
    experts: int                 # columns
    moe_layers: int              # rows that have experts
    used: int                    # experts a token is sent through in each
    token_bytes: int             # of the experts of one token
    passes: int                  # a layer of one pass each
    started: float               # seconds since 1970
    updated: float
    decode: Tally
    prompt: Tally
    prefetched: int              # bytes that were asked for ahead
    spent: float                 # seconds in the shim
    trace_bytes: int
    unread: int                  # passes that were not understood
    assumed: int                 # passes of a layer that were taken for hits, nothing having been missing for long
    prefetches: bool
    blind: bool                  # the file is another user's: the kernel does not tell what is in memory
    ambiguous: bool              # two models with experts in one process: counting has stopped
    trace_full: bool
    cells: bytes                 # 16 each, layer by layer

    def cell(self, layer: int, expert: int) -> tuple[int, int, int, int]:
        """Requests and hits of decoding, requests and hits of prompts.

        Raises:
            IndexError: there is no such expert.
        """
        if not (0 <= layer < self.layers and 0 <= expert < self.experts):
            raise IndexError(f"there is no expert {expert} in layer {layer}")
        return _CELL.unpack_from(self.cells, (layer * self.experts + expert) * _CELL.size)

    @property
    def exact(self) -> bool:
        """Whether hits are true."""
        return not self.blind and not self.ambiguous


async def counters_of(transport: Transport, state_folder: str, service: str, *, cells: bool = True) -> Counters:
    """What the shim of a running head counts, read on its node.

    Args:
        state_folder: of the node, as its reading tells it.
        service: id of the head.
        cells: with those of each expert, 16 bytes each; else sums alone.

    Raises:
        ModelFileError: there are no counters (no shim, or nothing was asked yet), or they make no sense.
        FleetError: the node does not answer, or the file cannot be read.
    """
    path, data = f"{state_folder}/services/{service}/{STATS}", b""
    while piece := await transport.read_file(path, len(data), _PIECE if cells else _HEAD.size):
        data += piece
        if not cells:
            break
        if len(piece) < _PIECE or len(data) > _HEAD.size + _CELL.size * MOST_CELLS:
            break
    return read_counters(data, cells=cells)


def read_counters(data: bytes, *, cells: bool = True) -> Counters:
    """The counters from the bytes of the file; without `cells` from its head alone.

    Raises:
        ModelFileError: it is none, of another version, or cut off.
    """
    if len(data) < _HEAD.size or data[:8] != MAGIC:
        raise ModelFileError("This is no file of the expert shim's counters.", "Start the model again.")
    (_, version, head_bytes, cell_bytes, layers, experts, used, flags, pid, _page, moe_layers, token_bytes, started,
     updated, passes, tokens, requests, hits, needed, missing, prompt_tokens, prompt_requests, prompt_hits,
     prompt_needed, prompt_missing, prefetched, spent, trace_bytes, unread,
     assumed) = _HEAD.unpack_from(data)
    if version != 1 or cell_bytes != _CELL.size:
        raise ModelFileError(f"The expert shim's counters are of version {version}, which is not known here.",
                             "Start the model again with this Quarterdeck.")
    size = layers * experts * cell_bytes
    if not 0 < layers * experts <= MOST_CELLS or head_bytes < _HEAD.size or (cells and len(data) < head_bytes + size):
        raise ModelFileError("The expert shim's counters are cut off.", "Read them again.")
    return Counters(
        pid, layers, experts, moe_layers, used, token_bytes, passes, started / 1e9, updated / 1e9,
        Tally(tokens, requests, hits, needed, missing),
        Tally(prompt_tokens, prompt_requests, prompt_hits, prompt_needed, prompt_missing), prefetched, spent / 1e9,
        trace_bytes, unread, assumed, bool(flags & PREFETCHES), bool(flags & BLIND), bool(flags & AMBIGUOUS),
        bool(flags & TRACE_FULL), bytes(data[head_bytes:head_bytes + size]) if cells else b"")
