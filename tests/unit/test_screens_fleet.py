"""The Fleet screen as a person meets it: what it looks like, and what every key does, on two sizes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import example_fleets as fleets
import pytest
from cockpit_pilot import NARROW, WIDE, check_golden, cockpit, show, text_of, told, until
from textual.widgets import Button, Input

from app.screens.ask import AddNodeScreen, HostKeyScreen, SecretScreen, what_is_wrong_with
from app.screens.choose_model import ChooseModelScreen
from app.screens.confirm import ConfirmScreen
from app.screens.detail import DetailScreen, HelpScreen
from app.screens.fleet import FleetScreen
from app.screens.logs import LogScreen
from fleet.errors import PlanRefused
from fleet.events import AdoptProcess, BringUp, EndProcess, RestartService, StartService, StopService, TearDown
from fleet.model import NodeState, Operation, OperationState, Problem, ServiceState
from widgets.key_line import KeyLine
from widgets.log_view import LogView
from widgets.row_table import RowTable
from widgets.spans import plain

SIZES = pytest.mark.parametrize("size", [WIDE, NARROW], ids=lambda size: f"{size[0]}x{size[1]}")
STATES = ("normal", "idle", "empty", "stale", "difficult", "operating", "failed", "broken_config", "thirty")


def keys_shown(screen: object) -> str:
    assert hasattr(screen, "query_one")
    return plain(screen.query_one("#keys", KeyLine).composed(200))


# -- what it looks like ------------------------------------------------------------------------


@SIZES
@pytest.mark.parametrize("state", STATES)
async def test_every_state_of_a_fleet_on_the_screen(state: str, size: tuple[int, int]) -> None:
    async with cockpit(getattr(fleets, state)(), size) as (_, app, _pilot):
        check_golden(app, f"fleet-{state}-{size[0]}x{size[1]}")


@SIZES
async def test_read_only_says_so_and_has_no_acting_keys(size: tuple[int, int]) -> None:
    async with cockpit(fleets.difficult(), size, read_only=True) as (engine, app, pilot):
        check_golden(app, f"fleet-read-only-{size[0]}x{size[1]}")
        await pilot.press("tab", "b", "d", "x", "s", "r", "a", "n", "c")
        await pilot.pause()
        assert isinstance(app.screen, FleetScreen) and engine.submitted == [] and engine.planned == []
        shown = keys_shown(app.screen)
        assert "Bring up" not in shown and "Stop" not in shown and "Logs" in shown


async def test_a_window_that_is_too_small_gets_one_polite_message() -> None:
    async with cockpit(fleets.normal(), (50, 14)) as (_, app, pilot):
        said = "Quarterdeck needs 60 columns and 16 lines. Make this window larger, or press q to leave."
        assert " ".join(text_of(app).split()) == said
        await pilot.resize_terminal(80, 24)
        await pilot.pause()
        assert "atlas" in text_of(app)


async def test_hostile_names_are_shown_and_do_nothing() -> None:
    async with cockpit(fleets.difficult(), WIDE) as (_, app, pilot):
        for _ in range(12):
            await pilot.press("down")
        await pilot.press("enter")
        await pilot.pause()
        shown = text_of(app)
        assert "\\x1b[31mm[b]\\u202eevil" in shown and "[red]not markup[/red]" in shown and "[@click=app.quit]" in shown
        assert "\x1b" not in shown and "\u202e" not in shown


async def test_the_first_frame_stands_before_there_is_an_engine() -> None:
    import asyncio

    from scripted_engine import ScriptedEngine

    from app.cockpit import CockpitApp

    ready = asyncio.Event()

    async def make() -> ScriptedEngine:
        await ready.wait()
        return ScriptedEngine(fleets.normal(), fleets.CONFIG)

    app = CockpitApp(make, rate=1000.0)
    async with app.run_test(size=NARROW) as pilot:
        await pilot.pause()
        assert "reading this machine ..." in text_of(app) and app.engine is None
        await pilot.press("b", "d", "enter", "l", "y", "e", "question_mark", "escape")
        ready.set()
        await until(pilot, lambda: app.snapshot is not None)
        assert "atlas" in text_of(app)


@pytest.mark.parametrize("size", [WIDE, NARROW, (120, 24), (80, 50), (200, 60)])
async def test_the_cursor_is_seen_in_every_list_however_long(size: tuple[int, int]) -> None:
    snapshot = fleets.thirty()
    nodes = {name: replace(each, services=(fleets.service(name, fleets.ServiceKind.WORKER, 50052),))
             for name, each in snapshot.nodes.items()}
    async with cockpit(replace(snapshot, nodes=nodes), size) as (_, app, pilot):
        await pilot.press("end")
        await pilot.pause()
        assert any(line.startswith("▌ ● up") and "node30" in line for line in text_of(app).splitlines())
        await pilot.press("tab", "end")
        await pilot.pause()
        assert any(line.startswith("▌ ● ready") and "node30" in line for line in text_of(app).splitlines())
        assert "node30  worker-50052 ──" in text_of(app)


# -- moving about ------------------------------------------------------------------------------


@SIZES
async def test_tab_goes_round_the_panels_and_the_pane_follows(size: tuple[int, int]) -> None:
    async with cockpit(fleets.normal(), size) as (_, app, pilot):
        for panel, subject in (("services", "atlas  coordinator-8080"), ("placement", "qwen3-32b"), ("nodes", "atlas")):
            await pilot.press("tab")
            await pilot.pause()
            assert app.focused is not None and app.focused.id == panel
            assert f"{subject} ──" in text_of(app)
        await pilot.press("shift+tab")
        assert app.focused is not None and app.focused.id == "placement"
        check_golden(app, f"fleet-model-focused-{size[0]}x{size[1]}")


@SIZES
async def test_enter_opens_the_pane_over_the_whole_screen_and_esc_closes_it(size: tuple[int, int]) -> None:
    async with cockpit(fleets.normal(), size) as (engine, app, pilot):
        await pilot.press("down", "enter")
        await pilot.pause()
        assert isinstance(app.screen, DetailScreen)
        check_golden(app, f"detail-node-{size[0]}x{size[1]}")
        stale = fleets.stale()
        await show(pilot, engine, app, stale)
        assert "silent" in text_of(app)
        await pilot.press("G", "g", "pagedown", "up", "down", "escape")
        await pilot.pause()
        assert isinstance(app.screen, FleetScreen) and "silent" in text_of(app)


@SIZES
async def test_slash_filters_nodes_and_services_and_esc_shows_all(size: tuple[int, int]) -> None:
    async with cockpit(fleets.normal(), size) as (_, app, pilot):
        await pilot.press("slash", *"bolt", "enter")
        await pilot.pause()
        table = app.screen.query_one("#nodes", RowTable)
        assert [row.key for row in table.rows] == ["bolt"] and app.focused is table
        assert "/bolt" in text_of(app) and "1 of 4" in text_of(app) and "bolt ──" in text_of(app)
        await pilot.press("escape")
        assert len(table.rows) == 4


@SIZES
async def test_help_lists_the_live_keys_and_the_signs(size: tuple[int, int]) -> None:
    async with cockpit(fleets.normal(), size) as (_, app, pilot):
        await pilot.press("question_mark")
        await pilot.pause()
        assert isinstance(app.screen, HelpScreen)
        check_golden(app, f"help-{size[0]}x{size[1]}")
        await pilot.press("escape")
        assert isinstance(app.screen, FleetScreen)


async def test_events_show_what_is_wrong_and_what_happened() -> None:
    async with cockpit(fleets.difficult(), NARROW) as (_, app, pilot):
        await pilot.press("e")
        await pilot.pause()
        check_golden(app, "events-80x24")


async def test_the_palette_offers_what_can_be_done_now() -> None:
    async with cockpit(fleets.normal(), WIDE) as (engine, app, pilot):
        await pilot.press("colon")
        await until(pilot, lambda: "Bring a model up; shows the plan first" in text_of(app))
        shown = text_of(app)
        assert "The log of the selected service" in shown and "into our care" not in shown
        await pilot.press(*"gemma")
        await until(pilot, lambda: "Bring up gemma-3-270m" in text_of(app) and "shows the plan" not in text_of(app))
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        assert engine.planned == [BringUp("gemma-3-270m")]


async def test_the_palette_of_a_read_only_cockpit_acts_on_nothing() -> None:
    async with cockpit(fleets.normal(), WIDE, read_only=True) as (_, app, pilot):
        await pilot.press("colon")
        await until(pilot, lambda: "What is wrong now, and what happened" in text_of(app))
        assert "shows the plan" not in text_of(app)


# -- acting ------------------------------------------------------------------------------------


@SIZES
async def test_b_lets_a_model_be_chosen_shows_the_plan_and_submits_on_y(size: tuple[int, int]) -> None:
    async with cockpit(fleets.idle(), size) as (engine, app, pilot):
        await pilot.press("b")
        await pilot.pause()
        assert isinstance(app.screen, ChooseModelScreen)
        check_golden(app, f"choose-model-{size[0]}x{size[1]}")
        await pilot.press("down", "enter")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen) and app.screen.ready)
        check_golden(app, f"plan-{size[0]}x{size[1]}")
        assert engine.planned == [BringUp("gemma-3-270m")] and engine.submitted == []
        await pilot.press("y")
        await pilot.pause()
        assert engine.submitted == [BringUp("gemma-3-270m")]


async def test_a_refused_plan_cannot_be_said_yes_to() -> None:
    async with cockpit(fleets.idle(), WIDE) as (engine, app, pilot):
        engine.next_plan = Operation(0, "up", "Bring up", OperationState.REFUSED, problem=Problem(
            "protocol", "bolt speaks protocol 7, atlas speaks 4.", "Put the same build on both."))
        await pilot.press("b", "enter")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen) and bool(engine.planned))
        await until(pilot, lambda: "protocol 7" in text_of(app))
        await pilot.press("y", "right", "enter")
        await pilot.pause()
        assert engine.submitted == []


async def test_enter_on_a_dialog_cancels_since_cancel_has_the_focus() -> None:
    async with cockpit(fleets.normal(), WIDE) as (engine, app, pilot):
        await pilot.press("d")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen) and app.screen.ready)
        assert isinstance(app.focused, Button) and app.focused.id == "no"
        check_golden(app, "tear-down-120x40")
        await pilot.press("enter")
        await pilot.pause()
        assert engine.submitted == [] and isinstance(app.screen, FleetScreen)
        await pilot.press("d")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen) and app.screen.ready)
        await pilot.press("right", "enter")
        await pilot.pause()
        assert engine.submitted == [TearDown()]


@pytest.mark.parametrize("key", ["n", "escape"])
async def test_n_and_esc_leave_everything_as_it_is(key: str) -> None:
    async with cockpit(fleets.normal(), NARROW) as (engine, app, pilot):
        await pilot.press("tab", "x")
        await pilot.pause()
        check_golden(app, "stop-80x24")
        await pilot.press(key)
        await pilot.pause()
        assert engine.submitted == [] and isinstance(app.screen, FleetScreen)


async def test_stop_restart_and_start_act_on_the_selected_service() -> None:
    async with cockpit(fleets.normal(), WIDE) as (engine, app, pilot):
        await pilot.press("x", "r", "s")
        assert isinstance(app.screen, FleetScreen), "keys of a service do nothing while the nodes have the keys"
        await pilot.press("tab", "down", "x", "y")
        await pilot.press("r", "y")
        await pilot.press("s")
        assert isinstance(app.screen, FleetScreen), "what runs cannot be started"
        assert engine.submitted == [StopService("bolt", "worker-50052"), RestartService("bolt", "worker-50052")]
        snapshot = app.snapshot
        assert snapshot is not None
        bolt = snapshot.nodes["bolt"]
        dead = replace(bolt.services[0].record, alive=False)
        ended = replace(bolt.services[0], state=ServiceState.EXITED, record=dead)
        await show(pilot, engine, app, replace(
            snapshot, nodes={**snapshot.nodes, "bolt": replace(bolt, services=(ended,))}))
        await pilot.press("s", "y")
        assert engine.submitted[-1] == StartService("bolt", "worker-50052")


async def test_foreign_processes_can_be_adopted_or_ended() -> None:
    async with cockpit(fleets.difficult(), WIDE) as (engine, app, pilot):
        await pilot.press("tab", "end", "a")
        await pilot.pause()
        assert "into our care" in text_of(app)
        await pilot.press("y", "x")
        await pilot.pause()
        assert "Quarterdeck did not start this process" in text_of(app) and "hunter2" not in text_of(app)
        await pilot.press("y")
        assert engine.submitted == [AdoptProcess("elm", 9_333, "100"), EndProcess("elm", 9_333, "100")]


async def test_a_refused_command_is_told_and_not_a_traceback() -> None:
    async with cockpit(fleets.normal(), WIDE) as (engine, app, pilot):
        engine.refuses = PlanRefused("Another operation runs.", "Wait for it.")
        await pilot.press("tab", "x", "y")
        await until(pilot, lambda: told(app) == ["Another operation runs. Wait for it."])


@SIZES
async def test_a_running_operation_is_followed_and_its_end_is_told(size: tuple[int, int]) -> None:
    async with cockpit(fleets.idle(), size) as (engine, app, pilot):
        await pilot.press("b", "enter")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen) and app.screen.ready)
        await pilot.press("y")
        number = 100 + len(engine.submitted)
        running = fleets.operating()
        running = replace(running, operations=(replace(running.operations[0], id=number),))
        await show(pilot, engine, app, running)
        assert "▸ Load qwen3-32b" in text_of(app) and "42%" in text_of(app)
        over = fleets.failed()
        over = replace(over, operations=(replace(over.operations[0], id=number),))
        await show(pilot, engine, app, over)
        assert len(told(app)) == 1
        assert "ran out of memory" in text_of(app)
        await pilot.press("v")
        await pilot.pause()
        assert isinstance(app.screen, DetailScreen) and "→ Give atlas a smaller share" in text_of(app)
        await pilot.press("escape", "escape")
        await pilot.pause()
        assert "Load qwen3-32b" not in "".join(line for line in text_of(app).splitlines() if "✕ Load" in line)


async def test_c_cancels_the_running_operation_after_asking() -> None:
    async with cockpit(fleets.operating(), WIDE) as (engine, _, pilot):
        await pilot.press("c", "n")
        assert engine.cancelled == []
        await pilot.press("c", "y")
        assert engine.cancelled == [7]


async def test_the_fleet_goes_on_changing_beside_a_dialog() -> None:
    async with cockpit(fleets.normal(), WIDE) as (engine, app, pilot):
        await pilot.press("n")
        assert isinstance(app.screen, AddNodeScreen) and "silent" not in text_of(app)
        await show(pilot, engine, app, fleets.stale())
        await until(pilot, lambda: "silent" in text_of(app))
        assert isinstance(app.screen, AddNodeScreen)


async def test_t_tries_a_machine_now_and_is_there_only_for_one_that_is_not_up() -> None:
    async with cockpit(fleets.difficult(), WIDE) as (engine, app, pilot):
        table = app.screen.query_one("#nodes")
        while app.snapshot.nodes[table.cursor_key].state in (NodeState.UP, NodeState.CONNECTING):
            await pilot.press("down")
        name = table.cursor_key
        await pilot.pause()
        assert "Try now" in text_of(app)
        await pilot.press("t")
        assert engine.connected == [name]
    async with cockpit(fleets.normal(), WIDE) as (engine, app, pilot):
        await pilot.press("t")
        assert engine.connected == []
        assert "Try now" not in text_of(app)


async def test_n_adds_a_node_by_hand_and_says_what_cannot_be_an_address() -> None:
    async with cockpit(fleets.empty(), NARROW) as (engine, app, pilot):
        await pilot.press("n")
        await pilot.pause()
        assert isinstance(app.screen, AddNodeScreen)
        await pilot.press("enter")
        await pilot.pause()
        assert "An address is needed" in text_of(app)
        await pilot.press(*"ops@10.0.0.7:2222", "enter")
        await pilot.pause()
        assert engine.added == ["ops@10.0.0.7:2222"] and isinstance(app.screen, FleetScreen)


@pytest.mark.parametrize(("address", "right"), [
    ("10.0.0.7", True), ("ops@bolt.local:22", True), ("fe80::1%eth0", True), ("-oProxyCommand=x", False),
    ("a b", False), ("ops@", False), ("x" * 400, False), ("a\x1bb", False)])
def test_what_can_be_an_address(address: str, right: bool) -> None:
    assert (what_is_wrong_with(address) == "") is right


# -- questions ---------------------------------------------------------------------------------


@SIZES
async def test_a_host_key_is_trusted_by_a_key_of_its_own_only(size: tuple[int, int]) -> None:
    async with cockpit(fleets.host_key_question(), size) as (engine, app, pilot):
        assert isinstance(app.screen, HostKeyScreen)
        check_golden(app, f"host-key-{size[0]}x{size[1]}")
        await pilot.press("y")
        assert engine.answers == []
        await pilot.press("t")
        assert engine.answers == [(1, "yes")]


async def test_enter_on_a_host_key_refuses_it() -> None:
    async with cockpit(fleets.host_key_question()) as (engine, _, pilot):
        await pilot.press("enter")
        assert engine.answers == [(1, None)]


@SIZES
async def test_a_password_is_masked_handed_over_and_kept_nowhere(size: tuple[int, int]) -> None:
    async with cockpit(fleets.password_question(), size) as (engine, app, pilot):
        screen = app.screen
        assert isinstance(screen, SecretScreen)
        await pilot.press(*"hunter2")
        await pilot.pause()
        assert "hunter2" not in text_of(app) and "•••••••" in text_of(app)
        box = screen.query_one("#secret", Input)
        await pilot.press("enter")
        await until(pilot, lambda: bool(engine.answers))
        assert engine.answers == [(2, "hunter2")] and box.value == ""


async def test_a_question_that_is_settled_elsewhere_goes_away() -> None:
    async with cockpit(fleets.password_question()) as (engine, app, pilot):
        await show_only(engine, fleets.normal())
        await until(pilot, lambda: isinstance(app.screen, FleetScreen))
        assert engine.answers == []


async def show_only(engine: object, snapshot: object) -> None:
    assert hasattr(engine, "become")
    engine.become(snapshot)


async def test_a_question_waits_until_another_dialog_is_done() -> None:
    async with cockpit(fleets.normal()) as (engine, app, pilot):
        await pilot.press("tab", "x")
        await show(pilot, engine, app, replace(fleets.password_question()))
        assert isinstance(app.screen, ConfirmScreen)
        await pilot.press("n")
        engine.become(fleets.password_question())
        await until(pilot, lambda: isinstance(app.screen, SecretScreen))


# -- logs --------------------------------------------------------------------------------------


@SIZES
async def test_l_shows_the_log_of_the_selected_service(size: tuple[int, int]) -> None:
    async with cockpit(fleets.normal(), size) as (_, app, pilot):
        await pilot.press("tab", "down", "l")
        await until(pilot, lambda: isinstance(app.screen, LogScreen) and app.screen.query_one(LogView).kept == 5)
        check_golden(app, f"logs-{size[0]}x{size[1]}")
        await pilot.press("slash", *"failed", "enter")
        await pilot.pause()
        assert "1 of 5 lines" in text_of(app)
        await pilot.press("escape", "w", "e", "f", "p", "escape")
        await pilot.pause()
        assert isinstance(app.screen, FleetScreen)


async def test_l_on_a_node_shows_what_failed_there() -> None:
    async with cockpit(fleets.difficult(), WIDE) as (_, app, pilot):
        await pilot.press("l")
        await pilot.pause()
        assert isinstance(app.screen, LogScreen) and app.screen.service == "coordinator-8080"
        assert app.screen.command == "quarterdeck logs atlas coordinator-8080"


# -- keys everywhere ---------------------------------------------------------------------------


async def test_y_copies_and_capital_y_copies_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    async with cockpit(fleets.normal(), WIDE) as (_, app, pilot):
        copied: list[str] = []
        monkeypatch.setattr(app, "copy", copied.append)
        await pilot.press("y", "tab", "down", "Y", "tab", "y")
        assert copied[0].startswith("atlas ─") and "RTX 3090" in copied[0]
        assert copied[1:] == ["quarterdeck logs bolt worker-50052", "http://127.0.0.1:8080"]


async def test_p_holds_the_picture_still_and_lets_it_go_on() -> None:
    async with cockpit(fleets.normal(), WIDE) as (engine, app, pilot):
        await pilot.press("p")
        before = app.snapshot
        engine.become(fleets.stale())
        await until(pilot, lambda: app._latest is not None and app._latest.snapshot is not before)
        assert app.snapshot is before and "‖ paused" in text_of(app) and "silent" not in text_of(app)
        await pilot.press("p")
        await pilot.pause()
        assert "silent" in text_of(app) and "paused" not in text_of(app)


async def test_ctrl_r_reads_the_configuration_again() -> None:
    async with cockpit(fleets.normal(), WIDE) as (engine, app, pilot):
        await pilot.press("ctrl+r")
        await until(pilot, lambda: told(app) == ["The configuration is in force."])
        engine.reload_problems = ("fleet.yaml:12: nodes.atlas.prot: unknown key", "another")
        await pilot.press("ctrl+r")
        await until(pilot, lambda: len(told(app)) == 2)
        assert "the old configuration stays in force. fleet.yaml:12: nodes.atlas.prot" in told(app)[1]


async def test_ctrl_s_saves_a_picture_and_never_over_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with cockpit(fleets.normal(), WIDE) as (_, _, pilot):
        await pilot.press("ctrl+s", "ctrl+s")
        await until(pilot, lambda: len(list(tmp_path.glob("*.svg"))) == 2)
    pictures = [path.read_text(encoding="utf-8") for path in tmp_path.glob("*.svg")]  # noqa: ASYNC240 (two files)
    assert all("Quarterdeck" in picture for picture in pictures)


async def test_q_leaves_and_lets_the_engine_end_tidily() -> None:
    async with cockpit(fleets.normal(), WIDE) as (engine, app, pilot):
        await pilot.press("q")
        await until(pilot, lambda: app._exit)
        assert engine.stopped and app.return_code == 0


async def test_q_asks_while_an_operation_runs() -> None:
    async with cockpit(fleets.operating(), WIDE) as (engine, app, pilot):
        await pilot.press("q")
        await pilot.pause()
        assert isinstance(app.screen, ConfirmScreen) and "is undone first" in text_of(app)
        await pilot.press("escape")
        assert not app._exit and not engine.stopped
        await pilot.press("q", "y")
        await until(pilot, lambda: app._exit)
        assert engine.stopped


async def test_an_engine_that_breaks_is_told_and_the_cockpit_stays() -> None:
    async with cockpit(fleets.normal(), WIDE) as (engine, app, pilot):
        engine.break_down(ValueError("[b]no[/b]"))
        await until(pilot, lambda: "✕ The engine stopped: ValueError: [b]no[/b]" in text_of(app))
        assert isinstance(app.failure, BaseException) and "atlas" in text_of(app)


async def test_an_engine_that_cannot_be_made_is_told() -> None:
    from app.cockpit import CockpitApp

    async def make() -> object:
        raise PlanRefused("No engine today.", "Try tomorrow.")

    app = CockpitApp(make, rate=1000.0)  # type: ignore[arg-type]
    async with app.run_test(size=NARROW) as pilot:
        await until(pilot, lambda: "No engine today." in text_of(app))
        await pilot.press("q")
        await until(pilot, lambda: app._exit)
        assert app.return_code == 1


async def test_every_binding_has_an_id_and_can_be_bound_to_another_key() -> None:
    from textual.binding import Binding

    from app import keymap
    bindings = (*keymap.APP, *keymap.FLEET, *keymap.DETAIL, *keymap.LOGS)
    assert all(isinstance(each, Binding) and each.id for each in bindings)
    async with cockpit(fleets.normal(), WIDE) as (_, app, pilot):
        app.set_keymap({"app.help": "f1"})
        await pilot.press("f1")
        await pilot.pause()
        assert isinstance(app.screen, HelpScreen)


