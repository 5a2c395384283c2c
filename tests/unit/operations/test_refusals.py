# ruff: noqa: ASYNC240 - files are what some of these tests are about
"""Refused before anything starts, with the reason; and nothing that we do kills a worker."""

from __future__ import annotations

import asyncio
import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from gguf import GGUFReader

from fleet.config.schema import FleetConfig
from fleet.events import AdoptProcess, BringUp
from fleet.model import DeploymentState, Operation, OperationState, ServiceKind

from .here import (
    LOOPBACK,
    NODE,
    bring_up,
    do,
    free_port,
    head_port,
    nothing_left,
    processes_of,
    running,
    sentence,
    service,
    tear_down,
    until,
    with_model,
    with_node,
    worker_port,
)

pytestmark = [pytest.mark.engine, pytest.mark.timeout(120)]


def unmanaged(config: FleetConfig, number: int = 0) -> FleetConfig:
    """The configuration with one worker that somebody else starts."""
    workers = list(config.nodes[NODE].workers)
    workers[number] = replace(workers[number], managed=False)
    return with_node(config, workers=tuple(workers))


def ports(config: FleetConfig) -> list[int]:
    return [head_port(config), *(worker.port for worker in config.nodes[NODE].workers)]


async def refused(config: FleetConfig, state: Path, model: str = "") -> Operation:
    """The refusal of a bring-up; the dry run says the same, and nothing of ours was started."""
    async with running(config) as engine:
        planned = await engine.plan(BringUp(model))
        operation = await do(engine, BringUp(model))
        assert operation.state is OperationState.REFUSED, operation
        assert planned.problem == operation.problem
        assert operation.steps == ()
        assert processes_of(state) == []
        assert not (state / "services").exists() or list((state / "services").iterdir()) == []
        return operation


async def test_a_worker_that_a_foreign_head_holds_is_refused_and_both_live_on(
        config: FleetConfig, state: Path, model: Path, folder: str, by_hand) -> None:
    port, other = worker_port(config), free_port()
    worker = await by_hand(f"{folder}/ggml-rpc-server", "-H", LOOPBACK, "-p", str(port), "-d", "CPU", port=port)
    head = await by_hand(f"{folder}/llama-server", "-m", str(model), "--rpc", f"{LOOPBACK}:{port}", "-ngl", "99", "-c",
                         "512", "--host", LOOPBACK, "--port", str(other), port=other)
    operation = await refused(unmanaged(config), state)
    assert operation.problem.code == "occupied"
    assert f"port {port}, is occupied: held by 127.0.0.1:" in sentence(operation)
    assert worker.returncode is None and head.returncode is None
    os.kill(head.pid, 15)
    await head.wait()
    async with running(unmanaged(config)) as engine:     # the head has left: now it can be used, and it lived on
        await bring_up(engine)
        await tear_down(engine)
    assert worker.returncode is None


async def test_a_worker_of_another_protocol_is_refused_and_lives_on(
        config: FleetConfig, state: Path, other_folder: str, by_hand) -> None:
    port = worker_port(config)
    worker = await by_hand(f"{other_folder}/ggml-rpc-server", "-H", LOOPBACK, "-p", str(port), "-d", "CPU", port=port)
    operation = await refused(unmanaged(config), state)
    assert operation.problem.code == "protocol-mismatch"
    assert "speaks RPC protocol 5.0.0" in sentence(operation) and "4.0.3" in sentence(operation)
    await refused(unmanaged(config), state)
    assert worker.returncode is None


async def test_a_worker_that_nobody_started_is_refused(config: FleetConfig, state: Path) -> None:
    operation = await refused(unmanaged(config, 1), state)
    assert operation.problem.code == "dead-worker"
    assert f"Nothing listens on {NODE}, port {worker_port(config, 1)}" in sentence(operation)


async def test_something_else_in_the_place_of_a_foreign_worker_is_refused(config: FleetConfig, state: Path) -> None:
    """It takes connections and never says a word, as a worker does whose slot is taken."""
    with socket.create_server((LOOPBACK, worker_port(config))):
        async with running(unmanaged(config)) as engine:
            operation = await do(engine, BringUp())
    assert operation.state is OperationState.REFUSED and processes_of(state) == []
    assert operation.problem.code == "bad-worker" and "did not answer within" in sentence(operation)


@pytest.mark.parametrize("part", ["the head", "a worker"])
async def test_a_port_that_somebody_else_has_is_refused_and_its_owner_named(
        config: FleetConfig, state: Path, part: str) -> None:
    port = head_port(config) if part == "the head" else worker_port(config)
    with socket.create_server((LOOPBACK, port)):
        operation = await refused(config, state)
    assert operation.problem.code == "port-taken"
    assert f"Port {port} on {NODE}, wanted for {part}, is taken by" in sentence(operation)
    assert f"(pid {os.getpid()})" in sentence(operation)


async def test_a_listener_on_another_address_is_in_nobodys_way(config: FleetConfig) -> None:
    with socket.create_server(("127.0.0.2", worker_port(config))), socket.create_server(
            ("127.0.0.2", head_port(config))):
        async with running(config) as engine:
            await bring_up(engine)
            await tear_down(engine)


async def test_a_foreign_worker_on_our_port_is_named_and_taken_into_service_when_adopted(
        config: FleetConfig, state: Path, folder: str, by_hand) -> None:
    port = worker_port(config)
    process = await by_hand(f"{folder}/ggml-rpc-server", "-H", LOOPBACK, "-p", str(port), "-d", "CPU", port=port)
    operation = await refused(config, state)
    assert f"is taken by ggml-rpc-server (pid {process.pid})" in sentence(operation)
    async with running(config) as engine:
        foreign = next(f for f in engine.latest.nodes[NODE].foreign if f.process.pid == process.pid)
        assert (foreign.kind, foreign.port) == (ServiceKind.WORKER, port)
        adopted = await do(engine, AdoptProcess(NODE, process.pid, foreign.process.start_time))
        assert adopted.state is OperationState.DONE, adopted.problem
        assert service(engine.latest, ServiceKind.WORKER, port).record.pid == process.pid
        await bring_up(engine)
        await until(engine, lambda s: s.deployment.state is DeploymentState.SERVING)
        await tear_down(engine)
    nothing_left(state, config)


async def test_a_foreign_head_on_our_port_is_replaced_once_it_is_adopted(
        config: FleetConfig, state: Path, model: Path, folder: str, by_hand) -> None:
    port = head_port(config)
    process = await by_hand(f"{folder}/llama-server", "-m", str(model), "-c", "256", "--host", LOOPBACK, "--port",
                            str(port), "--device", "none", port=port)
    assert f"is taken by llama-server (pid {process.pid})" in sentence(await refused(config, state))
    async with running(config) as engine:
        foreign = next(f for f in engine.latest.nodes[NODE].foreign if f.process.pid == process.pid)
        assert (await do(engine, AdoptProcess(NODE, process.pid, foreign.process.start_time))).state is (
            OperationState.DONE)
        snapshot = await until(engine, lambda s: s.deployment.state is DeploymentState.SERVING)
        assert snapshot.deployment.model == "gemma" and snapshot.deployment.context == 256
        await bring_up(engine)
        snapshot = await until(engine, lambda s: s.deployment.state is DeploymentState.SERVING)
        assert service(snapshot, ServiceKind.COORDINATOR).record.pid != process.pid
        assert snapshot.deployment.workers
        await tear_down(engine)


@pytest.mark.parametrize(("content", "said"), [
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 253113024\n", "LFS"),
    (b"<!DOCTYPE html>\n<html><head><title>Sign in</title></head></html>\n" * 20, "web page"),
    (b"", "empty"), (b"GGUF", "GGUF"), (bytes(4096), "GGUF")])
async def test_a_file_that_is_no_model_is_refused(
        config: FleetConfig, state: Path, tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "wrong.gguf"
    file.write_bytes(content)
    operation = await refused(with_model(config, file=str(file)), state)
    assert str(file) in sentence(operation) and said.lower() in sentence(operation).lower(), operation.problem


async def test_a_model_that_is_not_there_is_refused(config: FleetConfig, state: Path, tmp_path: Path) -> None:
    operation = await refused(with_model(config, file=str(tmp_path / "no such.gguf")), state)
    assert operation.problem.code == "no-file" and f"{tmp_path}/no such.gguf is not on {NODE}" in sentence(operation)
    operation = await refused(with_model(config, file=str(tmp_path)), state)
    assert operation.problem.code == "no-file"


async def test_a_model_whose_end_is_missing_is_refused(
        config: FleetConfig, state: Path, model: Path, tmp_path: Path) -> None:
    part = tmp_path / "part.gguf"
    with model.open("rb") as whole:
        part.write_bytes(whole.read(60_000_000))
    operation = await refused(with_model(config, file=str(part)), state)
    assert operation.problem.code == "incomplete"
    assert f"{model.stat().st_size - 60_000_000} bytes of it are missing" in sentence(operation)


async def test_no_program_for_the_head_is_refused(
        config: FleetConfig, state: Path, tmp_path: Path, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleet.nodes.connect.bundled", lambda: None)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    empty = tmp_path / "llama"
    empty.mkdir()
    operation = await refused(with_node(config, llama=str(empty)), state)
    assert f"{NODE} has no llama-server, so it cannot be the head." in sentence(operation)


async def test_no_program_for_a_named_worker_is_refused(
        config: FleetConfig, state: Path, tmp_path: Path, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleet.nodes.connect.bundled", lambda: None)
    part = tmp_path / "llama"
    part.mkdir()
    for file in Path(folder).iterdir():
        if "rpc-server" not in file.name:
            (part / file.name).symlink_to(file)
    operation = await refused(with_node(config, llama=str(part)), state)
    assert f"{NODE} has no ggml-rpc-server." in sentence(operation)
    assert "The model wants it as a worker." in sentence(operation)


async def test_programs_of_two_builds_in_one_folder_are_found_out_by_the_head_and_undone(
        config: FleetConfig, state: Path, tmp_path: Path, folder: str, other_folder: str,
        monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies together is taken for one build; that it is not shows when the head is started."""
    monkeypatch.setattr("fleet.nodes.connect.bundled", lambda: None)
    mixed = tmp_path / "llama"
    mixed.mkdir()
    for name in ("llama-server", *(file.name for file in Path(folder).glob("lib*"))):
        (mixed / name).symlink_to(Path(folder, name))
    worker = mixed / "ggml-rpc-server"
    worker.write_text(f'#!/bin/sh\nLD_LIBRARY_PATH={other_folder} exec {other_folder}/ggml-rpc-server "$@"\n')
    worker.chmod(0o755)
    async with running(with_node(config, llama=str(mixed))) as engine:
        operation = await do(engine, BringUp())
    assert operation.state is OperationState.FAILED
    assert "Use the same build on head and workers." in sentence(operation) and "5.0.0" in sentence(operation)
    assert f"coordinator-{head_port(config)} on {NODE} ended." in sentence(operation)
    nothing_left(state, config)


async def test_a_model_that_does_not_fit_is_refused_and_what_serves_serves_on(
        config: FleetConfig, model: Path, state: Path) -> None:
    small = with_node(config, vram={"CPU": 20 << 20})
    async with running(small) as engine:
        operation = await do(engine, BringUp())
        assert operation.state is OperationState.REFUSED
        assert operation.problem.code == "no-room"
        assert "gemma does not fit: with a context of 512 tokens it takes" in sentence(operation)
    assert processes_of(state) == []


async def test_a_model_in_two_files_comes_up_and_one_that_lacks_the_second_is_refused(
        config: FleetConfig, state: Path, model: Path, tmp_path: Path) -> None:
    first = await asyncio.to_thread(split_in_two, model, tmp_path)
    sharded = with_model(config, file=str(first))
    async with running(sharded) as engine:
        await bring_up(engine)
        snapshot = await until(engine, lambda s: s.deployment.state is DeploymentState.SERVING)
        assert len(snapshot.deployment.placement.real) == 3
        await tear_down(engine)
    (tmp_path / first.name.replace("00001-of", "00002-of")).unlink()
    operation = await refused(sharded, state)
    assert operation.problem.code == "no-file" and "-00002-of-00002.gguf is not on" in sentence(operation)


def split_in_two(model: Path, folder: Path) -> Path:
    """The model as two files, as llama.cpp's own split names and marks them; gives the first."""
    from gguf import GGUFValueType, GGUFWriter

    reader = GGUFReader(model)
    names = [folder / f"gemma-{number:05d}-of-00002.gguf" for number in (1, 2)]
    middle = len(reader.tensors) // 2
    for number, (name, tensors) in enumerate(zip(names, (reader.tensors[:middle], reader.tensors[middle:]),
                                                 strict=True)):
        writer = GGUFWriter(name, "gemma3")
        for field in reader.fields.values() if number == 0 else ():
            if field.name == "general.architecture" or field.name.startswith("GGUF."):
                continue
            kind = field.types[0]
            writer.add_key_value(field.name, field.contents(), kind,
                                 field.types[-1] if kind is GGUFValueType.ARRAY else None)
        writer.add_key_value("split.no", number, GGUFValueType.UINT16)
        writer.add_key_value("split.count", 2, GGUFValueType.UINT16)
        writer.add_key_value("split.tensors.count", len(reader.tensors), GGUFValueType.INT32)
        for tensor in tensors:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return names[0]


async def test_a_service_of_another_fleet_in_our_place_is_not_ended(config: FleetConfig, state: Path) -> None:
    async with running(config) as engine:
        await bring_up(engine)
        before = await until(engine, lambda s: s.deployment.state is DeploymentState.SERVING)
        async with running(replace(config, fleet="other")) as second:
            assert second.latest.deployment.state is DeploymentState.DOWN
            operation = await do(second, BringUp())
            assert operation.state is OperationState.REFUSED and operation.problem.code == "other-fleet"
            assert "of the fleet “test”" in sentence(operation)
            await tear_down(second)
        after = await until(engine, lambda s: s.deployment.state is DeploymentState.SERVING)
        assert {s.record.pid for s in after.nodes[NODE].services} == {s.record.pid for s in before.nodes[NODE].services}
        await tear_down(engine)


async def test_a_changed_environment_starts_a_worker_anew(config: FleetConfig) -> None:
    async with running(config) as engine:
        await bring_up(engine)
        await until(engine, lambda s: s.deployment.state is DeploymentState.SERVING)
        assert (await bring_up(engine)).steps == ()
        workers = list(config.nodes[NODE].workers)
        workers[0] = replace(workers[0], env={"OMP_NUM_THREADS": "1"})
        engine.config = with_node(config, workers=tuple(workers))
        again = await bring_up(engine)
        assert sum(step.title.startswith("Start worker") for step in again.steps) == 1
        await tear_down(engine)


async def test_all_that_is_wrong_is_said_at_once(config: FleetConfig, state: Path) -> None:
    with socket.create_server((LOOPBACK, worker_port(config))), socket.create_server((LOOPBACK, head_port(config))):
        said = sentence(await refused(unmanaged(config, 1), state))
    for port in ports(config):
        assert str(port) in said


async def test_a_model_that_nobody_has_is_refused(config: FleetConfig, state: Path) -> None:
    operation = await refused(replace(config, models={}), state, "gemma-of-nobody")
    assert "No model is called gemma-of-nobody." in sentence(operation)


async def test_settings_that_do_not_go_together_are_refused_all_at_once(config: FleetConfig, state: Path) -> None:
    wrong = with_model(config, kv_type_v="q8_0", flash_attention="off",
                       extra_args=("--spec-type", "draft-simple", "-sm", "row"))
    operation = await refused(wrong, state)
    assert operation.problem.code == "speculation-needs"
    for said in ("none was named", "-sm row cuts through every layer", "needs flash attention, and that is off"):
        assert said in sentence(operation)


async def test_what_a_person_should_know_before_it_starts_stands_in_the_plan(config: FleetConfig) -> None:
    async with running(with_model(config, extra_args=("--spec-type", "draft-mtp", "-md", "/none/mtp.gguf"))) as engine:
        planned = await engine.plan(BringUp())
    assert planned.state is OperationState.PLANNED
    assert [remark for remark in planned.remarks if "draft-mtp was reported to crash over RPC" in remark]
