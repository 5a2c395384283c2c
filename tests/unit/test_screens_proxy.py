"""The Proxy screen as a user meets it, in every state and on three sizes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import example_fleets as fleets
import example_proxies as proxies
import pytest
from cockpit_pilot import NARROW, WIDE, check_golden, cockpit, show, text_of, until
from scripted_engine import ScriptedEngine
from textual.pilot import Pilot

from app.cockpit import CockpitApp
from app.present import proxy, proxy_requests
from app.screens.confirm import ConfirmScreen
from app.screens.detail import DetailScreen
from app.screens.logs import LogScreen
from app.screens.proxy import ProxyScreen
from fleet.events import CancelRequest, StartProxy, StopService
from fleet.model import Proxy, ProxyUpstream, Snapshot
from widgets.row_table import RowTable
from widgets.spans import plain

SIZES = pytest.mark.parametrize("size", [WIDE, NARROW, (60, 16)], ids=lambda size: f"{size[0]}x{size[1]}")
pytestmark = pytest.mark.timeout(60)


@asynccontextmanager
async def on_screen(snapshot: Snapshot, size: tuple[int, int] = WIDE,
                    **options: object) -> AsyncIterator[tuple[ScriptedEngine, CockpitApp, Pilot[int]]]:
    async with cockpit(snapshot, size, **options) as (engine, app, pilot):
        await pilot.press("4")
        await until(pilot, lambda: isinstance(app.screen, ProxyScreen) and app.screen.ready)
        yield engine, app, pilot


def copies(app: CockpitApp, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    copied: list[str] = []
    monkeypatch.setattr(app, "copy", copied.append)
    return copied


@SIZES
@pytest.mark.parametrize("state", ["normal", "empty", "fresh", "failing", "stale"])
async def test_the_proxy_at_a_glance(state: str, size: tuple[int, int]) -> None:
    async with on_screen(getattr(proxies, state)(), size) as (_, app, _pilot):
        check_golden(app, f"proxy-{state}-{size[0]}x{size[1]}")


async def test_a_live_request_is_ended_after_a_question_that_names_it() -> None:
    async with on_screen(proxies.normal(), NARROW) as (engine, app, pilot):
        await pilot.press("down", "c")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        shown = text_of(app)
        assert "9ac1f0-1203" in shown and "atlas" in shown and "qwen3-32b" in shown
        assert app.screen.focused is not None and app.screen.focused.id == "no", "Cancel has the focus"
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, ProxyScreen))
        assert engine.submitted == []
        await pilot.press("c", "y")
        await until(pilot, lambda: bool(engine.submitted))
        assert engine.submitted == [CancelRequest("atlas", "proxy-8088", "9ac1f0-1203")]


async def test_a_request_that_has_ended_cannot_be_ended() -> None:
    async with on_screen(proxies.normal()) as (engine, app, pilot):
        await pilot.press("end", "c")
        await pilot.pause()
        assert isinstance(app.screen, ProxyScreen) and engine.submitted == []
        assert not app.screen.check_action("cancel_request", ())


async def test_the_cursor_stays_on_a_request_that_ends() -> None:
    async with on_screen(proxies.normal()) as (engine, app, pilot):
        first = proxies.LIVE[0]
        over = replace(proxies.proxy(), live=proxies.LIVE[1:], ended=(
            *proxies.ENDED, replace(first, state="done")))
        await show(pilot, engine, app, replace(proxies.normal(), proxies=(over,)))
        assert app.screen.query_one("#requests", RowTable).cursor_key == first.id
        assert not app.screen.check_action("cancel_request", ())


async def test_a_proxy_is_started_and_stopped_after_a_question() -> None:
    async with on_screen(proxies.empty()) as (engine, app, pilot):
        assert not app.screen.check_action("stop", ())
        await pilot.press("s", "y")
        await until(pilot, lambda: bool(engine.submitted))
        assert engine.submitted == [StartProxy("")]
        await show(pilot, engine, app, proxies.normal())
        assert not app.screen.check_action("start", ()), "one is enough"
        await pilot.press("x")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        assert "3 live requests get a few seconds to end" in text_of(app) and "proxy-8088" in text_of(app)
        await pilot.press("y")
        await until(pilot, lambda: len(engine.submitted) == 2)
        assert engine.submitted[1] == StopService("atlas", "proxy-8088")


async def test_a_proxy_inside_this_engine_is_not_stopped_by_itself() -> None:
    inside = replace(proxies.proxy(), node="", service="")
    async with on_screen(replace(fleets.normal(), proxies=(inside,)), NARROW) as (_, app, _pilot):
        assert "inside this Quarterdeck" in text_of(app)
        assert not app.screen.check_action("stop", ()) and not app.screen.check_action("logs", ())


async def test_read_only_acts_on_nothing() -> None:
    async with on_screen(proxies.normal(), read_only=True) as (engine, app, pilot):
        await pilot.press("c", "x", "s")
        await pilot.pause()
        assert isinstance(app.screen, ProxyScreen) and engine.submitted == []
        await show(pilot, engine, app, proxies.empty())
        assert "s starts one" not in text_of(app)


async def test_several_proxies_are_stepped_through(monkeypatch: pytest.MonkeyPatch) -> None:
    async with on_screen(proxies.stale()) as (_, app, pilot):
        copied = copies(app, monkeypatch)
        await pilot.press("right_square_bracket", "y")
        assert "on bolt" in text_of(app) and "● live" in text_of(app)
        await pilot.press("left_square_bracket", "y", "Y")
        assert copied == ["http://10.20.0.12:8088", proxies.URL, "quarterdeck proxy status"]


async def test_enter_tells_all_about_a_request_and_follows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with on_screen(proxies.normal(), NARROW) as (engine, app, pilot):
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, DetailScreen))
        assert "request 9ac1f0-1201" in text_of(app) and "● answers" in text_of(app) and "1,834" in text_of(app)
        await show(pilot, engine, app, replace(proxies.normal(), proxies=(replace(proxies.proxy(), live=()),)))
        assert "no longer among those" in text_of(app)


async def test_requests_are_filtered_and_counted() -> None:
    async with on_screen(proxies.normal()) as (_, app, pilot):
        await pilot.press("slash", *"429", "enter")
        await until(pilot, lambda: len(app.screen.query_one("#requests", RowTable).rows) == 1)
        assert "rate limit exceeded" in text_of(app) and "1 of 100" in text_of(app)
        await pilot.press("escape")
        await until(pilot, lambda: len(app.screen.query_one("#requests", RowTable).rows) == 100)


async def test_requests_are_sorted_by_their_figures_and_not_by_their_words() -> None:
    async with on_screen(proxies.normal()) as (_, app, pilot):
        table = app.screen.query_one("#requests", RowTable)
        await pilot.press(*"oooo")
        took = [row.order[3] for row in table.rows]
        assert took == sorted(took) and len(took) == 100


async def test_the_log_of_the_proxy_is_one_key_away() -> None:
    async with on_screen(proxies.normal()) as (_, app, pilot):
        await pilot.press("l")
        await until(pilot, lambda: isinstance(app.screen, LogScreen))
        assert (app.screen.node, app.screen.service) == ("atlas", "proxy-8088")


async def test_figures_are_set_anew_when_the_window_changes() -> None:
    async with on_screen(proxies.normal()) as (_, app, pilot):
        await pilot.resize_terminal(80, 24)
        await until(pilot, lambda: "-narrow" in app.screen.classes)
        await until(pilot, lambda: "1,204 requests" not in text_of(app))


# -- words ---------------------------------------------------------------------------------------


def test_figures_keep_their_width() -> None:
    assert [proxy.number(n) for n in (0, 999, 1000, 12_345, 123_456, 999_960, 2_500_000)] == [
        "0", "999", "1.0k", "12.3k", "123k", "1.0M", "2.5M"]
    assert [proxy.latency(s) for s in (None, 0.0004, 0.0125, 0.1234, 0.996, 1.94, 99.94, 200, -1, float("nan"))] == [
        "–", "0.4 ms", "12 ms", "120 ms", "1.0 s", "1.9 s", "99.9 s", "3 min", "–", "–"]


def test_percentiles_are_of_what_is_known() -> None:
    values = [float(n) for n in range(1, 101)]
    assert proxy.percentile(values, 0.5) == 50 and proxy.percentile(values, 0.95) == 95
    assert proxy.percentile([None, float("nan"), 3.0], 0.95) == 3.0 and proxy.percentile([None], 0.5) is None


def test_an_upstream_without_trouble_says_nothing_more() -> None:
    assert proxy.why(proxies.ATLAS) == () and proxy.upstream_sign(proxies.ATLAS).word == "busy"
    new = ProxyUpstream("x", "http://x", "openai", "some-new-word", reason="because")
    assert proxy.upstream_sign(new).word == "some-new-word" and plain(proxy.why(new)) == "because"


@pytest.mark.parametrize(("told", "words"), [
    ({}, "admits nothing for now"),
    ({"step": "loading", "progress": 0.43}, "loading  43%"),
    ({"title": "Swap", "fraction": 7, "retry_after": 90}, "Swap  about 1 min more"),
    ({"title": 4, "progress": True, "odd": ["x"]}, "admits nothing for now"),
])
def test_what_a_server_is_held_for_is_said_as_far_as_it_is_known(told: dict[str, object], words: str) -> None:
    assert plain(proxy.progress(told)) == words


def test_a_server_behind_that_is_broken_is_trouble_for_the_whole() -> None:
    broken = replace(proxies.TOWER, health="broken")
    entries = proxy.troubles(Proxy("a", "b", "u", 0.0, upstreams=(broken,)))
    lost = proxy.upstream_sign(replace(broken, health="lost", held=True))
    assert (lost.glyph, lost.word) == ("✕", "lost"), "held for whatever, it will not answer"
    assert "No server behind it answers" in "".join(plain(each) for entry in entries for each in entry.lines(200))
    assert proxy.troubles(proxies.proxy()) == () and proxy.troubles(None) == ()


def test_times_that_are_none_do_not_break_a_row() -> None:
    odd = proxies.request(1, "done", seconds=0.0, to_first_byte=None, per_token=0.0, tokens=-4, started_epoch=1e300,
                          prompt_tokens=-1, accepted=10, drafted=0)
    odd_proxy = proxies.proxy(live=(), ended=(odd,), started_epoch=float("inf"))
    assert proxy_requests.rows(odd_proxy) and proxy_requests.detail(odd_proxy, odd.id)
    assert proxy.title(odd_proxy, proxies.normal(), fleets.NOW)
