"""The Split and Models screens as a person meets them, on two sizes, with real plans of described hardware."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import example_fleets as fleets
import pytest
from cockpit_pilot import NARROW, WIDE, check_golden, cockpit, show, text_of, told, until
from scripted_engine import ScriptedEngine
from textual.pilot import Pilot

from app.cockpit import CockpitApp
from app.present import split
from app.present.fleet_models import Known
from app.screens.detail import DetailScreen
from app.screens.models import ModelsScreen
from app.screens.split import SplitScreen
from fleet.errors import PlanRefused
from fleet.model import ModelFile, Placement, PlacementState, Share, Snapshot
from fleet.planning.described import described
from fleet.planning.ladder import Mode
from fleet.planning.propose import WhatIf, propose
from widgets.entries import text_of_entries
from widgets.entry_view import EntryView
from widgets.row_table import RowTable
from widgets.spans import plain
from widgets.split_bar import Part, SplitBar, Tone, split_bar

SIZES = pytest.mark.parametrize("size", [WIDE, NARROW, (60, 16)], ids=lambda size: f"{size[0]}x{size[1]}")
QWEN = "/models/Qwen3-32B-Q4_K_M.gguf"
GEMMA = "/models/gemma-3-270m-it-Q4_K_M.gguf"
HEADERS = described("""
nodes: {a: {ram: 8GiB}}
models:
  big: {layers: 64, width: 5120, vocabulary: 152064, heads: 40, kv_heads: 8, size: 18.6GiB, parameters: 32.8,
        context: 131072}
  small: {layers: 18, width: 640, vocabulary: 262144, heads: 4, kv_heads: 1, size: 253MB, parameters: 0.27,
          context: 32768}
""").headers
pytestmark = pytest.mark.timeout(60)


@asynccontextmanager
async def on_screen(key: str, snapshot: Snapshot, size: tuple[int, int] = WIDE,
                    **options: object) -> AsyncIterator[tuple[ScriptedEngine, CockpitApp, Pilot[int]]]:
    async with cockpit(snapshot, size, **options) as (engine, app, pilot):
        engine.model_headers = {QWEN: HEADERS["big"], GEMMA: HEADERS["small"]}
        await pilot.press(key)
        yield engine, app, pilot


async def settled(pilot: Pilot[int], app: CockpitApp) -> SplitScreen:
    await until(pilot, lambda: isinstance(app.screen, SplitScreen) and app.screen.ready
                and not app.screen.planned.working)
    assert isinstance(app.screen, SplitScreen)
    return app.screen


async def known(pilot: Pilot[int], app: CockpitApp, path: str) -> ModelsScreen:
    await until(pilot, lambda: isinstance(app.screen, ModelsScreen) and app.screen.ready
                and (key := app.screen._subject) and app.screen.selected is not None
                and path in app.screen.selected.places[0].paths
                and app.screen._known.get(key, Known()).partners is not None)
    assert isinstance(app.screen, ModelsScreen)
    return app.screen


# -- split ---------------------------------------------------------------------------------------


@SIZES
async def test_the_split_of_what_serves_planned_above_real(size: tuple[int, int]) -> None:
    async with on_screen("2", fleets.normal(), size) as (_, app, pilot):
        await settled(pilot, app)
        check_golden(app, f"split-normal-{size[0]}x{size[1]}")


async def test_a_head_that_holds_all_is_said_in_words() -> None:
    snapshot = fleets.normal()
    local = replace(snapshot.deployment, placement=fleets.placement(PlacementState.LOCAL))
    async with on_screen("2", replace(snapshot, deployment=local)) as (_, app, pilot):
        await settled(pilot, app)
        shown = text_of(app)
        assert "✕ healthy but local" in shown and "The head holds every byte itself" in shown


@SIZES
async def test_the_plan_moves_with_what_is_changed_in_thought(size: tuple[int, int]) -> None:
    async with on_screen("2", fleets.normal(), size) as (engine, app, pilot):
        screen = await settled(pilot, app)
        first = screen.planned.proposal
        assert first is not None and first.fits
        await pilot.press("plus", "v", "t")
        await settled(pilot, app)
        proposal = screen.planned.proposal
        assert proposal is not None and proposal.context == first.context * 2
        assert (proposal.type_k, proposal.mode) == ("q8_0", Mode.MEMORY)
        assert not screen.check_action("bring_up", ()), "what is only thought of is not what would be brought up"
        check_golden(app, f"split-what-if-{size[0]}x{size[1]}")
        await pilot.press("escape")
        await settled(pilot, app)
        assert screen.planned.what_if == WhatIf() and screen.planned.proposal == first
        assert engine.submitted == [] and engine.planned == []


async def test_a_device_is_left_out_and_taken_back() -> None:
    async with on_screen("2", fleets.normal()) as (_, app, pilot):
        screen = await settled(pilot, app)
        table = app.screen.query_one("#devices", RowTable)
        table.select(next(row.key for row in table.rows if row.key.startswith("atlas\0CUDA0\0planned")))
        await pilot.press("space")
        await settled(pilot, app)
        assert screen.planned.what_if.without == {("atlas", "CUDA0")}
        proposal = screen.planned.proposal
        assert proposal is not None
        assert not any(d.layers for d in proposal.devices if (d.node, d.device) == ("atlas", "CUDA0"))
        await pilot.press("escape")
        await settled(pilot, app)
        assert screen.planned.what_if == WhatIf()


def test_two_workers_of_one_machine_have_a_row_each_and_their_own_real_one() -> None:
    here = "127.0.0.1:50052", "127.0.0.1:50053"
    shares = tuple(Share("desk", f"RPC{n}", endpoint, 0.5, 9, (n + 1) * fleets.GIB) for n, endpoint in enumerate(here))
    normal = fleets.normal()
    snapshot = replace(normal, deployment=replace(normal.deployment, model="big", placement=Placement(
        shares, shares, PlacementState.MATCHES)))
    found = described("""
nodes: {desk: {ram: 8GiB}, far: {ram: 64GiB}}
models: {big: {layers: 64, width: 5120, vocabulary: 152064, heads: 40, kv_heads: 8, size: 18.6GiB}}
""")
    proposal = propose(found.snapshot, found.config, found.headers["big"], "big", WhatIf(mode=Mode.MEMORY))
    twice = tuple(replace(proposal.devices[0], node="desk", device="CPU", name=f"RPC{n}") for n in range(2))
    rows = split.rows(split.Planned("big", proposal=replace(proposal, devices=twice)), snapshot)
    assert len({row.key for row in rows}) == len(rows)
    real = [plain(row.cells[4]) for row in rows if "\0real\0" in row.key]
    assert real == ["1.0 GiB", "2.0 GiB"], "each below its own"


async def test_another_head_can_be_thought_of() -> None:
    async with on_screen("2", fleets.normal()) as (engine, app, pilot):
        screen = await settled(pilot, app)
        await pilot.press("h")
        await settled(pilot, app)
        assert screen.planned.what_if.head == "bolt" and engine.asked[-1][1].head == "bolt"


async def test_what_cannot_be_planned_says_why_and_what_to_do() -> None:
    async with cockpit(fleets.normal(), NARROW) as (engine, app, pilot):
        engine.no_plan = PlanRefused("No node that is up has the file.", "Copy it to one.")
        await pilot.press("2")
        await settled(pilot, app)
        shown = text_of(app)
        assert "✕ no plan" in shown and "No node that is up has the file." in shown and "Copy it to one." in shown


async def test_a_model_that_does_not_fit_gets_a_reason_and_suggestions() -> None:
    async with on_screen("2", fleets.normal()) as (_, app, pilot):
        screen = await settled(pilot, app)
        for _ in range(8):
            await pilot.press("plus")
        await settled(pilot, app)
        assert screen.planned.proposal is not None and not screen.planned.proposal.fits
        assert "✕ it does not fit" in text_of(app) and "better" in text_of(app)


async def test_a_new_fleet_is_planned_for_anew_and_new_figures_alone_are_not() -> None:
    async with on_screen("2", fleets.normal()) as (engine, app, pilot):
        await settled(pilot, app)
        asked = len(engine.asked)
        later = fleets.normal()
        await show(pilot, engine, app, replace(later, nodes={**later.nodes, "bolt": replace(
            later.nodes["bolt"], read_at=fleets.NOW)}))
        assert len(engine.asked) == asked
        gone = dict(later.nodes)
        del gone["cedar"]
        await show(pilot, engine, app, replace(later, nodes=gone))
        await settled(pilot, app)
        assert len(engine.asked) == asked + 1 and "cedar" not in {
            device.node for device in app.screen.planned.proposal.devices}


async def test_the_shell_command_shows_the_same_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    async with on_screen("2", fleets.normal()) as (_, app, pilot):
        screen = await settled(pilot, app)
        copied: list[str] = []
        monkeypatch.setattr(app, "copy", copied.append)
        await pilot.press("plus", "v")
        await settled(pilot, app)
        context = screen.planned.what_if.context
        await pilot.press("Y", "y")
        assert copied[0] == f"quarterdeck plan --context {context} --kv q8_0 qwen3-32b"
        assert copied[1].startswith("qwen3-32b  ")


async def test_enter_shows_the_reasons_over_the_whole_screen() -> None:
    async with on_screen("2", fleets.normal(), NARROW) as (_, app, pilot):
        await settled(pilot, app)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, DetailScreen))
        assert "atlas is the head since it has the most GPU memory" in text_of(app)


async def test_a_mistake_of_ours_is_said_and_not_left_as_working() -> None:
    async with cockpit(fleets.normal(), WIDE) as (engine, app, pilot):
        engine.no_plan = ZeroDivisionError("float division by zero")
        await pilot.press("2")
        screen = await settled(pilot, app)
        assert screen.planned.problem is not None and "✕ no plan" in text_of(app)


async def test_nothing_to_plan_for_is_said() -> None:
    async with cockpit(fleets.empty(), NARROW) as (engine, app, pilot):
        engine.no_plan = PlanRefused("Which model to bring up was not said.", "Say one of: a, b.")
        await pilot.press("2")
        await settled(pilot, app)
        assert "Which model to bring up was not said." in text_of(app)


# -- models --------------------------------------------------------------------------------------


@SIZES
async def test_every_model_of_the_fleet_and_all_about_one(size: tuple[int, int]) -> None:
    async with on_screen("3", fleets.normal(), size) as (_, app, pilot):
        await known(pilot, app, GEMMA)
        await pilot.press("down")
        await known(pilot, app, QWEN)
        check_golden(app, f"models-normal-{size[0]}x{size[1]}")


async def test_a_plan_is_made_anew_for_another_fleet_and_with_the_models_own_settings() -> None:
    async with on_screen("3", fleets.normal()) as (engine, app, pilot):
        await known(pilot, app, GEMMA)
        assert [wanted for wanted, _ in engine.asked] == ["gemma-3-270m"], "by its name in fleet.yaml"
        later = fleets.normal()
        gone = dict(later.nodes)
        del gone["cedar"]
        await show(pilot, engine, app, replace(later, nodes=gone))
        await until(pilot, lambda: len(engine.asked) == 2)


async def test_a_file_that_is_no_model_is_told_where_the_cursor_is() -> None:
    async with cockpit(fleets.normal(), WIDE) as (_, app, pilot):
        await pilot.press("3")
        screen = await known(pilot, app, GEMMA)
        about = text_of_entries(screen.query_one("#about", EntryView).entries)
        assert f"{GEMMA} is no GGUF file." in about and "→ Fetch it again." in about and "? no plan" in text_of(app)


async def test_unfinished_and_hostile_files_are_told_apart_and_do_nothing() -> None:
    snapshot = fleets.normal()
    atlas = snapshot.nodes["atlas"]
    reading = replace(atlas.reading, models=(ModelFile("/models/[red]\x1b[31mevil-00001-of-00003.gguf", 5 << 30),),
                      unfinished=(ModelFile("/models/half.gguf.part", 1 << 30),))
    only = replace(snapshot, nodes={"atlas": replace(atlas, reading=reading)}, deployment=replace(
        snapshot.deployment, model_path=""))
    async with on_screen("3", only) as (_, app, pilot):
        await until(pilot, lambda: isinstance(app.screen, ModelsScreen) and app.screen.ready)
        shown = text_of(app)
        assert "▲ parts missing" in shown and "▲ unfinished" in shown and "\x1b" not in shown
        assert not app.screen.check_action("bring_up", ())


async def test_models_are_filtered_shown_whole_and_brought_up() -> None:
    async with on_screen("3", fleets.normal()) as (engine, app, pilot):
        screen = await known(pilot, app, GEMMA)
        await pilot.press("slash", *"qwen", "enter")
        await until(pilot, lambda: screen.selected is not None and "Qwen" in screen.selected.name)
        await pilot.press("b")
        await until(pilot, lambda: bool(engine.planned))
        assert engine.planned[0].model == "qwen3-32b", "by its name in fleet.yaml"
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is screen)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, DetailScreen))
        assert QWEN in text_of(app)


async def test_from_a_model_to_its_split() -> None:
    async with on_screen("3", fleets.normal()) as (engine, app, pilot):
        await known(pilot, app, GEMMA)
        await pilot.press("s")
        await settled(pilot, app)
        assert engine.asked[-1][0] == "gemma-3-270m"
        assert "── split ─" in text_of(app) and "gemma-3-270m  " in text_of(app)


async def test_read_only_brings_nothing_up() -> None:
    async with on_screen("3", fleets.normal(), read_only=True) as (engine, app, pilot):
        await known(pilot, app, GEMMA)
        await pilot.press("b")
        await pilot.press("2")
        await settled(pilot, app)
        await pilot.press("b")
        await pilot.pause()
        assert engine.planned == [] and engine.submitted == [] and told(app) == []


# -- bars ----------------------------------------------------------------------------------------


def bar(*amounts: float, whole: float = 100.0, width: int = 20) -> str:
    return plain(split_bar(tuple(Part(amount, glyph, Tone.PLAIN) for amount, glyph in
                                 zip(amounts, "abcde", strict=False)), whole, width))


def test_parts_are_in_proportion_and_what_is_there_shows() -> None:
    assert bar(50, 25, 25) == "aaaaaaaaaabbbbbccccc"
    assert bar(50, 0.1, 10).startswith("aaaaaaaaaab") and len(bar(50, 0.1, 10)) == 20
    assert bar(0, 0, 0).strip() == "" and bar(200, 50) == "a" * 20
    assert bar(-5, 50) == "b" * 10 + " " * 10


def test_a_bar_without_room_gives_way_to_its_figures() -> None:
    meter = SplitBar(None, parts=(Part(1, "a", Tone.PLAIN),), whole=2, longest=40)
    assert plain(meter.drawn(4)) == "    " and plain(meter.drawn(10)) == "aaaaa     "
