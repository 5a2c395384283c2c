"""Every text of a Snapshot poisoned, every screen opened: nothing of it reaches the terminal as more than text."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from enum import Enum

import example_fleets as fleets
import example_proxies as proxies
import example_swarms as swarms
import pytest
from cockpit_pilot import NARROW, WIDE, cockpit, show, told

from app.screens.ask import question_screen
from app.screens.confirm import ConfirmScreen
from app.screens.logs import LogScreen
from fleet.model import Operation, OperationState, Problem, Question, QuestionKind, Snapshot, StepRecord, StepState

POISON = ("\x1b]0;own\x07\x1b[2J[red]r[/red][link=http://e]l[/link][@click=app.quit]q"
          "\u202e\u2066\u200e\n\r\t\x9b2J\x00\ud800\u0301") * 2
BAD = frozenset(chr(code) for code in (*range(32), *range(127, 160))) | set("\u202e\u2066\u200e\ud800\u2028")
KEPT = {"name", "node", "head", "state_folder"}   # what records are found by: poisoned together, below


def poisoned(value: object, field: str = "") -> object:
    """The same record with poison behind every text but those that records are found by."""
    if isinstance(value, Enum) or field in KEPT:
        return value
    if isinstance(value, str):
        return value + POISON
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.replace(value, **{f.name: poisoned(getattr(value, f.name), f.name)
                                             for f in dataclasses.fields(value)})
    if isinstance(value, tuple):
        return tuple(poisoned(item) for item in value)
    if isinstance(value, Mapping):
        return {key: poisoned(item, str(key)) for key, item in value.items()}
    return value


def renamed(snapshot: Snapshot) -> Snapshot:
    """Node names too, wherever they stand."""
    nodes = {}
    for name, node in snapshot.nodes.items():
        services = tuple(dataclasses.replace(service, node=f"{name}{POISON}") for service in node.services)
        nodes[f"{name}{POISON}"] = dataclasses.replace(node, name=f"{name}{POISON}", services=services)
    return dataclasses.replace(snapshot, nodes=nodes, deployment=dataclasses.replace(
        snapshot.deployment, head=f"{snapshot.deployment.head}{POISON}"))


def clean(app: object) -> None:
    """No cell of the screen holds what a terminal obeys, and no cell became a link or an action."""
    for strip in app.screen._compositor.render_strips():   # type: ignore[attr-defined]
        for segment in strip:
            assert not set(segment.text) & BAD, repr(segment.text)
            assert segment.style is None or (segment.style.link is None and "@click" not in segment.style.meta)
    for text in told(app):                                  # type: ignore[arg-type]
        assert not set(text) & (BAD - {"\n"}), repr(text)


@pytest.mark.parametrize("size", [WIDE, NARROW])
@pytest.mark.parametrize("state", ["normal", "difficult", "operating", "failed", "broken_config"])
async def test_every_screen_of_a_poisoned_fleet_is_only_text(state: str, size: tuple[int, int]) -> None:
    snapshot = poisoned(getattr(fleets, state)())
    assert isinstance(snapshot, Snapshot)
    async with cockpit(renamed(snapshot), size, log=(POISON, POISON * 500, "x" * 100_000)) as (engine, app, pilot):
        clean(app)
        engine.next_plan = Operation(0, "up" + POISON, POISON, OperationState.REFUSED, (
            StepRecord(POISON, POISON, StepState.FAILED, POISON),), problem=Problem(POISON, POISON, POISON),
            remarks=(POISON,))
        for keys in (("enter",), ("escape", "tab"), ("enter",), ("escape", "y"), ("Y",), ("l",), ("w",), ("y",), ("Y",),
                     ("escape", "x"), ("escape", "r"), ("escape", "a"), ("escape", "tab", "y"), ("Y",), ("enter",),
                     ("escape", "e"), ("escape", "o"), ("escape", "b"), ("escape", "d"), ("escape", "question_mark"),
                     ("escape", "ctrl+p"), ("escape",), ("tab", "end"), ("enter",), ("escape", "slash", "z"),
                     ("escape",)):
            await pilot.press(*keys)
            await pilot.pause()
            clean(app)
        await show(pilot, engine, app, renamed(poisoned(fleets.idle())))      # type: ignore[arg-type]
        clean(app)


@pytest.mark.parametrize("size", [WIDE, NARROW, (60, 16)])
@pytest.mark.parametrize("state", ["normal", "failing", "stale"])
async def test_a_poisoned_proxy_and_a_poisoned_swarm_are_only_text(state: str, size: tuple[int, int]) -> None:
    proxied, swarmed = getattr(proxies, state)(), getattr(swarms, state)()
    snapshot = poisoned(dataclasses.replace(proxied, swarms=swarmed.swarms, operations=swarmed.operations))
    assert isinstance(snapshot, Snapshot)
    peers = tuple(dataclasses.replace(peer, node=peer.node + POISON) for peer in snapshot.swarms[0].peers)
    snapshot = dataclasses.replace(snapshot, swarms=(dataclasses.replace(snapshot.swarms[0], peers=peers),),
                                   proxies=tuple(dataclasses.replace(each, node=each.node + POISON)
                                                 for each in snapshot.proxies))
    async with cockpit(snapshot, size, log=(POISON,)) as (_, app, pilot):
        for keys in (("4",), ("y",), ("Y",), ("c",), ("n", "x"), ("n", "enter"), ("y",), ("escape", "tab", "o"),
                     ("l",), ("escape", "right_square_bracket"), ("slash", "z"), ("escape", "6"), ("y",), ("Y",),
                     ("v",), ("c",), ("n", "enter"), ("y",), ("escape", "end"), ("enter",), ("escape", "tab", "down")):
            await pilot.press(*keys)
            await pilot.pause()
            clean(app)


@pytest.mark.parametrize("kind", list(QuestionKind))
async def test_questions_dialogs_and_logs_of_a_hostile_node_are_only_text(kind: QuestionKind) -> None:
    async with cockpit(fleets.normal(), NARROW, log=(POISON,)) as (_, app, pilot):
        for screen in (question_screen(Question(1, kind, POISON, POISON, POISON)), ConfirmScreen(POISON, (), "Stop"),
                       LogScreen(POISON, POISON)):
            app.push_screen(screen)
            await pilot.pause()
            clean(app)
            await pilot.press("Y")
            await pilot.pause()
            clean(app)
            await pilot.press("escape")
            await pilot.pause()


async def test_a_fault_of_the_cockpit_shows_no_variables(capsys: pytest.CaptureFixture[str]) -> None:
    def broken() -> None:
        typed = "hunter2"
        raise ZeroDivisionError(len(typed))

    with pytest.raises(ZeroDivisionError):   # noqa: PT012 -- the cockpit raises it when it is left
        async with cockpit(fleets.normal(), NARROW) as (_, app, pilot):
            app.call_later(broken)
            await pilot.pause()
            await pilot.pause()
    assert "hunter2" not in "".join(capsys.readouterr())
    assert not app._exit_renderables
