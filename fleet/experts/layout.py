"""Where a model's experts lie, as compact JSON for what runs on a node: from the header alone.

    {"version": 1, "files": 2, "experts": 128, "used": 8,
     "layers": [[3, [[0, 81920, 278528], ...]], ...],        layer; of each matrix file, offset, bytes of an expert
     "apart": [[3, [[0, [offset, ...], 278528], ...]], ...], the same where each expert has a tensor of its own
     "shared": [[0, 4096, 77824], ...]}                      file, offset, bytes of what every token needs

Fused matrices come expert after expert without a gap, so one offset tells all. 48 layers of 128 experts take 5 KB.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from fleet.models.experts import ByteRange, Experts, experts_of
from fleet.models.header import GgufHeader

VERSION = 1
TOGETHER = 64 * 1024           # bytes between two tensors that are taken for one range


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a mixture lies in its files."""

    experts: Experts
    files: int
    shared: tuple[ByteRange, ...]        # what every token needs, tensors that lie side by side as one
    shared_bytes: int
    embedding_bytes: int                 # of which a token needs one row; 0 where it is the output matrix too

    def to_json(self) -> str:
        """The text for the node."""
        fused, apart = [], []
        for layer in self.experts.layers:
            if whole := [[t.first.file, t.first.offset, t.first.length] for t in layer.tensors if not t.apart]:
                fused.append([layer.layer, whole])
            if single := [[t.first.file, [piece.offset for piece in t.apart], t.first.length]
                          for t in layer.tensors if t.apart]:
                apart.append([layer.layer, single])
        found = {"version": VERSION, "files": self.files, "experts": self.experts.count, "used": self.experts.used,
                 "layers": fused, "shared": [[piece.file, piece.offset, piece.length] for piece in self.shared]}
        if apart:
            found["apart"] = apart
        return json.dumps(found, separators=(",", ":"))


def layout_of(header: GgufHeader) -> Layout | None:
    """The layout of a model, None for a dense one. With several shards, give the combined header."""
    experts = experts_of(header)
    if experts is None:
        return None
    routed = {tensor.name for layer in experts.layers for tensor in layer.tensors}
    single = {(piece.file, piece.offset) for layer in experts.layers for tensor in layer.tensors
              for piece in tensor.apart}
    embedding = 0
    pieces = []
    for tensor in header.tensors:
        if tensor.name == "token_embd.weight" and not header.tied_output:
            embedding = tensor.bytes
        elif tensor.name not in routed and (tensor.file, tensor.offset) not in single:
            pieces.append(ByteRange(tensor.file, tensor.offset, tensor.bytes))
    files = max((tensor.file for tensor in header.tensors), default=0) + 1
    return Layout(experts, files, _joined(pieces), sum(piece.length for piece in pieces), embedding)


def _joined(pieces: list[ByteRange]) -> tuple[ByteRange, ...]:
    joined: list[ByteRange] = []
    for piece in sorted(pieces, key=lambda piece: (piece.file, piece.offset)):
        last = joined[-1] if joined else None
        if last and last.file == piece.file and piece.offset - (last.offset + last.length) <= TOGETHER:
            joined[-1] = ByteRange(last.file, last.offset, max(last.length, piece.offset + piece.length - last.offset))
        else:
            joined.append(piece)
    return tuple(joined)
