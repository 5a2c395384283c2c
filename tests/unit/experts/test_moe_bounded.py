"""A mixture inside a budget, by the engine: the limit holds, experts come and go, words stay, nothing stays behind."""

from __future__ import annotations

import asyncio
import fcntl
import mmap
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import missing
from free_port import free_port
from made_moe import MIDDLE, make
from served_moe import Server

from fleet.config.schema import DiscoveryConfig, ExpertsConfig, FleetConfig, HeadConfig, ModelConfig, NodeConfig
from fleet.engine import Engine
from fleet.errors import PlanRefused
from fleet.events import BringUp, RestartService, StopService, TearDown
from fleet.experts.bound import Bound, Way, bound_of, choose_way, look
from fleet.experts.counters import Counters, counters_of
from fleet.model import Operation, OperationState
from fleet.nodes.local import LocalTransport

pytestmark = [pytest.mark.engine, pytest.mark.timeout(120)]
MIB = 1 << 20
NODE, PATIENCE = "here", 60.0


@pytest.fixture(scope="module")
def middle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = make(tmp_path_factory.mktemp("middle") / "middle.gguf", MIDDLE)
    yield path
    path.unlink()


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """The readahead of this machine's disk is one for all tests that run side by side."""
    with (Path(tempfile.gettempdir()) / f"quarterdeck-tests-{os.geteuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state folder without services gives way to the usual one with some: there is none of these here."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)


@pytest.fixture
async def way(program: str) -> Way:
    """How this machine bounds memory; nothing here can be tried where it cannot."""
    try:
        return choose_way(await look(LocalTransport(NODE), []), NODE)
    except PlanRefused as error:
        missing(f"memory cannot be bounded here: {error.what}")
        raise


def fleet_of(state: Path, model: Path, budget: int | None, *, shim: bool = True, arguments: tuple[str, ...] = (),
             env: dict[str, str] | None = None) -> FleetConfig:
    node = NodeConfig(NODE, local=True, state_dir=str(state), model_dirs=(str(state / "none"),), workers=(),
                      head=HeadConfig(port=free_port(), threads=1, env=env or {}))
    experts = None if budget is None else ExpertsConfig(budget, shim)
    return FleetConfig(fleet="test", nodes={NODE: node}, model="moe", refresh=0.5,
                       models={"moe": ModelConfig("moe", str(model), head=NODE, workers=(), context=512, slots=1,
                                                  extra_args=arguments, experts=experts)},
                       discovery=DiscoveryConfig(mdns=False, ssh_config=False, announce=False))


@asynccontextmanager
async def running(config: FleetConfig) -> AsyncIterator[Engine]:
    engine = Engine(config, discover=False)
    task = asyncio.ensure_future(engine.run())
    try:
        assert await engine.settled(PATIENCE)
        yield engine
    finally:
        with suppress(asyncio.CancelledError):
            operation = await engine.outcome(engine.submit(TearDown()))
            assert operation.state is OperationState.DONE, operation.problem
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def bring_up(engine: Engine) -> Operation:
    operation = await engine.outcome(engine.submit(BringUp("")))
    assert operation.state is OperationState.DONE, (operation.problem, operation.steps)
    return operation


async def say(config: FleetConfig, tokens: int = 150, seed: int = 5) -> str:
    """An answer at temperature 0."""
    return await asyncio.to_thread(Server(config.nodes[NODE].head.port, 0).say, tokens, seed=seed)


async def counters(engine: Engine) -> Counters:
    reading = engine.latest.nodes[NODE].reading
    return await counters_of(LocalTransport(NODE), reading.state_folder, reading.services[0].id)


def detail(operation: Operation, title: str) -> str:
    return next(step.detail for step in operation.steps if step.title.startswith(title))


async def test_the_budget_is_kept_and_no_word_changed(way: Way, middle: Path, tmp_path: Path):
    state = tmp_path / "state"
    free = fleet_of(state, middle, None)
    async with running(free) as engine:
        await bring_up(engine)
        whole = [await say(free, seed=seed) for seed in range(3)]
    budget = 92 * MIB
    bounded = fleet_of(state, middle, budget)
    async with running(bounded) as engine:
        operation = await bring_up(engine)
        assert any("token cycles" in remark for remark in operation.remarks)
        assert "the shim counts" in detail(operation, "See that the limit")
        record = engine.latest.nodes[NODE].reading.services[0]
        bound = bound_of(record.facts)
        assert bound.way is way and bound.limit == budget
        assert [await say(bounded, seed=seed) for seed in range(3)] == whole
        group = group_of(record.pid)
        assert group.peak <= budget + 64 * 1024 and group.limit == budget and group.kills == 0
        found = await counters(engine)
        assert found.exact and 0.2 < found.decode.hit_rate < 1
        # Evicted and read again: more has come from the disk than all experts that were ever asked for.
        cells = [found.cell(layer, expert) for layer in range(found.layers) for expert in range(found.experts)]
        touched = sum(any(cell) for cell in cells)
        expert_bytes = found.token_bytes // (found.used * found.moe_layers)
        assert found.decode.missing + found.prompt.missing > touched * expert_bytes
    assert put_back(bound)
    plain = fleet_of(state, middle, budget, shim=False)
    async with running(plain) as engine:
        await bring_up(engine)
        assert [await say(plain, seed=seed) for seed in range(3)] == whole
        assert not list(state.glob("services/*/experts.stats"))


def put_back(bound: Bound) -> bool:
    """Whether a limit has left nothing on this machine."""
    return not (bound.group and Path(bound.group).exists()) and all(
        Path(setting).read_text().strip() == str(was) for setting, _, was in bound.readahead)


class Group:
    """What the cgroup of a process says."""

    def __init__(self, folder: Path) -> None:
        def figure(*names: str) -> int:
            return next(int((folder / name).read_text()) for name in names if (folder / name).exists())

        self.limit = figure("memory.limit_in_bytes", "memory.max")
        self.peak = figure("memory.max_usage_in_bytes", "memory.peak")
        events = next(folder / name for name in ("memory.oom_control", "memory.events") if (folder / name).exists())
        self.kills = int(dict(line.split() for line in events.read_text().splitlines())["oom_kill"])


def group_of(pid: int) -> Group:
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        root = "/sys/fs/cgroup/memory" if "memory" in controllers.split(",") else "/sys/fs/cgroup"
        if "memory" in controllers.split(",") or (not controllers and Path(root + path, "memory.max").exists()):
            return Group(Path(root + path))
    raise AssertionError("it is in no group of memory")


async def test_stopped_and_started_again_it_is_inside_its_limit_again(way: Way, middle: Path, tmp_path: Path):
    config = fleet_of(tmp_path / "state", middle, 110 * MIB)
    async with running(config) as engine:
        await bring_up(engine)
        record = engine.latest.nodes[NODE].reading.services[0]
        operation = await engine.outcome(engine.submit(RestartService(NODE, record.id)))
        assert operation.state is OperationState.DONE, operation.problem
        again = engine.latest.nodes[NODE].reading.services[0]
        assert again.pid != record.pid and group_of(again.pid).limit == 110 * MIB
        operation = await engine.outcome(engine.submit(StopService(NODE, record.id)))
        assert operation.state is OperationState.DONE, operation.problem
        assert put_back(bound_of(record.facts))        # the pid file stays for a start, the limit does not


async def test_a_head_that_fails_leaves_no_limit_behind(way: Way, middle: Path, tmp_path: Path):
    config = fleet_of(tmp_path / "state", middle, 110 * MIB, arguments=("--override-kv", "nonsense"))
    async with running(config) as engine:
        operation = await engine.outcome(engine.submit(BringUp("")))
        assert operation.state is OperationState.FAILED
    ground = await look(LocalTransport(NODE), [])
    service = f"quarterdeck-coordinator-{config.nodes[NODE].head.port}"
    assert not [root for root in (ground.first, ground.second) if root and (Path(root) / service).exists()]


@pytest.mark.parametrize(("arguments", "env", "sentence"), [
    (("--no-mmap",), {}, "--no-mmap in extra_args reads the whole model into memory that cannot be evicted."),
    (("--cache-ram", "8192"), {}, "Give it 8."),
    ((), {"LLAMA_ARG_MLOCK": "1"}, "LLAMA_ARG_MLOCK in env of the head is --mlock"),
])
async def test_what_breaks_the_budget_is_refused(way: Way, small: Path, tmp_path: Path, arguments, env, sentence):
    async with running(fleet_of(tmp_path / "state", small, 200 * MIB, arguments=arguments, env=env)) as engine:
        operation = await engine.outcome(engine.submit(BringUp("")))
    assert operation.state in (OperationState.REFUSED, OperationState.FAILED)
    assert sentence in operation.problem.what + " " + operation.problem.remedy, operation.problem


async def test_less_than_a_token_cycle_is_refused_with_what_would_do(way: Way, middle: Path, tmp_path: Path):
    async with running(fleet_of(tmp_path / "state", middle, 64 * MIB)) as engine:
        operation = await engine.outcome(engine.submit(BringUp("")))
    assert operation.state in (OperationState.REFUSED, OperationState.FAILED)
    assert "not one would ever be hit" in operation.problem.what and "or more" in operation.problem.remedy


async def test_a_file_that_somebody_else_holds_in_memory_is_refused(way: Way, middle: Path, tmp_path: Path):
    with middle.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as held:
        assert sum(held[at] for at in range(0, len(held), 4096)) >= 0       # every page is mapped
        async with running(fleet_of(tmp_path / "state", middle, 110 * MIB)) as engine:
            operation = await engine.outcome(engine.submit(BringUp("")))
    assert operation.state is OperationState.FAILED
    assert "stay in the page cache, outside the budget" in operation.problem.what
    assert f"Process {os.getpid()} has it mapped." in operation.problem.what


async def test_what_was_in_the_page_cache_is_dropped_first(way: Way, middle: Path, tmp_path: Path):
    await asyncio.to_thread(middle.read_bytes)
    config = fleet_of(tmp_path / "state", middle, 110 * MIB)
    async with running(config) as engine:
        operation = await bring_up(engine)
        assert detail(operation, "Take the model out of the page cache") == "empty"
        await say(config)
        found = await counters(engine)
        assert found.decode.missing + found.prompt.missing > 0


async def test_a_budget_that_holds_all_needs_no_shim(way: Way, small: Path, tmp_path: Path):
    async with running(fleet_of(tmp_path / "state", small, 200 * MIB)) as engine:
        operation = await bring_up(engine)
        assert any("fits into 200 MiB whole" in remark for remark in operation.remarks)
        assert not [step for step in operation.steps if "shim" in step.title]
    assert replace(operation) == operation
