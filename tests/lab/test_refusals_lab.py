"""Operations over hosts that are away, half there, or lost in the middle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import pytest
from fleets import MODEL, PATIENCE, bring_up, fleet_of, running, tear_down, until, with_node

from fleet.config.schema import FleetConfig
from fleet.engine import Engine
from fleet.events import AdoptProcess, BringUp, EndProcess, TearDown
from fleet.model import DeploymentState, NodeState, Operation, OperationState, ServiceKind, ServiceState, StepState

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]
LOST = (NodeState.UNREACHABLE, NodeState.REFUSED)
SLOW = 60.0      # Mbit/s: the load takes long enough to be broken in the middle


async def do(engine: Engine, command) -> Operation:
    return await engine.outcome(engine.submit(command))


def sentence(operation: Operation) -> str:
    assert operation.problem is not None and operation.problem.code != "internal", operation
    return f"{operation.problem.what} {operation.problem.remedy}"


def is_up(engine: Engine, *names: str):
    return until(engine, lambda s: all(s.nodes[name].state is NodeState.UP for name in names))


def step_runs(engine: Engine, number: int, title: str):
    return until(engine, lambda s: any(o.id == number and any(
        step.title.startswith(title) and step.state is StepState.RUNNING for step in o.steps) for o in s.operations))


@asynccontextmanager
async def fleet_up(lab, config: FleetConfig, **options: object) -> AsyncIterator[Engine]:
    """An engine over lab nodes; afterwards all cables are in, everything is down, and no process is left."""
    async with running(config, **options) as engine:
        try:
            yield engine
        finally:
            for name in config.nodes:
                lab.heal(name)
            await is_up(engine, *config.nodes)
            await tear_down(engine)
    for name in config.nodes:
        listed = lab.exec(name, "ps", "-eo", "args=").stdout
        assert "llama-server" not in listed and "rpc-server" not in listed and "keeper.sh" not in listed, listed


async def test_a_tear_down_says_what_it_could_not_end_and_ends_it_later(lab):
    head, worker, away = lab.plain[:3]
    async with fleet_up(lab, fleet_of(lab, head, worker, away)) as engine:
        await bring_up(engine)
        lab.cut(away)
        await until(engine, lambda s: s.nodes[away].state in LOST)
        shown = next(s for s in engine.latest.nodes[away].services)
        assert (shown.state, shown.detail) == (ServiceState.UNKNOWN, "its node cannot be seen")
        assert engine.latest.deployment.state is DeploymentState.BROKEN
        operation = await do(engine, TearDown())
        assert operation.state is OperationState.FAILED
        assert f"Not ended: worker-50052 on {away} (" in sentence(operation)
        assert "quarterdeck down" in operation.problem.remedy
        for name in (head, worker):
            assert engine.latest.nodes[name].services == ()
        lab.heal(away)
        await is_up(engine, away)
        await tear_down(engine)
        assert engine.latest.nodes[away].services == ()


async def test_a_cockpit_that_never_saw_a_worker_knows_of_it_by_its_head(lab):
    head, away = lab.plain[:2]
    config = fleet_of(lab, head, away)
    async with fleet_up(lab, config) as engine:
        await bring_up(engine)
        lab.cut(away)
        async with running(config) as later:
            operation = await do(later, TearDown())
            assert operation.state is OperationState.FAILED
            assert f"worker-50052 on {away} ({away} is unreachable)" in sentence(operation)


async def test_a_worker_that_is_lost_while_the_model_loads_is_named_and_the_rest_is_undone(lab):
    head, worker, away = lab.plain[:3]
    async with fleet_up(lab, fleet_of(lab, head, worker, away)) as engine:
        lab.link(away, rate_mbit=SLOW)
        number = engine.submit(BringUp())
        await step_runs(engine, number, "Load")
        lab.cut(away)
        operation = await engine.outcome(number)
        assert operation.state is OperationState.FAILED
        assert away in sentence(operation) and operation.problem.code in ("node-lost", "worker-lost"), operation.problem
        assert "could not be undone" in operation.problem.what
        assert engine.latest.nodes[head].services == engine.latest.nodes[worker].services == ()
        lab.heal(away)
        await is_up(engine, away)
        await bring_up(engine)
        await until(engine, lambda s: s.deployment.state is DeploymentState.SERVING)


async def test_a_head_that_is_lost_while_it_loads_is_brought_up_when_it_is_back(lab):
    head, worker = lab.plain[:2]
    async with fleet_up(lab, fleet_of(lab, head, worker)) as engine:
        lab.link(worker, rate_mbit=SLOW)
        number = engine.submit(BringUp())
        await step_runs(engine, number, "Load")
        lab.cut(head)
        operation = await engine.outcome(number)
        assert operation.state is OperationState.FAILED
        assert head in sentence(operation) and "could not be undone" in operation.problem.what
        assert engine.latest.nodes[worker].services == ()
        lab.heal(head)
        lab.link(worker)
        await is_up(engine, head)
        await bring_up(engine)
        await until(engine, lambda s: s.deployment.state is DeploymentState.SERVING)


async def test_the_end_of_the_engine_is_not_held_up_by_a_node_that_is_lost(lab):
    head, worker, away = lab.plain[:3]
    config = fleet_of(lab, head, worker, away)
    engine = Engine(config, discover=False)
    task = asyncio.ensure_future(engine.run())
    assert await engine.settled(PATIENCE)
    lab.link(away, rate_mbit=SLOW)
    number = engine.submit(BringUp())
    await step_runs(engine, number, "Load")
    lab.cut(away)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.wait_for(task, 150)
    operation = await engine.outcome(number)
    assert operation.state is OperationState.CANCELLED and "could not be undone" in operation.problem.what
    lab.heal(away)
    async with fleet_up(lab, config) as later:
        assert [s.record.kind for n in later.latest.nodes.values() for s in n.services] == [ServiceKind.WORKER]


async def test_a_host_without_the_program_is_left_out_or_refused_when_it_is_named(lab):
    head, worker, bare = lab.plain[0], lab.plain[1], lab.one("nollama")
    config = fleet_of(lab, head, worker, bare)
    async with fleet_up(lab, config) as engine:
        planned = await engine.plan(BringUp())
        assert planned.state is OperationState.PLANNED
        assert f"{bare} has no ggml-rpc-server. It takes no part." in planned.remarks
        named = replace(config.models[MODEL], workers=(worker, bare))
        engine.config = replace(config, models={MODEL: named})
        refused = await engine.plan(BringUp())
        assert refused.state is OperationState.REFUSED
        assert f"{bare} has no ggml-rpc-server. The model wants it as a worker." in sentence(refused)
        engine.config = replace(config, models={MODEL: replace(named, head=bare, workers=(worker,))})
        refused = await engine.plan(BringUp())
        assert f"{bare} has no llama-server, so it cannot be the head." in sentence(refused)


async def test_a_host_that_is_down_is_left_out_or_refused_when_it_is_named(lab):
    head, worker, dead = lab.plain[0], lab.plain[1], lab.one("dead")
    config = fleet_of(lab, head, worker, dead)
    async with running(config) as engine:
        planned = await engine.plan(BringUp())
        assert f"{dead} takes no part: it is unreachable." in planned.remarks
        engine.config = replace(config, models={MODEL: replace(config.models[MODEL], workers=(worker, dead))})
        refused = await engine.plan(BringUp())
        assert refused.state is OperationState.REFUSED
        assert f"{dead} is to be a worker, but it is unreachable." in sentence(refused)


async def test_a_foreign_worker_on_a_host_is_named_adopted_or_ended(lab):
    head, worker = lab.plain[:2]
    start = (f"LD_LIBRARY_PATH={lab.bin_inside} setsid {lab.bin_inside}/ggml-rpc-server -H {lab.address(worker)} "
             "-p 50052 -d CPU </dev/null >/dev/null 2>&1 &")
    async with fleet_up(lab, fleet_of(lab, head, worker)) as engine:
        for command in (AdoptProcess, EndProcess):
            lab.exec(worker, start, user="fleet")
            snapshot = await until(engine, lambda s: any(f.port == 50052 for f in s.nodes[worker].foreign))
            process = snapshot.nodes[worker].foreign[0].process
            refused = await engine.plan(BringUp())
            assert refused.state is OperationState.REFUSED
            assert f"is taken by ggml-rpc-server (pid {process.pid})" in sentence(refused)
            done = await do(engine, command(worker, process.pid, process.start_time))
            assert done.state is OperationState.DONE, done.problem
            assert engine.latest.nodes[worker].foreign == ()
            await bring_up(engine)
            await until(engine, lambda s: s.deployment.state is DeploymentState.SERVING)
            await tear_down(engine)


async def test_another_users_worker_is_named_as_such_and_never_ended(lab):
    head, worker = lab.plain[:2]
    start = (f"LD_LIBRARY_PATH={lab.bin_inside} setsid {lab.bin_inside}/ggml-rpc-server -H {lab.address(worker)} "
             "-p 50052 -d CPU </dev/null >/dev/null 2>&1 &")
    lab.exec(worker, start, user="root")
    try:
        async with running(fleet_of(lab, head, worker)) as engine:
            await until(engine, lambda s: any(x.local_port == 50052 for x in s.nodes[worker].reading.sockets))
            refused = await do(engine, BringUp())
            assert refused.state is OperationState.REFUSED and refused.problem.code == "port-taken"
            for foreign in engine.latest.nodes[worker].foreign:
                ended = await do(engine, EndProcess(worker, foreign.process.pid, foreign.process.start_time))
                assert ended.state is OperationState.FAILED and "does not take our signal" in sentence(ended)
        assert "ggml-rpc-server" in lab.exec(worker, "ps", "-eo", "args=").stdout
    finally:
        lab.exec(worker, "pkill -9 -f ggml-rpc-server")


async def test_a_worker_that_may_not_be_reached_is_refused_with_what_to_do(lab):
    """Bound to its loopback alone, and not ours to start."""
    head, worker = lab.plain[:2]
    start = (f"LD_LIBRARY_PATH={lab.bin_inside} setsid {lab.bin_inside}/ggml-rpc-server -H 127.0.0.1 -p 50052 -d CPU "
             "</dev/null >/dev/null 2>&1 &")
    lab.exec(worker, start, user="fleet")
    try:
        config = fleet_of(lab, head, worker)
        config = with_node(config, worker, workers=(replace(config.nodes[worker].workers[0], managed=False),))
        async with running(config) as engine:
            await until(engine, lambda s: any(x.local_port == 50052 for x in s.nodes[worker].reading.sockets))
            refused = await do(engine, BringUp())
            assert refused.state is OperationState.REFUSED and refused.problem.code in ("bad-worker", "dead-worker")
            assert worker in sentence(refused)
    finally:
        lab.exec(worker, "pkill -9 -f ggml-rpc-server")


async def test_a_head_whose_host_lost_its_power_leaves_workers_that_can_be_used_again(lab):
    """No goodbye reached them: their slots are held by a head that is gone, and nothing but a new start frees them."""
    head, worker, other = lab.plain[:3]
    async with fleet_up(lab, fleet_of(lab, head, worker, other)) as engine:
        await bring_up(engine)
        await until(engine, lambda s: s.deployment.state is DeploymentState.SERVING)
        lab.kill(head)
        await until(engine, lambda s: s.deployment.state is DeploymentState.BROKEN)
        lab.boot(head)
        await until(engine, lambda s: s.nodes[head].state is NodeState.UP and not any(
            x.record.alive for x in s.nodes[head].services))
        await bring_up(engine)
        await until(engine, lambda s: s.deployment.state is DeploymentState.SERVING)


async def test_a_model_moves_to_another_head_while_the_first_is_away(lab):
    head, second, third = lab.plain[:3]
    config = fleet_of(lab, head, second, third)
    async with fleet_up(lab, config) as engine:
        await bring_up(engine)
        await until(engine, lambda s: s.deployment.state is DeploymentState.SERVING)
        lab.cut(head)
        await until(engine, lambda s: s.nodes[head].state in LOST)
        engine.config = replace(config, models={MODEL: replace(config.models[MODEL], head=second)})
        planned = await engine.plan(BringUp())
        assert any(f"The head on {head} is not ended" in remark for remark in planned.remarks), planned
        await bring_up(engine)
        snapshot = await until(engine, lambda s: s.deployment.head == second and (
            s.deployment.state is DeploymentState.SERVING))
        assert snapshot.deployment.workers == ((third, "worker-50052"),)
