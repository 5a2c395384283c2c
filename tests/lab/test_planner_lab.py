"""Plans on real hosts with little memory: what loads where a split by hand does not, and sits where it was planned."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from fleets import MODEL, bring_up, fleet_of, running, tear_down, until

from fleet.config.schema import FleetConfig, SplitMode
from fleet.model import DeploymentState, PlacementState, Share, Snapshot

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]
MIB = 1 << 20


@pytest.fixture(autouse=True)
def _memory(lab):
    from fleetlab.memory import can_limit

    if not can_limit():
        pytest.skip("this kernel does not let us limit memory by control groups")


async def served(config: FleetConfig) -> Snapshot:
    """What comes up, taken down again."""
    async with running(config) as engine:
        try:
            await bring_up(engine)
            return await until(engine, lambda s: s.deployment.state is DeploymentState.SERVING)
        finally:
            await tear_down(engine)


def held(shares: tuple[Share, ...]) -> dict[str, int]:
    """Bytes of weights and KV by the worker that holds them."""
    return {share.endpoint: (share.model_bytes or 0) + (share.kv_bytes or 0) for share in shares
            if share.endpoint and share.model_bytes}


@contextmanager
def by_ssh(lab, node: str, *command: str):
    """A program in a node, started as anybody would: it lives in the node's control group. Ended with the block."""
    with subprocess.Popen(["ssh", "-tt", "-F", lab.ssh_config, node, *command], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


async def test_the_probe_sees_what_a_limited_node_has(lab):
    node = lab.plain[1]
    lab.memory(node, 700)
    async with running(fleet_of(lab, *lab.plain[:2])) as engine:
        memory = engine.latest.nodes[node].reading.memory
    assert memory.total == 700 * MIB
    assert 400 * MIB < memory.available < 700 * MIB


async def test_a_split_by_hand_runs_out_of_memory_where_ours_loads(lab):
    head, large, small = lab.plain[:3]
    from fleetlab.memory import killed

    limits = {large: 560, small: 200}
    for name, mib in limits.items():
        lab.memory(name, mib)
    port = 50190
    with ExitStack() as stack:
        for name in limits:
            worker = stack.enter_context(by_ssh(lab, name, "ggml-rpc-server", "-H", lab.address(name), "-p", str(port),
                                                "-t", "1"))
            assert worker.stdout.readline()
        rpc = ",".join(f"{lab.address(name)}:{port}" for name in limits)
        by_hand = stack.enter_context(by_ssh(
            lab, head, "llama-server", "--rpc", rpc, "-m", lab.model(), "-ngl", "99", "-c", "2048", "-fit", "off",
            "-ts", ",".join(str(mib) for mib in limits.values()), "--port", "8199"))
        text = by_hand.stdout.read()
        assert by_hand.wait() != 0, text[-2000:]
    assert killed(lab.nodes[small]) >= 1 and killed(lab.nodes[large]) == 0, text[-2000:]
    snapshot = await served(fleet_of(lab, head, large, small))
    assert snapshot.deployment.placement.state is PlacementState.MATCHES


@pytest.mark.parametrize(("shape", "limits"), [("", (900, 700)), ("EXPERTS", (800,)), ("LLAMA", (600, 900))])
async def test_what_was_planned_is_what_is_held(lab, shape, limits):
    head, *others = lab.plain[:3]
    workers = others[:len(limits)]
    for name, mib in zip(workers, limits, strict=True):
        lab.memory(name, mib)
    config = fleet_of(lab, head, *workers, workers=tuple(workers))
    if shape:
        import made_models

        file = lab.put_model(f"{shape.lower()}.gguf", lambda path: made_models.make(getattr(made_models, shape), path))
        config = replace(config, models={MODEL: replace(config.models[MODEL], file=file)})
    config = replace(config, models={MODEL: replace(config.models[MODEL], mode=SplitMode.MEMORY)})
    placement = (await served(config)).deployment.placement
    planned, real = held(placement.planned), held(placement.real)
    assert len(planned) == len(workers) and planned.keys() == real.keys()
    for endpoint, size in planned.items():
        assert abs(real[endpoint] - size) <= 0.05 * size


async def test_a_slow_link_is_measured_and_answered_and_the_speed_of_devices_is_learned(lab):
    head, worker = lab.plain[:2]
    lab.link(worker, delay_ms=5)
    async with running(fleet_of(lab, head, worker, workers=(worker,))) as engine:
        try:
            await bring_up(engine)
            snapshot = await until(engine, lambda s: s.deployment.state is DeploymentState.SERVING)
            link = snapshot.link(head, worker)
            assert link is not None and link.round_trip > 0.004 and link.bytes_per_second > 0
            record = next(s.record for s in snapshot.nodes[head].services if s.record.id == "coordinator-8080")
            arguments = " ".join(record.argv)
            assert "-ctxcp 0 --swa-full" in arguments and r"token_embd" in arguments
            async with engine.head_client() as client:
                await client.complete("The capital of France is", n_predict=40, temperature=0)
            snapshot = await until(engine, lambda s: s.nodes[worker].speeds)
            assert 1e8 < snapshot.nodes[worker].speeds["CPU"].bytes_per_second < 1e12
            assert await engine.measure_links(head, [worker]) == {}
        finally:
            await tear_down(engine)
