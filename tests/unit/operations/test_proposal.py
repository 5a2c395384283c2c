"""What is proposed is what comes up, and what comes up holds what was planned, device by device."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.config.schema import FleetConfig, SplitMode
from fleet.model import DeploymentState, PlacementState, ServiceKind
from fleet.planning.propose import WhatIf

from .here import NODE, bring_up, running, service, tear_down, until, with_model, with_node

pytestmark = [pytest.mark.engine, pytest.mark.timeout(120)]
MIB = 1 << 20


@pytest.mark.parametrize("changes", [
    {"context": None, "slots": None, "mode": SplitMode.MEMORY}, {"context": 8192, "slots": 2, "kv_type_k": "q8_0"}],
    ids=["the largest context", "pinned"])
async def test_planned_and_real_agree_in_weights_kv_and_buffers(config: FleetConfig, changes: dict) -> None:
    async with running(with_model(config, **changes)) as engine:
        proposal = await engine.propose()
        assert proposal.fits and proposal.problem is None
        await bring_up(engine)
        snapshot = await until(engine, lambda s: s.deployment.state is DeploymentState.SERVING)
        placement = snapshot.deployment.placement
        assert placement.state is PlacementState.MATCHES and placement.problem is None
        assert snapshot.deployment.context == proposal.context
        planned = {share.device: share for share in placement.planned}
        assert {d.name: (d.layers, d.weights, d.kv) for d in proposal.devices if d.layers} == {
            name: (s.layers, s.model_bytes, s.kv_bytes) for name, s in planned.items() if name != "CPU"}
        for real in placement.real:
            if real.device == "CPU":
                continue
            plan = planned[real.device]
            assert real.model_bytes == pytest.approx(plan.model_bytes, rel=0.05)
            assert real.kv_bytes == pytest.approx(plan.kv_bytes, rel=0.05, abs=MIB)
            assert real.compute_bytes == pytest.approx(plan.compute_bytes, rel=0.05, abs=32 * MIB)
        assert (await bring_up(engine)).steps == (), "a second one has nothing to do"
        await tear_down(engine)


async def test_a_part_of_the_layers_on_the_heads_processor_is_where_it_was_planned(config: FleetConfig) -> None:
    async with running(with_model(config, gpu_layers=10)) as engine:
        assert (await engine.propose()).host.layers == 9
        await bring_up(engine)
        snapshot = await until(engine, lambda s: s.deployment.state is DeploymentState.SERVING)
        assert "-ngl 10" in " ".join(service(snapshot, ServiceKind.COORDINATOR).record.argv)
        assert snapshot.deployment.placement.state is PlacementState.MATCHES
        await tear_down(engine)


async def test_a_proposal_does_nothing_and_what_if_moves_it(config: FleetConfig, state: Path) -> None:
    async with running(config) as engine:
        plain = await engine.propose()
        alone = await engine.propose("gemma", WhatIf(nodes=(), context=4096))
        assert (plain.context, alone.context, plain.host.layers, alone.host.layers) == (512, 4096, 0, 19)
        assert any("alone is faster" in sentence for sentence in plain.suggestions)
        assert not (state / "services").exists()


async def test_memory_that_the_user_gives_counts_and_not_what_was_read(config: FleetConfig) -> None:
    async with running(with_node(config, vram={"CPU": 20 * MIB})) as engine:
        proposal = await engine.propose()
    assert not proposal.fits and proposal.problem.code == "no-room"
    assert "2 devices and the main memory of here can hold" in proposal.problem.what and proposal.head == NODE


async def test_an_output_matrix_that_no_worker_holds_stays_on_the_head(config: FleetConfig) -> None:
    """170 MiB of it do not go into 100; the layers do, and the head has it in its memory anyway."""
    async with running(with_node(config, vram={"CPU": 100 * MIB})) as engine:
        proposal = await engine.propose()
        assert proposal.output_on_host and proposal.flags[:2] == ("-ot", r"^token_embd\.weight$=CPU")
        await bring_up(engine)
        snapshot = await until(engine, lambda s: s.deployment.state is DeploymentState.SERVING)
        held = {share.device: share.model_bytes for share in snapshot.deployment.placement.real}
        assert held["CPU"] > 160 * MIB and held["RPC0"] + held["RPC1"] < 80 * MIB
        assert snapshot.deployment.placement.state is PlacementState.MATCHES
        await tear_down(engine)
