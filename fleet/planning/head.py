"""Which node is the head, of those that have the model and may be one. Pure.

Two placements, by rule. Most VRAM: layers on the head's own GPUs cross no wire, so it is the node with the most GPU
memory; of equals this machine, then the one with the most main memory. Most RAM: llama.cpp maps the file into the
head's memory and sends the workers their part from there; a file that is larger than the main memory of that node is
read from its disk again and again, so a node whose memory holds it is taken instead.
"""

from __future__ import annotations

from collections.abc import Sequence

from fleet.model import DeviceKind, ModelFile, Node

GIB = 1024 ** 3


def choose_head(nodes: Sequence[Node], file_bytes: int) -> tuple[Node, str]:
    """The head, and why in a sentence ("" when there was no choice).

    Args:
        nodes: that can be the head; at least one.
        file_bytes: of the model, all its files; 0 = not known.
    """
    by_vram = max(nodes, key=_vram_rank)
    if len(nodes) == 1:
        return by_vram, ""
    ram = main_memory(by_vram)
    roomy = max(nodes, key=lambda node: (main_memory(node) or 0, node.name))
    if ram is not None and file_bytes > ram and (main_memory(roomy) or 0) > ram:
        return roomy, (f"{roomy.name} is the head since it has the most main memory, {_gib(main_memory(roomy))}: the "
                       f"model's file of {_gib(file_bytes)} is mapped there, and {by_vram.name} has {_gib(ram)}.")
    if gpu_memory(by_vram):
        return by_vram, (f"{by_vram.name} is the head since it has the most GPU memory, {_gib(gpu_memory(by_vram))}: "
                         "its own layers cross no wire.")
    return by_vram, f"{by_vram.name} is the head: no node that has the model has a GPU."


def gpu_memory(node: Node) -> int:
    """Bytes of a node's GPUs that are used for a split by themselves."""
    devices = node.reading.devices if node.reading else ()
    return sum(d.memory_total or 0 for d in devices if d.kind is not DeviceKind.CPU and not d.integrated)


def main_memory(node: Node) -> int | None:
    """Bytes of a node's main memory, None where it is not known."""
    return node.reading.memory.total if node.reading else None


def size_of(files: Sequence[ModelFile], path: str) -> int:
    """Bytes of a model by the path of its first file, its other parts included; 0 when it is not among `files`."""
    stem, dash, ending = path.removesuffix(".gguf").rpartition("-00001-of-")
    if not dash:
        return next((file.size for file in files if file.path == path), 0)
    return sum(file.size for file in files
               if file.path.startswith(f"{stem}-") and file.path.endswith(f"-of-{ending}.gguf"))


def _vram_rank(node: Node) -> tuple[int, bool, int, str]:
    return gpu_memory(node), node.local, main_memory(node) or 0, node.name


def _gib(size: int | None) -> str:
    return f"{(size or 0) / GIB:.0f} GiB"
