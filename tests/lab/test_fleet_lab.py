"""A model over three real hosts: found, brought up, broken by hand, brought up again, taken down."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace

import pytest
from fleets import bring_up, fleet_of, running, tear_down, until

from fleet.config.schema import DiscoveryConfig, FleetConfig, RpcMode, SshConfig
from fleet.engine import Engine
from fleet.events import BringUp
from fleet.model import (
    DeploymentState,
    NodeState,
    OperationState,
    PlacementState,
    QuestionKind,
    ServiceKind,
    ServiceState,
)

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]


def engine_processes(lab, *names: str) -> list[str]:
    """What of llama.cpp runs in these nodes, past everything that we say of it."""
    found = []
    for name in names:
        listed = lab.exec(name, "ps", "-eo", "pid=,args=").stdout.splitlines()
        found += [line for line in listed if any(word in line for word in ("llama-server", "rpc-server", "quarterdeck"))
                  and "--quarterdeck-begin--" not in line]     # the shell of a probe that is just looking
    return found


def service(snapshot, node: str, kind: ServiceKind):
    return next(s for s in snapshot.nodes[node].services if s.record.kind is kind)


@pytest.fixture
async def three(lab):
    """Three plain nodes: the first is the head, the others are workers. Everything is down afterwards."""
    names = lab.plain[:3]
    config = fleet_of(lab, *names)
    async with running(config) as engine:
        yield engine, names
        await until(engine, lambda s: all(n.state is NodeState.UP for n in s.nodes.values() if n.name in names))
        await tear_down(engine)
    assert engine_processes(lab, *names) == []
    for name in names:
        assert lab.exec(name, "ls -A ~fleet/.local/state/quarterdeck/services", user="root").stdout == ""


async def test_a_model_comes_up_over_three_hosts_and_sits_where_it_was_planned(lab, three):
    engine, (head, *workers) = three
    await bring_up(engine)
    snapshot = await until(engine, lambda s: s.deployment.state is DeploymentState.SERVING)
    deployment = snapshot.deployment
    assert deployment.head == head
    assert [node for node, _ in deployment.workers] == workers
    assert deployment.placement.state is PlacementState.MATCHES
    planned = {s.device: s for s in deployment.placement.planned if s.endpoint}
    real = {s.device: s for s in deployment.placement.real if s.endpoint}
    assert planned.keys() == real.keys() == {"RPC0", "RPC1"}
    for device, share in planned.items():
        assert abs(real[device].model_bytes - share.model_bytes) < 1 << 20
    async with engine.head_client() as client:
        answer = await client.complete("The capital of France is", n_predict=6, temperature=0)
    assert answer.tokens == 6 and answer.text.strip()
    again = await bring_up(engine)
    assert again.steps == (), "a second bring-up of what serves does nothing"


async def test_a_killed_worker_is_seen_and_bringing_up_again_mends_it(lab, three):
    engine, (_head, *workers) = three
    await bring_up(engine)
    await until(engine, lambda s: s.deployment.state is DeploymentState.SERVING)
    lab.exec(workers[0], "pkill -9 -f ggml-rpc-server")
    snapshot = await until(engine, lambda s: s.deployment.state is DeploymentState.BROKEN, 5.0)
    assert snapshot.deployment.problem.code == "worker-dead"
    assert service(snapshot, workers[0], ServiceKind.WORKER).state is ServiceState.FAILED
    await bring_up(engine)
    await until(engine, lambda s: s.deployment.state is DeploymentState.SERVING)


async def test_a_killed_head_is_seen_and_its_workers_live_on(lab, three):
    engine, (head, *workers) = three
    await bring_up(engine)
    before = await until(engine, lambda s: s.deployment.state is DeploymentState.SERVING)
    pids = [service(before, name, ServiceKind.WORKER).record.pid for name in workers]
    lab.exec(head, "pkill -9 -f llama-server")
    await until(engine, lambda s: s.deployment.state is DeploymentState.BROKEN, 5.0)
    await bring_up(engine)
    after = await until(engine, lambda s: s.deployment.state is DeploymentState.SERVING)
    assert [service(after, name, ServiceKind.WORKER).record.pid for name in workers] == pids


async def test_a_worker_whose_power_is_cut_breaks_the_deployment_and_nothing_else(lab, three):
    engine, (_head, *workers) = three
    await bring_up(engine)
    await until(engine, lambda s: s.deployment.state is DeploymentState.SERVING)
    lab.kill(workers[1])
    snapshot = await until(engine, lambda s: s.deployment.state is DeploymentState.BROKEN)
    assert snapshot.deployment.problem.code == "worker-unseen"
    assert snapshot.nodes[workers[0]].state is NodeState.UP
    lab.boot(workers[1])
    await until(engine, lambda s: s.nodes[workers[1]].state is NodeState.UP)
    await bring_up(engine)
    await until(engine, lambda s: s.deployment.state is DeploymentState.SERVING)


async def test_services_outlive_the_engine_and_are_found_again(lab, three):
    engine, _names = three
    await bring_up(engine)
    async with running(engine.config) as other:
        snapshot = await until(other, lambda s: s.deployment.state is DeploymentState.SERVING)
        assert snapshot.deployment.placement.state is PlacementState.MATCHES
        assert (await bring_up(other)).steps == ()


async def test_an_operation_that_is_cancelled_leaves_nothing(lab, three):
    engine, names = three
    number = engine.submit(BringUp())
    await until(engine, lambda s: any(o.id == number and any(
        step.title.startswith("Load") and step.started for step in o.steps) for o in s.operations))
    engine.cancel(number)
    operation = await engine.outcome(number)
    assert operation.state is OperationState.CANCELLED
    assert engine_processes(lab, *names) == []


async def test_two_heads_never_share_a_worker(lab, three):
    """A worker that another fleet's head holds is refused before anything starts, and lives on."""
    engine, (_head, *workers) = three
    await bring_up(engine)
    before = await until(engine, lambda s: s.deployment.state is DeploymentState.SERVING)
    other = fleet_of(lab, workers[0], workers[1], head=workers[0])
    other = replace(other, fleet="other")
    async with running(other) as second:
        refused = await second.outcome(second.submit(BringUp()))
        assert refused.state is OperationState.REFUSED
    after = await until(engine, lambda s: s.deployment.state is DeploymentState.SERVING)
    for name in workers:
        assert service(after, name, ServiceKind.WORKER).record.pid == service(
            before, name, ServiceKind.WORKER).record.pid


async def test_a_tunnel_carries_the_traffic_when_it_is_wanted(lab):
    head, worker = lab.plain[:2]
    config = replace(fleet_of(lab, head, worker), rpc=RpcMode.TUNNEL)
    async with running(config) as engine:
        try:
            await bring_up(engine)
            snapshot = await until(engine, lambda s: s.deployment.state is DeploymentState.SERVING)
            listening = [s.local_host for s in snapshot.nodes[worker].reading.sockets
                         if s.listening and s.local_port == 50052]
            assert listening == ["127.0.0.1"]
            async with engine.head_client() as client:
                assert (await client.complete("1 2 3", n_predict=3)).tokens == 3
        finally:
            await tear_down(engine)
    assert engine_processes(lab, head, worker) == []


async def test_machines_are_found_by_mdns_with_nothing_configured(lab):
    config = FleetConfig(
        discovery=DiscoveryConfig(interfaces=(lab.root_addr,), ssh_config=False),
        ssh=SshConfig(user="fleet", identity_files=(lab.key,), known_hosts=lab.known_hosts, agent=False))
    async with running(config, discover=True) as engine:
        wanted = {lab.nodes[name]["hostname"] for name in lab.plain}
        snapshot = await until(engine, lambda s: wanted <= {n.name for n in s.nodes.values()
                                                            if n.state is NodeState.UP and not n.local})
        assert all("mdns" in snapshot.nodes[name].sources for name in wanted)


async def test_one_hosts_trouble_is_nobody_elses(lab):
    """Every trait at once, each with its own state and sentence."""
    names = tuple(lab.nodes)
    config = fleet_of(lab, *names, head=lab.plain[0])
    async with running(config) as engine:
        snapshot = engine.latest
        states = {name: node.state for name, node in snapshot.nodes.items()}
        for name in (*lab.plain, lab.one("fish"), lab.one("noisy"), lab.one("nopython"), lab.one("slow")):
            assert states[name] is NodeState.UP, snapshot.nodes[name].problem
        assert states[lab.one("dead")] is NodeState.UNREACHABLE
        assert states[lab.one("drop")] is NodeState.UNREACHABLE
        assert states[lab.one("password")] is NodeState.LOCKED
        assert states[lab.one("newkey")] is NodeState.NEW_KEY
        assert states[lab.one("changedkey")] is NodeState.CHANGED_KEY
        codes = {name: {p.code for p in node.reading.problems} for name, node in snapshot.nodes.items() if node.reading}
        assert "no-python" in codes[lab.one("nopython")]
        assert "no-llama" in codes[lab.one("nollama")]
        for node in snapshot.nodes.values():
            assert node.state is NodeState.UP or node.local or (node.problem.what and node.problem.remedy), node


async def test_a_dead_host_delays_no_other(lab):
    """The healthy node is read several times while the dropping one still times out."""
    dropping, healthy = lab.one("drop"), lab.plain[0]
    config = fleet_of(lab, healthy, dropping)
    engine = Engine(config, discover=False)
    task = asyncio.ensure_future(engine.run())
    try:
        snapshot = await until(engine, lambda s: s.nodes.get(healthy) and s.nodes[healthy].read_at)
        first = snapshot.nodes[healthy].read_at
        await until(engine, lambda s: s.nodes[healthy].read_at > first)
        assert engine.latest.nodes[dropping].state in (NodeState.SEEN, NodeState.CONNECTING)
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_a_password_is_asked_for_and_kept_nowhere(lab):
    name = lab.one("password")
    engine = Engine(fleet_of(lab, name), discover=False, interactive=True)
    task = asyncio.ensure_future(engine.run())
    try:
        snapshot = await until(engine, lambda s: s.questions)
        (question,) = snapshot.questions
        assert (question.kind, question.node) == (QuestionKind.PASSWORD, name)
        engine.answer(question.id, lab.nodes[name]["password"])
        snapshot = await until(engine, lambda s: s.nodes[name].state is NodeState.UP)
        assert snapshot.questions == ()
        assert lab.nodes[name]["password"] not in repr(snapshot)
        lab.kill_sshd(name)
        await until(engine, lambda s: s.nodes[name].state is not NodeState.UP)
        await until(engine, lambda s: s.nodes[name].state is NodeState.UP)
        assert not engine.latest.questions, "a lost connection is made again with what was answered"
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_a_host_key_never_seen_is_shown_and_taken_only_by_a_person(lab):
    name = lab.one("newkey")
    engine = Engine(fleet_of(lab, name), discover=False, interactive=True)
    task = asyncio.ensure_future(engine.run())
    try:
        (question,) = (await until(engine, lambda s: s.questions)).questions
        assert question.kind is QuestionKind.HOST_KEY and "SHA256:" in question.detail
        engine.answer(question.id, None)
        await until(engine, lambda s: s.nodes[name].state is NodeState.NEW_KEY)
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_goodbye_and_return_are_shown(lab):
    """A machine that only mDNS knows and that we may not sign in to."""
    config = FleetConfig(
        discovery=DiscoveryConfig(interfaces=(lab.root_addr,), ssh_config=False),
        ssh=SshConfig(user="nobody-here", identity_files=(), known_hosts=lab.known_hosts, agent=False))
    name = lab.nodes[lab.plain[0]]["hostname"]
    async with running(config, discover=True) as engine:
        await until(engine, lambda s: name in s.nodes and s.nodes[name].state is NodeState.LOCKED)
        lab.exec(lab.plain[0], "pkill -TERM avahi-daemon")
        await until(engine, lambda s: s.nodes[name].state is NodeState.GONE)
        await until(engine, lambda s: s.nodes[name].state is not NodeState.GONE)
