"""Two cockpits on one fleet: the first acts, the second looks, and may take over."""

from __future__ import annotations

import asyncio

import pytest

import fleet.recovery.presence as presence
from fleet.config.schema import FleetConfig
from fleet.errors import FleetError
from fleet.events import TearDown

from .here import do, running, until


@pytest.fixture(autouse=True)
def two_owners(monkeypatch: pytest.MonkeyPatch):
    """Both cockpits live in this process, so each is given a name of its own; looks follow at once."""
    names = {}

    def owner() -> str:
        task = asyncio.current_task()
        return names.setdefault(id(task), f"somewhere:{len(names) + 1}:1")

    monkeypatch.setattr(presence, "owner", owner)
    monkeypatch.setattr(presence, "LOOK_EVERY", 0.3)


async def test_the_second_cockpit_only_looks_until_it_takes_over(state, tmp_path):
    from .here import fleet_here

    config: FleetConfig = fleet_here(state, "/none.gguf", workers=0)
    async with running(config, interactive=True, tend=True) as first:
        await do(first, TearDown())
        await asyncio.sleep(1.0)
        async with running(config, interactive=True, tend=True) as second:
            seen = await until(second, lambda s: s.other_cockpit)
            assert "process 1 on somewhere" in seen.other_cockpit
            with pytest.raises(FleetError, match="only looks"):
                second.submit(TearDown())
            second.take_over()
            await until(second, lambda s: not s.other_cockpit)
            await until(first, lambda s: s.other_cockpit)
            await do(second, TearDown())
        await until(first, lambda s: not s.other_cockpit)      # the second one has left


async def test_engines_that_are_no_cockpits_hinder_nobody(state):
    from .here import fleet_here

    config = fleet_here(state, "/none.gguf", workers=0)
    async with running(config, interactive=True, tend=True), running(config, tend=True) as verb:
        await do(verb, TearDown())
