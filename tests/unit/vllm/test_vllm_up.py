"""A model over two nodes with vLLM: real processes under the real supervisor; the programs are stand-ins."""

from __future__ import annotations

import json
import os
import signal
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from fleet.config.schema import FleetConfig, NodeConfig, RpcMode, VllmForm
from fleet.errors import PlanRefused
from fleet.events import BringUp, TearDown
from fleet.facts import head_facts
from fleet.model import DeploymentState, DeviceKind, Operation, OperationState, ServiceKind, ServiceState

from .two_nodes import HEAD, MODEL, OTHER, TwoNodes, brought_up, fleet_of_two, stand_ins, two_nodes

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    folder = tmp_path / "weights"
    folder.mkdir()
    return folder


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return stand_ins(tmp_path / "bin")


@pytest.fixture
def config(program: Path, weights: Path) -> FleetConfig:
    return fleet_of_two(program, weights)


def with_model(config: FleetConfig, **changes: object) -> FleetConfig:
    return replace(config, models={MODEL: replace(config.models[MODEL], **changes)})


def with_vllm(config: FleetConfig, **changes: object) -> FleetConfig:
    return with_model(config, vllm=replace(config.models[MODEL].vllm, **changes))


def with_env(config: FleetConfig, **env: str) -> FleetConfig:
    return with_vllm(config, env=env)


def services(hands: TwoNodes) -> dict[tuple[str, str], ServiceState]:
    return {(name, service.record.id): service.state
            for name, node in hands.snapshot().nodes.items() for service in node.services}


def seen(state: Path, node: str, service: str) -> dict:
    """Command line and environment, as the process itself saw them."""
    return json.loads((state / node / "services" / service / "seen.json").read_text())


async def nothing_left(hands: TwoNodes) -> None:
    for name in hands.config.nodes:
        assert (await hands.reread(name)).services == ()


async def failed(hands: TwoNodes, code: str) -> Operation:
    """A bring-up that fails, and leaves nothing."""
    operation = await hands.do(BringUp(MODEL))
    assert operation.state is OperationState.FAILED and operation.problem is not None
    assert operation.problem.code == code, operation.problem
    await nothing_left(hands)
    return operation


async def test_ranks_start_head_first_find_each_other_and_serve(config: FleetConfig, tmp_path: Path) -> None:
    settings = config.models[MODEL].vllm
    async with two_nodes(config, tmp_path) as hands:
        operation = await brought_up(hands)
        titles = [step.title for step in operation.steps]
        assert titles[1:3] == [f"Start head on {HEAD}, port {config.nodes[HEAD].head.port}", f"Start stage on {OTHER}"]
        snapshot = await hands.until(lambda s: s.deployment.state is DeploymentState.SERVING)
        assert (snapshot.deployment.model, snapshot.deployment.head) == (MODEL, HEAD)
        assert snapshot.deployment.workers == ((OTHER, f"stage-{settings.master_port}"),)
        head = seen(tmp_path, HEAD, f"coordinator-{config.nodes[HEAD].head.port}")
        stage = seen(tmp_path, OTHER, f"stage-{settings.master_port}")
        for process, rank, address in ((head, "0", "127.0.0.1"), (stage, "1", "127.0.0.2")):
            words, env = process["argv"], process["env"]
            assert words[words.index("--node-rank") + 1] == rank and words[words.index("--nnodes") + 1] == "2"
            assert env["VLLM_HOST_IP"] == address
            assert (env["NCCL_SOCKET_IFNAME"], env["GLOO_SOCKET_IFNAME"]) == ("=lo", "lo")
        assert "--headless" in stage["argv"] and "--headless" not in head["argv"] and "--port" not in stage["argv"]
        record = next(r for r in (await hands.reread(OTHER)).services)
        head_record = next(r for r in (await hands.reread(HEAD)).services)
        assert [worker.pid for worker in head_facts(head_record.facts).workers] == [record.pid]
        again = await hands.do(BringUp(MODEL))
        assert again.steps == () and "serves already" in again.title
        down = await hands.do(TearDown())
        assert [step.title.split(" on ")[0] for step in down.steps[:2]] == ["Stop head", "Stop stage"]
        await nothing_left(hands)


async def test_over_ray_the_cluster_comes_first_and_every_node_is_waited_for(
        config: FleetConfig, tmp_path: Path) -> None:
    config = with_vllm(config, form=VllmForm.RAY)
    port = config.models[MODEL].vllm.ray_port
    async with two_nodes(config, tmp_path) as hands:
        operation = await brought_up(hands)
        assert [step.title.split(",")[0] for step in operation.steps[1:6]] == [
            f"Start stage on {HEAD}", f"Wait for Ray on {HEAD}", f"Start stage on {OTHER}", f"Wait for Ray on {OTHER}",
            f"Start head on {HEAD}"]
        await hands.until(lambda s: s.deployment.state is DeploymentState.SERVING)
        assert services(hands)[OTHER, f"ray-{port}"] is ServiceState.READY
        joined = seen(tmp_path, OTHER, f"ray-{port}")
        head = seen(tmp_path, HEAD, hands.snapshot().deployment.head_service)
        assert joined["argv"][joined["argv"].index("--address") + 1] == f"127.0.0.1:{port}"
        assert head["argv"][head["argv"].index("--distributed-executor-backend") + 1] == "ray"
        assert head["env"]["RAY_ADDRESS"] == f"127.0.0.1:{port}" and "--nnodes" not in head["argv"]
        await hands.do(TearDown())
        await nothing_left(hands)


async def test_a_rank_that_dies_while_it_loads_is_named_and_all_is_undone(config: FleetConfig, tmp_path: Path) -> None:
    async with two_nodes(with_env(config, STAND_IN_DIE="1", STAND_IN_NEVER="1"), tmp_path) as hands:
        operation = await hands.do(BringUp(MODEL))
        assert operation.state is OperationState.FAILED
        assert f"stage-{config.models[MODEL].vllm.master_port} on {OTHER} ended" in operation.problem.what
        assert "CUDA out of memory" in operation.problem.what
        await nothing_left(hands)


async def test_a_rank_that_is_killed_while_it_serves_is_seen_and_a_new_bring_up_puts_it_right(
        config: FleetConfig, tmp_path: Path) -> None:
    async with two_nodes(config, tmp_path) as hands:
        await brought_up(hands)
        stage = (await hands.reread(OTHER)).services[0]
        os.kill(stage.pid, signal.SIGKILL)
        snapshot = await hands.until(lambda s: s.deployment.state is DeploymentState.BROKEN)
        assert snapshot.deployment.problem.code == "worker-dead"
        await brought_up(hands)
        await hands.until(lambda s: s.deployment.state is DeploymentState.SERVING)
        await hands.do(TearDown())
        await nothing_left(hands)


async def test_a_head_that_never_comes_is_given_up_and_undone(config: FleetConfig, tmp_path: Path) -> None:
    async with two_nodes(with_env(config, STAND_IN_NEVER="1"), tmp_path, stalled_after=1.0) as hands:
        operation = await failed(hands, "stalled")
    assert "has not moved for 1 s" in operation.problem.what


async def test_an_engine_that_dies_later_is_no_loading(config: FleetConfig, tmp_path: Path) -> None:
    gone = tmp_path / "dead"
    async with two_nodes(with_env(config, STAND_IN_DEAD=str(gone)), tmp_path) as hands:
        await brought_up(hands)
        await hands.until(lambda s: s.deployment.state is DeploymentState.SERVING)
        gone.touch()
        snapshot = await hands.until(lambda s: s.deployment.state is DeploymentState.BROKEN)
        head = next(s for s in snapshot.nodes[HEAD].services if s.record.kind is ServiceKind.COORDINATOR)
        assert (head.state, head.detail) == (ServiceState.STUCK, "its engine is dead")


async def test_a_server_that_serves_something_else_is_no_success(config: FleetConfig, tmp_path: Path) -> None:
    async with two_nodes(with_env(config, STAND_IN_NAME="other"), tmp_path) as hands:
        operation = await failed(hands, "other-model")
    assert f"serves other, not {MODEL}" in operation.problem.what


async def test_a_server_that_gives_no_token_is_no_success(config: FleetConfig, tmp_path: Path) -> None:
    async with two_nodes(with_env(config, STAND_IN_NO_TOKEN="1"), tmp_path) as hands:
        operation = await hands.do(BringUp(MODEL))
        assert operation.state is OperationState.FAILED and "the engine said no" in operation.problem.what
        await nothing_left(hands)


async def test_a_key_is_read_where_it_serves_and_stands_on_no_command_line(
        config: FleetConfig, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("s3cret-of-the-head\n")
    node = config.nodes[HEAD]
    locked = replace(node, head=replace(node.head, api_key_file=str(key)))
    config = replace(config, nodes={**config.nodes, HEAD: locked})
    async with two_nodes(config, tmp_path) as hands:
        await brought_up(hands)
        for name in config.nodes:
            for record in (await hands.reread(name)).services:
                assert "s3cret" not in " ".join(record.argv)
                assert "s3cret" not in (Path(record.folder) / "pid.json").read_text()
        await hands.do(TearDown())


async def refusal(config: FleetConfig, state: Path, vendor: DeviceKind = DeviceKind.CUDA) -> PlanRefused:
    async with two_nodes(config, state) as hands:
        hands.vendor[OTHER] = vendor
        with pytest.raises(PlanRefused) as caught:
            await hands.do(BringUp(MODEL))
        await nothing_left(hands)
    return caught.value


@pytest.mark.parametrize("port", ["head", "master"])
async def test_a_port_that_somebody_has_is_refused_before_anything_starts(
        config: FleetConfig, tmp_path: Path, port: str) -> None:
    number = config.nodes[HEAD].head.port if port == "head" else config.models[MODEL].vllm.master_port
    with socket.create_server(("127.0.0.1", number)):
        error = await refusal(config, tmp_path)
    assert error.code == "port-taken" and f"Port {number} on {HEAD}" in error.what


async def test_speculation_vendors_tunnels_and_missing_weights_are_refused(
        config: FleetConfig, tmp_path: Path, weights: Path) -> None:
    speculating = with_model(config, extra_args=("--speculative-config", '{"method": "mtp"}'))
    assert (await refusal(speculating, tmp_path)).code == "speculation-pipeline"
    assert (await refusal(config, tmp_path, DeviceKind.ROCM)).code == "one-vendor"
    assert (await refusal(with_model(config, file="/nowhere"), tmp_path)).code == "no-file"
    tunnelled = replace(config, nodes={**config.nodes, OTHER: NodeConfig(OTHER, rpc=RpcMode.TUNNEL)})
    assert (await refusal(tunnelled, tmp_path)).code == "tunnel"
    assert (await refusal(with_model(config, extra_args=("-tp", "4")), tmp_path)).code == "extra-args"


async def test_the_models_own_config_is_held_against_the_plan(
        config: FleetConfig, tmp_path: Path, weights: Path) -> None:
    (weights / "config.json").write_text('{"num_hidden_layers": 32, "num_attention_heads": 8}')
    assert "deals 30 layers, and the model has 32" in (await refusal(with_vllm(config, layers=(20, 10)), tmp_path)).what
    async with two_nodes(with_vllm(config, layers=(20, 12)), tmp_path) as hands:
        await brought_up(hands)
        head = seen(tmp_path, HEAD, f"coordinator-{config.nodes[HEAD].head.port}")
        assert head["env"]["VLLM_PP_LAYER_PARTITION"] == "20,12"
        await hands.do(TearDown())


async def test_one_node_alone_needs_neither_ranks_nor_ray(config: FleetConfig, tmp_path: Path) -> None:
    async with two_nodes(with_model(with_vllm(config, form=VllmForm.RAY), workers=()), tmp_path) as hands:
        await brought_up(hands)
        assert list(services(hands)) == [(HEAD, f"coordinator-{config.nodes[HEAD].head.port}")]
        await hands.do(TearDown())


async def test_an_option_that_vllm_does_not_have_ends_the_start_with_its_own_words(
        config: FleetConfig, tmp_path: Path) -> None:
    async with two_nodes(with_model(config, extra_args=("--no-such-option", "1")), tmp_path) as hands:
        operation = await hands.do(BringUp(MODEL))
        assert operation.state is OperationState.FAILED
        assert "unrecognized arguments: --no-such-option" in operation.problem.what
        await nothing_left(hands)
