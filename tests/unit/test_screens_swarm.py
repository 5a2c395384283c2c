"""The Swarm screen as a user meets it, in every state and on three sizes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import example_swarms as swarms
import pytest
from cockpit_pilot import NARROW, WIDE, check_golden, cockpit, show, text_of, until
from scripted_engine import ScriptedEngine
from textual.pilot import Pilot

from app.cockpit import CockpitApp
from app.present import swarm, swarm_flows
from app.screens.confirm import ConfirmScreen
from app.screens.detail import DetailScreen
from app.screens.swarm import SwarmScreen
from fleet.model import PeerState, Snapshot, Swarm, SwarmFlow, SwarmPeer
from widgets.bitfield import CopiesLine
from widgets.ramp import Graphs
from widgets.row_table import RowTable
from widgets.spans import plain, width_of

SIZES = pytest.mark.parametrize("size", [WIDE, NARROW, (60, 16)], ids=lambda size: f"{size[0]}x{size[1]}")
pytestmark = pytest.mark.timeout(60)


@asynccontextmanager
async def on_screen(snapshot: Snapshot, size: tuple[int, int] = WIDE,
                    **options: object) -> AsyncIterator[tuple[ScriptedEngine, CockpitApp, Pilot[int]]]:
    async with cockpit(snapshot, size, **options) as (engine, app, pilot):
        await pilot.press("6")
        await until(pilot, lambda: isinstance(app.screen, SwarmScreen) and app.screen.ready)
        await pilot.pause()
        yield engine, app, pilot


def copies(app: CockpitApp, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    copied: list[str] = []
    monkeypatch.setattr(app, "copy", copied.append)
    return copied


@SIZES
@pytest.mark.parametrize("state", ["normal", "empty", "failing", "stale", "done"])
async def test_the_swarm_at_a_glance(state: str, size: tuple[int, int]) -> None:
    async with on_screen(getattr(swarms, state)(), size) as (_, app, _pilot):
        check_golden(app, f"swarm-{state}-{size[0]}x{size[1]}")


@pytest.mark.parametrize("graphs", [Graphs.BRAILLE, Graphs.ASCII])
async def test_graphs_are_drawn_with_what_was_chosen(graphs: Graphs) -> None:
    async with on_screen(swarms.normal(), WIDE, graphs=graphs) as (_, app, _pilot):
        check_golden(app, f"swarm-{graphs}-120x40")


@pytest.mark.parametrize("size", [WIDE, NARROW])
async def test_copies_stand_below_the_pieces_they_are_of(size: tuple[int, int]) -> None:
    async with on_screen(swarms.normal(), size) as (_, app, pilot):
        for width in (size[0], size[0] - 9):
            await pilot.resize_terminal(width, size[1])
            await pilot.pause()
            await pilot.pause()
            table, below = app.screen.query_one("#machines", RowTable), app.screen.query_one(CopiesLine)
            x, cells = table.place_of("pieces")
            text = below.render_line(0).text
            assert cells > 10 and set(text[x:x + cells]) <= set("▁▂▄▆█"), text
            assert text[x - 1] == text[x + cells] == " "


async def test_a_distribution_is_stopped_after_a_question() -> None:
    async with on_screen(swarms.normal(), NARROW) as (engine, app, pilot):
        await pilot.press("c")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        assert "bolt, cedar, dove, fjord" in text_of(app) and "are kept" in text_of(app)
        assert app.screen.focused is not None and app.screen.focused.id == "no"
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, SwarmScreen))
        assert engine.cancelled == []
        await pilot.press("c", "y")
        await until(pilot, lambda: engine.cancelled == [9])


async def test_what_is_over_or_only_watched_is_not_stopped() -> None:
    async with on_screen(swarms.done()) as (engine, app, pilot):
        assert not app.screen.check_action("cancel_swarm", ())
        await pilot.press("c")
        await pilot.pause()
        assert isinstance(app.screen, SwarmScreen) and engine.cancelled == []
    async with on_screen(swarms.normal(), read_only=True) as (_, app, pilot):
        assert not app.screen.check_action("cancel_swarm", ())


async def test_several_swarms_are_stepped_through_and_the_command_is_that_of_the_one_shown(
        monkeypatch: pytest.MonkeyPatch) -> None:
    async with on_screen(swarms.done()) as (_, app, pilot):
        copied = copies(app, monkeypatch)
        assert "whole on every machine" in text_of(app) and "2 of 2, ] next" in text_of(app)
        await pilot.press("right_square_bracket", "Y", "v", "y")
        assert "‖ stopped" in text_of(app) and "gemma-3-27b" in text_of(app)
        assert copied[:2] == ["quarterdeck swarm distribute gemma-3-27b-it-Q4_K_M.gguf --to bolt",
                              "quarterdeck swarm verify gemma-3-27b-it-Q4_K_M.gguf"]
        assert copied[2].startswith("gemma-3-27b-it-Q4_K_M.gguf  stopped  40%\n◆ source")


async def test_the_pane_and_the_page_tell_all_about_a_machine() -> None:
    async with on_screen(swarms.failing()) as (engine, app, pilot):
        await pilot.press("end", "up", "enter")
        await until(pilot, lambda: isinstance(app.screen, DetailScreen))
        shown = text_of(app)
        assert "elm" in shown and "✕ failed" in shown and "The disk of elm is full" in shown and "gets from" in shown
        await show(pilot, engine, app, swarms.empty())
        assert "no longer part of the swarm" in text_of(app)


async def test_a_ban_is_named_in_words_with_what_to_do() -> None:
    async with on_screen(swarms.failing()) as (_, app, pilot):
        shown = text_of(app)
        assert "✕ dove is banned: it sent wrong bytes for pieces 97, 1033, 412, noticed by bolt, cedar." in shown
        assert "→ Check the disk and the memory of dove" in shown and "✕ banned" in shown and "banned dove" in shown
        await pilot.press("home", "down", "down", "down", "enter")
        await until(pilot, lambda: isinstance(app.screen, DetailScreen))
        assert "✕ dove sent wrong bytes for piece 97 to bolt: hash" in text_of(app)


async def test_machines_are_filtered() -> None:
    async with on_screen(swarms.normal()) as (_, app, pilot):
        await pilot.press("slash", *"cedar", "enter")
        await until(pilot, lambda: len(app.screen.query_one("#machines", RowTable).rows) == 1)
        assert "1 of 6" in text_of(app)
        await pilot.press("escape")
        await until(pilot, lambda: len(app.screen.query_one("#machines", RowTable).rows) == 6)


# -- words ---------------------------------------------------------------------------------------


def test_no_part_is_whole_before_it_is() -> None:
    assert swarm.floor_percent(0.9999) == "99%" and swarm.floor_percent(1.0) == "100%"
    almost = swarms.peer(0, 0.5, done_bytes=swarms.SIZE, state=PeerState.VERIFYING)
    row = swarm.rows(swarms.swarm(almost))[0]
    assert plain(row.cells[3]) == "99%", "verified is whole, and nothing else"


def test_rates_and_times_of_a_swarm() -> None:
    assert [swarm.mb(rate) for rate in (0, 49_000, 12_340_000, 112_000_000, 1.25e9)] == [
        "0.0", "0.0", "12.3", "112", "1,250"]
    model = swarms.normal().swarms[0]
    assert swarm.left(model) == max(peer.eta for peer in model.peers if peer.eta is not None)
    unsure = replace(model, peers=(*model.peers, swarms.peer(2, 0.1, eta=None)))
    assert swarm.left(unsure) is None, "one that does not know may be the last"


def test_rare_pieces_are_counted_in_words() -> None:
    def words(*have: bytes) -> str:
        peers = tuple(SwarmPeer(str(n), PeerState.PULLING, each) for n, each in enumerate(have))
        return plain(swarm.copies_words(Swarm("i", "n", 80, 8, 10, peers)))

    assert words(b"\xff", b"\xff") == "✓ each twice or more"
    assert words(b"\xff", b"\xfe") == "▲ 1 piece on 1 machine"
    assert words(b"\xf0", b"\xfe") == "✕ 1 piece is nowhere"
    gone = SwarmPeer("gone", PeerState.FAILED, b"\xff")
    assert plain(swarm.copies_words(Swarm("i", "n", 80, 8, 10, (gone,)))) == "✕ 8 pieces are nowhere"


def test_flows_that_do_not_fit_are_shown_together() -> None:
    model = swarms.crowd().swarms[0]
    (table,) = swarm_flows.matrix(model)
    for width in (120, 60, 30, 5):
        drawn = table.lines(width)
        assert all(width_of(each) <= width for each in drawn) and len(drawn) == 31
    assert plain(table.lines(60)[0]).rstrip().endswith("others")


def test_hostile_figures_make_no_row_break() -> None:
    odd = SwarmPeer("x", PeerState.PULLING, b"\xff" * 9, -5, -9, float("nan"), -3.0, float("inf"),
                    (SwarmFlow("", -4, float("nan"), "what?"),))
    model = Swarm("i", "n", 0, 0, 0, (odd,), sent_by_source=-1)
    snapshot = replace(swarms.empty(), swarms=(model,))
    assert swarm.rows(model) and swarm.summary(model, snapshot, 0.0, wide=True) and swarm.title(model, snapshot, 0.0)
    assert swarm.copies_words(model) == () and swarm_flows.matrix(model)[0].lines(60)
