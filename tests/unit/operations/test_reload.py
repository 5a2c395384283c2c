# ruff: noqa: ASYNC240 - a file is what these tests are about
"""fleet.yaml changes under a running engine; what is watched follows, and nothing is left of what is not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from fleet.config.load import load
from fleet.engine import Engine
from fleet.events import BringUp
from fleet.model import DeploymentState, NodeState, OperationState

from .here import PATIENCE, bring_up, free_port, tear_down, until

pytestmark = pytest.mark.timeout(120)


def text(*nodes: str, model: Path | str = "/no.gguf", more: str = "", head: str = "here") -> str:
    entries = "\n".join(f"  {node}" for node in nodes)
    return (f"fleet: test\nrefresh: 0.5\ndiscovery: {{mdns: false, ssh_config: false}}\nssh: {{connect_timeout: 1}}\n"
            f"nodes:\n{entries}\nmodels:\n  gemma: {{file: {model}, head: {head}, workers: [{head}], context: 512}}\n"
            f"{more}")


def local(name: str, state: Path, worker: int, head: int) -> str:
    return (f"{name}: {{address: local, state_dir: {state}, rpc_address: 127.0.0.1, "
            f"head: {{port: {head}, threads: 1}}, workers: [{{port: {worker}, devices: [CPU], threads: 1}}]}}")


def closed(name: str) -> str:
    """A node whose machine answers and whose SSH port does not."""
    return f"{name}: {{address: 127.0.0.1, port: {free_port()}}}"


@asynccontextmanager
async def running_file(path: Path) -> AsyncIterator[Engine]:
    engine = Engine(load(path), config_path=path, discover=False)
    task = asyncio.ensure_future(engine.run())
    try:
        assert await engine.settled(PATIENCE)
        yield engine
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "fleet.yaml"


def watched(engine: Engine) -> set[str]:
    return set(engine._watchers)


async def test_nodes_come_and_go_with_the_file(file: Path, tmp_path: Path) -> None:
    here = local("here", tmp_path / "state", free_port(), free_port())
    file.write_text(text(here, closed("bolt")))
    async with running_file(file) as engine:
        assert set(engine.latest.nodes) == watched(engine) == {"here", "bolt"}
        file.write_text(text(here, closed("cone")))
        assert await engine.reload() == ()
        assert set(engine.latest.nodes) == watched(engine) == {"here", "cone"}
        await until_state(engine, "cone", NodeState.REFUSED)
        assert engine.latest.nodes["here"].state is NodeState.UP, "who did not change is not connected anew"
        file.write_text(text(here))
        assert await engine.reload() == ()
        assert set(engine.latest.nodes) == {"here"}


async def until_state(engine: Engine, name: str, state: NodeState) -> None:
    await until(engine, lambda s: name in s.nodes and s.nodes[name].state is state)


async def test_a_broken_file_keeps_the_old_one_in_force_until_it_is_mended(file: Path, tmp_path: Path) -> None:
    here = local("here", tmp_path / "state", free_port(), free_port())
    file.write_text(text(here))
    async with running_file(file) as engine:
        config = engine.config
        for broken in (b"nodes: [", b"nodez: {}\n", b"\xff\xfe\x00", b"- a\n- b\n", b"nodes: {a: {prot: 1}}"):
            file.write_bytes(broken)
            problems = await engine.reload()
            assert problems and engine.latest.config_problems == problems
            assert engine.config is config and engine.latest.nodes["here"].state is NodeState.UP
        file.unlink()
        assert await engine.reload() and engine.config is config
        file.mkdir()
        assert await engine.reload() and engine.config is config
        file.rmdir()
        file.write_text(text(here))
        assert await engine.reload() == () and engine.latest.config_problems == ()


async def test_a_renamed_node_is_one_node_under_its_new_name(file: Path, tmp_path: Path) -> None:
    ports = free_port(), free_port()
    file.write_text(text(local("here", tmp_path / "state", *ports)))
    async with running_file(file) as engine:
        file.write_text(text(local("there", tmp_path / "state", *ports), head="there"))
        assert await engine.reload() == ()
        assert set(engine.latest.nodes) == watched(engine) == {"there"}
        await until_state(engine, "there", NodeState.UP)


@pytest.mark.engine
async def test_a_head_that_leaves_the_file_serves_nothing_that_we_show(
        file: Path, state: Path, model: Path) -> None:
    """Its node is renamed: the head is found again under the new name, and is no ghost under the old one."""
    ports = free_port(), free_port()
    file.write_text(text(local("here", state, *ports), model=model))
    async with running_file(file) as engine:
        await bring_up(engine)
        await until(engine, lambda s: s.deployment.state is DeploymentState.SERVING)
        file.write_text(text(local("there", state, *ports), model=model, head="there"))
        assert await engine.reload() == ()
        assert engine.latest.deployment.head != "here" and engine.head_client() is None
        await until_state(engine, "there", NodeState.UP)
        await until(engine, lambda s: s.deployment.head == "there")
        await tear_down(engine)


@pytest.mark.engine
async def test_a_worker_with_another_port_is_what_the_next_bring_up_uses(
        file: Path, state: Path, model: Path) -> None:
    first, second, head = free_port(), free_port(), free_port()
    file.write_text(text(local("here", state, first, head), model=model))
    async with running_file(file) as engine:
        await bring_up(engine)
        file.write_text(text(local("here", state, second, head), model=model))
        assert await engine.reload() == ()
        await until_state(engine, "here", NodeState.UP)
        await bring_up(engine)
        snapshot = await until(engine, lambda s: s.deployment.state is DeploymentState.SERVING)
        assert snapshot.deployment.workers == (("here", f"worker-{second}"),)
        await tear_down(engine)
        await until(engine, lambda s: s.nodes["here"].services == ())


async def test_an_operation_that_loses_its_node_to_the_file_ends_with_a_sentence(
        file: Path, tmp_path: Path) -> None:
    here = local("here", tmp_path / "state", free_port(), free_port())
    file.write_text(text(here))
    async with running_file(file) as engine:
        file.write_text(text(closed("bolt"), head="bolt"))
        reloading = asyncio.ensure_future(engine.reload())
        operation = await engine.outcome(engine.submit(BringUp()))
        assert await reloading == ()
        assert operation.state is OperationState.REFUSED and operation.problem.code != "internal", operation.problem


async def test_no_task_is_left_of_an_engine(file: Path, tmp_path: Path) -> None:
    before = asyncio.all_tasks()
    here = local("here", tmp_path / "state", free_port(), free_port())
    file.write_text(text(here, *(closed(f"n{number}") for number in range(5))))
    async with running_file(file) as engine:
        for count in (3, 0, 5):
            file.write_text(text(here, *(closed(f"n{number}") for number in range(count))))
            assert await engine.reload() == ()
            assert len(watched(engine)) == count + 1
        await until_state(engine, "n4", NodeState.REFUSED)
    assert asyncio.all_tasks() == before
