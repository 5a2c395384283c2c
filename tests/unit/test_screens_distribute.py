"""One key on the Models screen: choose machines, read the plan, have a model brought to them."""

from __future__ import annotations

from dataclasses import replace

import example_fleets as fleets
from cockpit_pilot import cockpit, text_of, until

from app.screens.choose_nodes import ChooseNodesScreen
from app.screens.confirm import ConfirmScreen
from app.screens.models import ModelsScreen
from fleet.events import Distribute
from fleet.model import NodeState, Snapshot


def one_has_it() -> Snapshot:
    """The usual fleet, whose models are on one machine alone."""
    snapshot = fleets.normal()
    return replace(snapshot, nodes={name: node if name == "atlas" or node.reading is None else replace(
        node, reading=replace(node.reading, models=(), unfinished=())) for name, node in snapshot.nodes.items()})


async def on_models(pilot, app) -> None:
    await pilot.press("3")
    await until(pilot, lambda: isinstance(app.screen, ModelsScreen) and app.screen.ready
                and app.screen.selected is not None)


async def test_chosen_machines_are_named_with_the_bytes_before_anything_is_submitted() -> None:
    async with cockpit(one_has_it()) as (engine, app, pilot):
        await on_models(pilot, app)
        model = app.screen.selected
        await pilot.press("d")
        await until(pilot, lambda: isinstance(app.screen, ChooseNodesScreen))
        others = [node.name for node in one_has_it().nodes.values()
                  if node.name not in model.paths and (node.configured or node.state is NodeState.UP)]
        assert all(name in text_of(app) for name in others) and others
        await pilot.press("a", "space", "enter")        # all, but not the first
        chosen = tuple(others[1:]) or (others[0],)
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen) and app.screen.ready)
        shown = text_of(app)
        assert "Distribute" in shown and ", ".join(chosen) in shown and "to each of" in shown
        assert engine.submitted == []
        await pilot.press("y")
        await until(pilot, lambda: bool(engine.submitted))
        (command,) = engine.submitted
        assert isinstance(command, Distribute) and command.to == chosen
        node, _, path = command.model.partition(":")
        assert model.paths[node] == path


async def test_escape_leaves_it_and_read_only_has_no_such_key() -> None:
    async with cockpit(one_has_it()) as (engine, app, pilot):
        await on_models(pilot, app)
        screen = app.screen
        await pilot.press("d")
        await until(pilot, lambda: isinstance(app.screen, ChooseNodesScreen))
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is screen)
        assert engine.submitted == [] and engine.planned == []
    async with cockpit(one_has_it(), read_only=True) as (engine, app, pilot):
        await on_models(pilot, app)
        await pilot.press("d")
        await pilot.pause()
        assert isinstance(app.screen, ModelsScreen) and engine.planned == []
