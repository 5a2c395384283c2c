"""Which tensors of a model a head sends to its workers, and which of those a worker keeps on its disk.

Seen with b10068 (one and two workers, mmap and not, tied and untied): each tensor of a block and of the output layer
goes to its device whole, as it stands in the file; the input embedding stays with the head unless it is the output
matrix too. With `-c` the worker keeps those above 10 MiB.
"""

from __future__ import annotations

from collections.abc import Collection

from fleet.models.header import GgufHeader, TensorInfo

KEPT_ABOVE = 10 << 20          # bytes: HASH_THRESHOLD of ggml-rpc


def kept_tensors(header: GgufHeader, layers: Collection[int] | None = None, *, output: bool = True,
                 ) -> tuple[TensorInfo, ...]:
    """The tensors that workers with these layers would keep, in the order of the files.

    Args:
        layers: numbers of blocks, from 0; None = all of them.
        output: whether the output layer is among them.
    """
    found = [tensor for tensor in header.tensors
             if tensor.bytes > KEPT_ABOVE and not tensor.type.startswith("type ")    # of unknown types the end is not
             and _is_sent(header, tensor, layers, output)]
    return tuple(sorted(found, key=lambda tensor: (tensor.file, tensor.offset)))


def _is_sent(header: GgufHeader, tensor: TensorInfo, layers: Collection[int] | None, output: bool) -> bool:
    if tensor.layer is not None:
        return layers is None or tensor.layer in layers
    return output and (tensor.is_output or (tensor.name == "token_embd.weight" and header.tied_output))
