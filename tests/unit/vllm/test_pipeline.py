"""Ranks, sizes and layers of a pipeline over machines, and why some cannot be one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import PlanRefused
from fleet.model import Device, DeviceKind, Node, NodeReading
from fleet.models.hf_config import HfShape, read_hf_config
from fleet.planning.pipeline import plan_pipeline

GIB = 1 << 30


def gpus(*sizes: int, kind: DeviceKind = DeviceKind.CUDA) -> tuple[Device, ...]:
    return tuple(Device(f"CUDA{number}", kind, memory_total=size * GIB) for number, size in enumerate(sizes))


def node(name: str, *devices: Device) -> Node:
    return Node(name, reading=NodeReading(devices=(*devices, Device("CPU", DeviceKind.CPU))))


def test_each_node_is_a_stage_and_its_equal_gpus_share_every_layer() -> None:
    found = plan_pipeline([node("atlas", *gpus(24, 24)), node("bolt", *gpus(24, 24))])
    assert [(stage.node, stage.rank, stage.devices) for stage in found.stages] == [
        ("atlas", 0, ("CUDA0", "CUDA1")), ("bolt", 1, ("CUDA0", "CUDA1"))]
    assert (found.tensor, found.layers, found.partition, found.remarks) == (2, (), "", ())


def test_gpus_that_other_nodes_do_not_have_are_left_unused_and_told() -> None:
    found = plan_pipeline([node("atlas", *gpus(24, 24)), node("bolt", *gpus(24))])
    assert found.tensor == 1 and found.stages[0].devices == ("CUDA0",)
    assert "1 of the 2 GPUs of atlas are left unused" in found.remarks[0]


def test_nodes_of_unequal_memory_get_layers_in_proportion() -> None:
    nodes = [node("atlas", *gpus(24)), node("bolt", *gpus(8))]
    found = plan_pipeline(nodes, n_layers=32)
    assert sum(found.layers) == 32 and found.layers[0] > 2 * found.layers[1]
    assert found.partition == ",".join(map(str, found.layers))
    assert plan_pipeline(nodes, layers=(20, 12), n_layers=32).partition == "20,12"
    assert "layers are not known" in plan_pipeline(nodes).remarks[0]


@given(st.lists(st.integers(1, 200), min_size=2, max_size=8), st.integers(8, 200))
def test_every_stage_has_a_layer_and_none_is_lost(sizes: list[int], n_layers: int) -> None:
    nodes = [node(f"n{number}", *gpus(size)) for number, size in enumerate(sizes)]
    found = plan_pipeline(nodes, n_layers=n_layers)
    if found.layers:
        assert sum(found.layers) == n_layers and min(found.layers) >= 1
        for size, layers in zip(sizes, found.layers, strict=True):
            for other, fewer in zip(sizes, found.layers, strict=True):
                assert size <= other or layers >= fewer     # more memory never means fewer layers


@pytest.mark.parametrize(("nodes", "options", "code"), [
    ([node("atlas")], {}, "no-gpu"),
    ([node("atlas", Device("MTL0", DeviceKind.METAL))], {}, "no-gpu"),
    ([node("atlas", Device("ROCm0", DeviceKind.ROCM, integrated=True))], {}, "no-gpu"),
    ([node("atlas", *gpus(24), *gpus(16, kind=DeviceKind.ROCM))], {}, "one-vendor"),
    ([node("atlas", *gpus(24)), node("bolt", *gpus(24, kind=DeviceKind.ROCM))], {}, "one-vendor"),
    ([node("atlas", *gpus(24, 12))], {}, "unequal-gpus"),
    ([node("atlas", *gpus(24))], {"tensor": 2}, "tensor-parallel"),
    ([node("atlas", *gpus(24, 24, 24))], {"n_heads": 32}, "tensor-parallel"),
    ([node("atlas", *gpus(24)), node("bolt", *gpus(24))], {"n_layers": 1}, "layers"),
    ([node("atlas", *gpus(24))], {"layers": (3, 4)}, "layers"),
    ([node("atlas", *gpus(24))], {"layers": (3,), "n_layers": 4}, "layers"),
])
def test_what_can_be_no_pipeline_is_refused_with_its_reason(nodes: list[Node], options: dict, code: str) -> None:
    with pytest.raises(PlanRefused) as caught:
        plan_pipeline(nodes, **options)
    assert caught.value.code == code and caught.value.remedy
    assert code in ("layers", "tensor-parallel") or "atlas" in caught.value.what


@pytest.mark.parametrize(("content", "shape"), [
    (b'{"num_hidden_layers": 32, "num_attention_heads": 8}', HfShape(32, 8)),
    (b'{"text_config": {"num_hidden_layers": 48, "num_attention_heads": 16}, "vision_config": {}}', HfShape(48, 16)),
    (b'{"n_layer": 12, "n_head": 12}', HfShape(12, 12)),
    (b'{"num_hidden_layers": true, "num_attention_heads": -4}', HfShape()),
    (b'{"num_hidden_layers": "32"}', HfShape()), (b"[1]", HfShape()), (b"<html>", HfShape()), (b"", HfShape()),
    (b"[" * 100_000, HfShape()),
])
def test_a_models_own_config_tells_its_layers_and_heads(content: bytes, shape: HfShape) -> None:
    assert read_hf_config(content) == shape


def test_the_users_own_figure_stands_where_nothing_was_read_or_gpus_differ() -> None:
    assert plan_pipeline([node("atlas"), node("bolt")], tensor=1).tensor == 1
    assert plan_pipeline([node("atlas", *gpus(24, 12))], tensor=1).stages[0].devices == ("CUDA0",)
