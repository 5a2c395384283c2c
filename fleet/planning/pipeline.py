"""A vLLM pipeline over machines: one stage a node, tensor parallel inside it. Pure.

vLLM counts ranks machine by machine: with `tensor` GPUs on each of `stages` nodes, node n has ranks n x tensor to
n x tensor + tensor - 1, and each node is one stage of the pipeline. The sizes are the same everywhere: vLLM divides
the world evenly by its nodes (vllm/engine/arg_utils.py, 0.33.0).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fleet.errors import PlanRefused
from fleet.model import Device, DeviceKind, Node

ALIKE = 0.05               # GPUs whose memory differs by less than this part are of equal size
_ABLE = (DeviceKind.CUDA, DeviceKind.ROCM)


@dataclass(frozen=True, slots=True)
class Stage:
    """One node of the pipeline."""

    node: str
    rank: int                      # of the node: --node-rank
    devices: tuple[str, ...]       # GPUs that it uses; () = the user says how many, and nothing was read
    kind: DeviceKind | None        # of its GPUs


@dataclass(frozen=True, slots=True)
class Pipeline:
    """How a model is spread: `tensor` x `stages` processes."""

    stages: tuple[Stage, ...]
    tensor: int                    # GPUs that share every layer, inside a node: --tensor-parallel-size
    layers: tuple[int, ...] = ()   # of each stage: VLLM_PP_LAYER_PARTITION; () = even, which vLLM does itself
    remarks: tuple[str, ...] = ()  # sentences: what is left unused, and the like

    @property
    def partition(self) -> str:
        """VLLM_PP_LAYER_PARTITION, "" when vLLM divides by itself."""
        return ",".join(map(str, self.layers))


def plan_pipeline(nodes: Sequence[Node], *, tensor: int | None = None, layers: Sequence[int] = (),
                  n_layers: int | None = None, n_heads: int | None = None) -> Pipeline:
    """Ranks and sizes for these nodes, the first of them the head.

    Args:
        nodes: as they follow in the pipeline.
        tensor: GPUs a node, as the user says; None = as many as every node has.
        layers: layers a stage, as the user says; () = by memory where nodes differ and `n_layers` is known.
        n_layers: of the model, where it is known.
        n_heads: attention heads of the model, where they are known: every GPU of a node gets as many.

    Raises:
        PlanRefused: a node has no GPU that vLLM uses, GPUs of one node differ, vendors differ, heads or layers cannot
            be divided so, or figures contradict.
    """
    usable = [_usable(node, tensor) for node in nodes]
    _one_vendor(nodes, usable)
    count = tensor or min(len(devices) for devices in usable)
    if n_heads is not None and n_heads % count:
        raise PlanRefused(f"The model's {n_heads} attention heads cannot be divided over {count} GPUs of a node.",
                          "Say a `tensor_parallel:` that divides them.", code="tensor-parallel")
    if n_layers is not None and n_layers < len(nodes):
        raise PlanRefused(f"The model's {n_layers} layers are fewer than the {len(nodes)} nodes.",
                          "Name fewer nodes.", code="layers")
    remarks = [f"{len(devices) - count} of the {len(devices)} GPUs of {node.name} are left unused: vLLM takes as many "
               "on every node." for node, devices in zip(nodes, usable, strict=True) if len(devices) > count]
    stages = tuple(Stage(node.name, rank, tuple(device.name for device in devices[:count]),
                         devices[0].kind if devices else None)
                   for rank, (node, devices) in enumerate(zip(nodes, usable, strict=True)))
    if layers:
        _check_layers(layers, len(nodes), n_layers)
        return Pipeline(stages, count, tuple(layers), tuple(remarks))
    dealt = _by_memory([devices[:count] for devices in usable], n_layers)
    if dealt:
        remarks.append(f"The nodes have unequal memory: their stages get {', '.join(map(str, dealt))} layers.")
    elif n_layers is None and len(nodes) > 1 and _uneven([devices[:count] for devices in usable]):
        remarks.append("The nodes have unequal memory, and the model's layers are not known: every stage gets as many. "
                       "Say `layers:` of the model's `vllm:` to deal them by hand.")
    return Pipeline(stages, count, dealt, tuple(remarks))


def _usable(node: Node, tensor: int | None) -> list[Device]:
    """The node's GPUs that one process group can use."""
    devices = [device for device in (node.reading.devices if node.reading else ())
               if device.kind in _ABLE and not device.integrated]
    if not devices:
        if tensor is not None:
            return []               # the user says what is there: a driver that we cannot read, or vLLM for CPUs
        others = sorted({device.kind.value for device in (node.reading.devices if node.reading else ())
                         if device.kind is not DeviceKind.CPU})
        has = f"it has {', '.join(others)}" if others else "it has none"
        raise PlanRefused(f"vLLM needs an NVIDIA or AMD GPU on {node.name}, and {has}.",
                          "Leave it out, use llama.cpp there, or say `tensor_parallel:` when vLLM was built for what "
                          "it has.", code="no-gpu")
    kinds = list(dict.fromkeys(device.kind for device in devices))
    if len(kinds) > 1:
        raise PlanRefused(f"{node.name} has GPUs of several vendors ({', '.join(kinds)}): vLLM is built for one.",
                          "Leave that node out, or use llama.cpp for this model.", code="one-vendor")
    if tensor is not None and len(devices) < tensor:
        raise PlanRefused(f"tensor_parallel is {tensor}, and {node.name} has {len(devices)} "
                          f"GPU{'s' if len(devices) != 1 else ''}.", "Say what the smallest node has.",
                          code="tensor-parallel")
    used = devices[:tensor] if tensor else devices
    sizes = [device.memory_total for device in used if device.memory_total]
    if sizes and min(sizes) < max(sizes) * (1 - ALIKE):
        raise PlanRefused(f"The GPUs of {node.name} are of unequal size: tensor parallelism cuts every layer into "
                          "equal parts, so the smallest would decide.",
                          "Say `tensor_parallel: 1` to use its first GPU alone, or use llama.cpp for this model.",
                          code="unequal-gpus")
    return devices


def _one_vendor(nodes: Sequence[Node], usable: Sequence[Sequence[Device]]) -> None:
    kinds = {devices[0].kind: node.name for node, devices in zip(nodes, usable, strict=True) if devices}
    if len(kinds) > 1:
        told = " and ".join(f"{kind} ({name})" for kind, name in kinds.items())
        raise PlanRefused(f"The nodes have GPUs of different vendors, {told}: NCCL and RCCL do not talk to each other.",
                          "Take nodes of one vendor, or llama.cpp as the runtime.", code="one-vendor")


def _check_layers(layers: Sequence[int], stages: int, n_layers: int | None) -> None:
    if len(layers) != stages:
        raise PlanRefused(f"`layers:` deals to {len(layers)} stages, and there are {stages} nodes.",
                          "Give one number for each node, the head first.", code="layers")
    if n_layers is not None and sum(layers) != n_layers:
        raise PlanRefused(f"`layers:` deals {sum(layers)} layers, and the model has {n_layers}.",
                          "Make them add up.", code="layers")


def _memory(devices: Sequence[Device]) -> int:
    return sum(device.memory_total or 0 for device in devices)


def _uneven(used: Sequence[Sequence[Device]]) -> bool:
    sizes = [_memory(devices) for devices in used]
    return all(sizes) and min(sizes) < max(sizes) * (1 - ALIKE)


def _by_memory(used: Sequence[Sequence[Device]], n_layers: int | None) -> tuple[int, ...]:
    """Layers in proportion to memory, at least one each, by largest remainder; () where vLLM's even way is right."""
    if n_layers is None or len(used) < 2 or n_layers < len(used) or not _uneven(used):
        return ()
    sizes = [_memory(devices) for devices in used]
    spare = n_layers - len(used)
    exact = [spare * size / sum(sizes) for size in sizes]
    dealt = [1 + int(part) for part in exact]
    order = sorted(range(len(used)), key=lambda stage: (int(exact[stage]) - exact[stage], stage))
    for stage in order[:n_layers - sum(dealt)]:
        dealt[stage] += 1
    return tuple(dealt)
