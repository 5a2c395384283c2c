"""Two cockpits on one fleet: the first acts, the second looks, and may take over."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import fleet.recovery.presence as presence
from fleet.engine import Engine
from fleet.errors import FleetError
from fleet.events import TearDown
from fleet.recovery.presence import Presence

from .here import NODE, PATIENCE, do, fleet_here, running, until


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "LOOK_EVERY", 0.3)


def named(engine: Engine, number: int) -> Presence:
    """Both cockpits live in this process, so each is given a name of its own."""
    assert engine._presence is not None
    engine._presence.owner = f"somewhere:{number}:1"
    return engine._presence


async def has_it(claim: Presence) -> None:
    async with asyncio.timeout(PATIENCE):
        while claim.claimed != NODE:  # noqa: ASYNC110 (a lease on a disk tells of no event)
            await asyncio.sleep(0.05)


async def test_the_second_cockpit_only_looks_until_it_takes_over(state: Path):
    config = fleet_here(state, "/none.gguf", workers=0)
    async with running(config, interactive=True, tend=True) as first:
        await has_it(named(first, 1))
        await do(first, TearDown())
        async with running(config, interactive=True, tend=True) as second:
            claim = named(second, 2)
            seen = await until(second, lambda s: s.other_cockpit)
            assert "on somewhere" in seen.other_cockpit
            with pytest.raises(FleetError, match="only looks"):
                second.submit(TearDown())
            second.take_over()
            await has_it(claim)
            await until(first, lambda s: s.other_cockpit)
            assert not second.latest.other_cockpit
            await do(second, TearDown())
        await until(first, lambda s: not s.other_cockpit)      # the second one has left


async def test_engines_that_are_no_cockpits_hinder_nobody(state: Path):
    config = fleet_here(state, "/none.gguf", workers=0)
    async with running(config, interactive=True, tend=True), running(config, tend=True) as verb:
        await do(verb, TearDown())
