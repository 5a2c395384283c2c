"""Model, head and workers: who is chosen, who is left out, and every refusal says why."""

from dataclasses import replace

import pytest

from fleet.config.schema import FleetConfig, ModelConfig, NodeConfig, Role, RuntimeName, WorkerConfig
from fleet.errors import NO_SUCH, PlanRefused
from fleet.model import (
    Binary,
    Device,
    DeviceKind,
    Memory,
    ModelFile,
    Node,
    NodeReading,
    NodeState,
    Problem,
    Snapshot,
)
from fleet.planning.choose import choose

FILE = "/models/gemma.gguf"
GIB = 1 << 30


def binaries(folder="/opt/llama", commit="571d0d5", worker=True) -> tuple[Binary, ...]:
    programs = ("llama-server", "ggml-rpc-server") if worker else ("llama-server",)
    return tuple(Binary(f"{folder}/{program}", program, 10068, commit) for program in programs)


def node(name, *, state=NodeState.UP, files=(), programs=None, gpu=0, ram=16, **changes) -> Node:
    reading = NodeReading(models=tuple(ModelFile(file, 1) for file in files), memory=Memory(ram * GIB, ram * GIB),
                          binaries=binaries() if programs is None else programs,
                          devices=(Device("CUDA0", DeviceKind.CUDA, memory_total=gpu * GIB),) if gpu else ())
    return Node(name, state, reading=reading, **{"configured": True, **changes})


def fleet(*nodes, model=None, **configs) -> tuple[Snapshot, FleetConfig]:
    known = {n.name: configs.get(n.name, NodeConfig(n.name)) for n in nodes if n.configured}
    models = {"gemma": model or ModelConfig("gemma", FILE)}
    return Snapshot(nodes={n.name: n for n in nodes}), FleetConfig(nodes=known, models=models)


def refusal(*nodes, wanted="", **options) -> str:
    with pytest.raises(PlanRefused) as caught:
        choose(*fleet(*nodes, **options), wanted)
    assert caught.value.remedy
    return str(caught.value)


def test_the_node_with_the_file_is_the_head_and_the_others_are_workers():
    choice = choose(*fleet(node("atlas"), node("bolt", files=[FILE]), node("cone")), "")
    assert choice.head.name == "bolt"
    assert [w.node.name for w in choice.workers] == ["atlas", "cone"]
    assert choice.left_out == ()


def test_a_file_at_home_is_found_on_the_node_whose_home_it_may_be_in():
    model = ModelConfig("gemma", "~/models/gemma.gguf")
    nodes = node("atlas", local=True), node("bolt", files=["/home/ops/models/gemma.gguf"])
    assert choose(*fleet(*nodes, model=model), "").head.name == "bolt"


def test_a_name_that_no_model_has_is_told_apart_from_a_plan_that_cannot_work():
    with pytest.raises(PlanRefused) as caught:
        choose(*fleet(node("atlas")), "nope")
    assert caught.value.code == NO_SUCH


def test_of_several_with_the_file_the_one_with_most_gpu_memory_then_this_machine():
    nodes = node("atlas", files=[FILE], local=True), node("bolt", files=[FILE], gpu=24), node("cone", files=[FILE])
    assert choose(*fleet(*nodes), "").head.name == "bolt"
    assert choose(*fleet(nodes[0], nodes[2]), "").head.name == "atlas"


def test_an_unnamed_node_without_a_worker_program_is_left_out_with_a_remark():
    choice = choose(*fleet(node("atlas", files=[FILE]), node("bolt", programs=()), node("cone")), "")
    assert [w.node.name for w in choice.workers] == ["cone"]
    assert choice.left_out == ("bolt has no ggml-rpc-server. It takes no part.",)


def test_a_named_node_without_a_worker_program_is_refused():
    model = ModelConfig("gemma", FILE, workers=("bolt",))
    said = refusal(node("atlas", files=[FILE]), node("bolt", programs=()), model=model)
    assert "bolt has no ggml-rpc-server. The model wants it as a worker." in said


@pytest.mark.parametrize("state", [NodeState.UNREACHABLE, NodeState.LOCKED, NodeState.SILENT, NodeState.CONNECTING])
def test_an_unnamed_node_that_is_not_up_is_left_out_with_a_remark(state):
    choice = choose(*fleet(node("atlas", files=[FILE]), node("bolt", state=state)), "")
    assert choice.workers == () and choice.left_out == (f"bolt takes no part: it is {state.value}.",)


def test_a_named_node_that_is_not_up_is_refused_with_why():
    model = ModelConfig("gemma", FILE, workers=("bolt",))
    asleep = Problem("unreachable", "No answer from 10.0.0.3.", "Wake it.")
    down = node("bolt", state=NodeState.UNREACHABLE, problem=asleep)
    said = refusal(node("atlas", files=[FILE]), down, model=model)
    assert "bolt is to be a worker, but it is unreachable. No answer from 10.0.0.3. Wake it." in said
    said = refusal(node("atlas", files=[FILE], state=NodeState.LOCKED), model=ModelConfig("gemma", FILE, head="atlas"))
    assert "atlas is to be the head, but it is locked." in said


def test_a_node_that_nobody_has_is_refused():
    model = ModelConfig("gemma", FILE, workers=("zephyr",))
    assert "zephyr is to be a worker, but no node has that name." in refusal(node("atlas", files=[FILE]), model=model)


def test_a_head_without_the_program_is_refused():
    said = refusal(node("atlas", files=[FILE], programs=()))
    assert f"atlas has {FILE}, but no llama-server." in said
    said = refusal(node("atlas", programs=()), model=ModelConfig("gemma", FILE, head="atlas"))
    assert "atlas has no llama-server, so it cannot be the head." in said


def test_a_model_that_no_node_has_is_refused():
    assert f"No node that is up has {FILE}." in refusal(node("atlas"), node("bolt", files=[FILE], state=NodeState.GONE))
    assert "No model is called nonsuch." in refusal(node("atlas"), wanted="nonsuch")


def test_one_name_for_two_files_is_refused_with_both_paths():
    said = refusal(node("atlas", files=["/a/x.gguf", "/b/x.gguf"]), wanted="x")
    assert "x is the name of 2 files: /a/x.gguf, /b/x.gguf." in said


def test_roles_and_unmanaged_workers_count():
    configs = {"bolt": NodeConfig("bolt", roles=(Role.HEAD,)),
               "cone": NodeConfig("cone", workers=(WorkerConfig(50052), WorkerConfig(50053, managed=False)))}
    choice = choose(*fleet(node("atlas", files=[FILE]), node("bolt"), node("cone"), **configs), "")
    assert [(w.where, w.binary is None) for w in choice.workers] == [("cone:50052", False), ("cone:50053", True)]


def test_an_unmanaged_worker_needs_no_program():
    configs = {"bolt": NodeConfig("bolt", workers=(WorkerConfig(managed=False),))}
    choice = choose(*fleet(node("atlas", files=[FILE]), node("bolt", programs=()), **configs), "")
    assert [w.where for w in choice.workers] == ["bolt:50052"]


def test_of_two_builds_on_a_node_that_of_the_head_is_used():
    both = (*binaries("/usr/bin", "ffffff0"), *binaries("/opt/llama"))
    choice = choose(*fleet(node("atlas", files=[FILE]), node("bolt", programs=both)), "")
    assert choice.workers[0].binary.path == "/opt/llama/ggml-rpc-server"


def test_no_workers_where_the_model_wants_none():
    model = ModelConfig("gemma", FILE, workers=())
    assert choose(*fleet(node("atlas", files=[FILE]), node("bolt"), model=model), "").workers == ()


def test_what_was_only_found_takes_no_part_beside_a_file_that_names_nodes():
    choice = choose(*fleet(node("atlas", files=[FILE]), replace(node("guest"), configured=False)), "")
    assert choice.workers == ()


def test_a_model_that_vllm_serves_is_not_dealt_here():
    wide = ModelConfig("gemma", FILE, runtime=RuntimeName.VLLM)
    assert "gemma is served by vLLM" in refusal(node("atlas", files=[FILE]), wanted="gemma", model=wide)


def test_a_plan_on_what_is_left_goes_without_the_nodes_that_are_put_aside():
    nodes = (node("atlas", files=[FILE]), node("bolt"), node("cone"))
    snapshot, config = fleet(*nodes)
    assert [w.node.name for w in choose(snapshot, replace(config, absent=frozenset({"bolt"})), "").workers] == ["cone"]
    alone = FleetConfig(models=config.models)                # no fleet.yaml names nodes: the others still take part
    assert [w.node.name for w in choose(snapshot, replace(alone, absent=frozenset({"bolt"})), "").workers] == ["cone"]
    pinned = {"gemma": ModelConfig("gemma", FILE, head="atlas")}
    with pytest.raises(PlanRefused, match="takes no part now"):
        choose(snapshot, replace(config, models=pinned, absent=frozenset({"atlas"})), "")


def test_workers_that_the_model_names_are_needed_unless_they_may_be_spared():
    model = ModelConfig("gemma", FILE, workers=("bolt", "cone"))
    nodes = (node("atlas", files=[FILE]), node("bolt", state=NodeState.UNREACHABLE), node("cone"))
    assert "bolt is to be a worker, but it is unreachable" in refusal(*nodes, model=model)
    snapshot, config = fleet(*nodes, model=model)
    choice = choose(snapshot, replace(config, spare=True), "")
    assert [w.node.name for w in choice.workers] == ["cone"]
    assert any("bolt takes no part" in sentence for sentence in choice.left_out)
