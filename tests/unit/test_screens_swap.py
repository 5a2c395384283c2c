"""Changing the model from the keyboard: m chooses, u goes back, and nobody who only looks can do either."""

from dataclasses import replace

import example_fleets as fleets
import pytest
from cockpit_pilot import NARROW, WIDE, cockpit, text_of, until

from app.screens.choose_model import ChooseModelScreen
from app.screens.confirm import ConfirmScreen
from fleet.events import BringUp


def served_before(*recent: str):
    snapshot = fleets.normal()
    return replace(snapshot, deployment=replace(snapshot.deployment, recent=recent))


@pytest.mark.parametrize("size", [WIDE, NARROW])
async def test_m_narrows_the_list_by_letters_plans_and_swaps(size) -> None:
    async with cockpit(fleets.normal(), size) as (engine, app, pilot):
        await pilot.press("m")
        await until(pilot, lambda: isinstance(app.screen, ChooseModelScreen))
        await pilot.press(*"gm7")
        await until(pilot, lambda: "gemma-3-270m" in text_of(app) and "qwen3-32b   " not in text_of(app))
        await until(pilot, lambda: bool(engine.asked))                 # the one under the cursor is planned
        assert engine.asked[0][0] == "gemma-3-270m"
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen) and app.screen.ready)
        assert engine.planned == [BringUp("gemma-3-270m")]
        await pilot.press("y")
        await pilot.pause()
        assert engine.submitted == [BringUp("gemma-3-270m")]


async def test_u_goes_back_to_what_was_served_before() -> None:
    async with cockpit(served_before("gemma-3-270m", "other"), WIDE) as (engine, app, pilot):
        await pilot.press("u")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen) and app.screen.ready)
        await pilot.press("y")
        await pilot.pause()
        assert engine.submitted == [BringUp("gemma-3-270m")]


async def test_without_another_model_u_does_nothing() -> None:
    async with cockpit(fleets.normal(), WIDE) as (engine, app, pilot):
        await pilot.press("u")
        await pilot.pause()
        assert not isinstance(app.screen, ConfirmScreen) and engine.planned == []


async def test_who_only_looks_swaps_nothing() -> None:
    async with cockpit(served_before("gemma-3-270m"), WIDE, read_only=True) as (engine, app, pilot):
        await pilot.press("m", "u")
        await pilot.pause()
        assert not isinstance(app.screen, ChooseModelScreen | ConfirmScreen) and engine.planned == []


async def test_beside_another_cockpit_this_one_only_looks_until_it_takes_over() -> None:
    other = replace(fleets.normal(), other_cockpit="Another Quarterdeck (process 7 on nas)")
    async with cockpit(other, WIDE) as (engine, app, pilot):
        assert "process 7 on nas" in text_of(app) and "T Take over" in text_of(app)
        await pilot.press("m", "d", "b")
        await pilot.pause()
        assert not isinstance(app.screen, ChooseModelScreen | ConfirmScreen)
        await pilot.press("T")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        await pilot.press("y")
        await pilot.pause()
        assert engine.taken_over == 1
