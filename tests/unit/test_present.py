"""From records to rows: rounded so that a still fleet gives equal rows, and with the reason for every state."""

from __future__ import annotations

from dataclasses import replace

import example_fleets as fleets
import pytest
from example_fleets import CONFIG, GIB, NOW

from app.present import (
    deployment,
    dialogs,
    models,
    node_detail,
    nodes,
    operations,
    services,
    shell,
    status,
    units,
    words,
)
from fleet.events import AdoptProcess, BringUp, EndProcess, StopService, TearDown
from fleet.model import (
    DeploymentState,
    Device,
    DeviceKind,
    Memory,
    ModelFile,
    Node,
    NodeReading,
    NodeState,
    OperationState,
    PlacementState,
    ServiceState,
    Severity,
    Snapshot,
    StepState,
)
from widgets.entries import Entry, text_of_entries
from widgets.meters import Meter
from widgets.row_spec import Row, text_of
from widgets.spans import plain


def words_of(row: Row) -> list[str]:
    return [text_of(cell).strip() for cell in row.cells]


def text(entries: tuple[Entry, ...]) -> str:
    return text_of_entries(entries, 200)


# -- figures -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "shown"), [
    (None, "–"), (0, "0 KiB"), (-5, "0 KiB"), (48_213, "47 KiB"), (253_000_000, "241 MiB"), (GIB, "1.0 GiB"),
    (int(18.64 * GIB), "18.6 GiB"), (2_000 * GIB, "2.0 TiB")])
def test_sizes(count: int | None, shown: str) -> None:
    assert units.size(count) == shown


def test_an_age_is_live_until_readings_are_missed_and_coarse_then() -> None:
    assert [units.age(NOW, NOW - old, 2.0) for old in (0, 1.7, 5.0, 5.1, 14, 59, 61, 3_599, 3_600, 200_000)] == [
        "live", "live", "live", "5 s", "10 s", "55 s", "1 min", "59 min", "1 h", "2 d"]
    assert units.age(NOW, None, 2.0) == "–"


def test_figures_that_cannot_be_are_not_shown_as_if_they_could() -> None:
    assert units.used_of(10, 12) == 0 and units.used_of(None, 3) is None
    assert units.fraction(5, 0) is None and units.fraction(30, 10) == 1.0
    assert units.rate(float("nan")) == "–" == units.percent(float("nan"))


# -- rows --------------------------------------------------------------------------------------


def test_every_state_has_a_glyph_and_a_word() -> None:
    for table, states in ((words.NODE_SIGNS, NodeState), (words.SERVICE_SIGNS, ServiceState),
                          (words.DEPLOYMENT_SIGNS, DeploymentState), (words.OPERATION_SIGNS, OperationState),
                          (words.STEP_SIGNS, StepState), (words.SEVERITY_SIGNS, Severity)):
        assert set(table) == set(states)
        assert all(sign.glyph and (sign.word or sign is words.STEP_SIGNS[StepState.WAITING]) for sign in table.values())
    for signs in (words.NODE_SIGNS, words.SERVICE_SIGNS):
        assert len({sign.word for sign in signs.values()}) == len(signs)


def test_a_fleet_where_nothing_happens_gives_equal_rows() -> None:
    snapshot = fleets.normal()
    for after in (0.5, 1.0, 2.4):
        assert nodes.rows(snapshot, NOW) == nodes.rows(snapshot, NOW + after)
    twitching = {name: replace(each, read_at=NOW, round_trip=0.0031, reading=replace(
        each.reading, memory=replace(each.reading.memory, available=each.reading.memory.available - 9_000_000)))
        for name, each in snapshot.nodes.items() if each.reading and each.reading.memory.available}
    assert nodes.rows(replace(snapshot, nodes=twitching), NOW) == nodes.rows(snapshot, NOW)


def test_a_node_row_tells_kind_address_link_devices_memory_services_and_age() -> None:
    rows = nodes.rows(fleets.normal(), NOW)
    assert words_of(rows[1]) == ["● up", "bolt", "GPU box", "10.20.0.12 wired", "2× RTX 3060", "8.3/24.0",
                                 "worker busy", "live"]
    assert words_of(rows[0])[2:5] == ["local", "–", "RTX 3090"]
    assert words_of(rows[2])[2] == "Mac" and words_of(rows[3])[2:4] == ["CPU box", "100.64.0.9 vpn"]


def test_a_silent_node_shows_how_old_its_reading_is() -> None:
    row = nodes.rows(fleets.stale(), NOW)[1]
    assert words_of(row)[0] == "◐ silent" and words_of(row)[-1] == "2 min"
    assert words_of(row)[6] == "worker unknown"


def test_unknown_memory_is_unknown_and_never_zero() -> None:
    reading = NodeReading(memory=Memory(), devices=(Device("CUDA0", DeviceKind.CUDA, "NVIDIA GB10", unified=True),))
    snapshot = Snapshot(nodes={"spark": Node("spark", NodeState.UP, reading=reading, read_at=NOW)})
    row = nodes.rows(snapshot, NOW)[0]
    meter = row.cells[5]
    assert isinstance(meter, Meter) and meter.fraction is None and text_of(meter).strip() == "–"
    assert words_of(row)[2] == "unified"
    assert "not known" in text(node_detail.detail(snapshot, snapshot.nodes["spark"], NOW))


def test_services_say_who_holds_them_by_name() -> None:
    rows = services.rows(fleets.normal())
    assert words_of(rows[1]) == ["◉ busy", "bolt", "worker-50052", "held by atlas", "50052", "b10068", "2204"]
    assert words_of(rows[0])[3] == "1/4 slots, 17.4 tok/s"


def test_foreign_processes_are_listed_and_found_again() -> None:
    snapshot = fleets.difficult()
    rows = [row for row in services.rows(snapshot) if words_of(row)[0] == "◇ foreign"]
    assert [words_of(row)[2] for row in rows] == ["ollama", "ggml-rpc-server"]
    found = services.find(snapshot, rows[1].key)
    assert found is not None and found.foreign is not None and found.foreign.process.pid == 9_333
    assert "hunter2" not in text(services.detail(snapshot, found, NOW))


# -- the pane ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["dune", "fjord", "gale", "heron", "iris", "jade", "koi"])
def test_a_node_in_trouble_says_why_and_what_to_do_before_anything_else(name: str) -> None:
    snapshot = fleets.difficult()
    node = snapshot.nodes[name]
    lines = text(node_detail.detail(snapshot, node, NOW)).splitlines()
    assert node.problem is not None
    assert words.NODE_SIGNS[node.state].word in lines[0]
    assert node.problem.what in lines[1]
    if node.problem.remedy:
        assert lines[2] == f"→ {node.problem.remedy}"


def test_what_a_node_cannot_do_is_told_though_it_is_up() -> None:
    snapshot = fleets.difficult()
    said = text(node_detail.detail(snapshot, snapshot.nodes["elm"], NOW))
    assert "▲ No llama.cpp was found on elm." in said and "none found on this node" in said


def test_old_readings_are_marked_as_old() -> None:
    snapshot = fleets.stale()
    assert "as read 2 min ago" in text(node_detail.detail(snapshot, snapshot.nodes["bolt"], NOW))


# -- the model ---------------------------------------------------------------------------------


def test_planned_and_real_placement_stand_side_by_side() -> None:
    rows = deployment.rows(fleets.normal().deployment)
    assert words_of(rows[1]) == ["bolt RPC0 10.20.0.12:50052", "7.1 GiB, 25 layers", "7.1 GiB", "38%"]


def test_a_head_that_runs_alone_shows_empty_workers() -> None:
    local = replace(fleets.serving(), placement=fleets.placement(PlacementState.LOCAL), state=DeploymentState.DEGRADED)
    rows = deployment.rows(local)
    assert [words_of(row)[2] for row in rows] == ["18.6 GiB", "✕ empty", "✕ empty"]
    assert "✕ healthy but local" in plain(deployment.title(local))
    assert "no worker is used" in text(deployment.detail(replace(fleets.normal(), deployment=local), NOW))


# -- operations --------------------------------------------------------------------------------


def test_a_running_operation_shows_and_a_done_one_goes_away() -> None:
    snapshot = fleets.operating()
    assert operations.current(snapshot, NOW, 0) is snapshot.operations[0]
    done = replace(snapshot.operations[0], state=OperationState.DONE, ended=NOW)
    over = replace(snapshot, operations=(done,))
    assert operations.current(over, NOW + 1, 0) is done
    assert operations.current(over, NOW + operations.SHOWN_AFTER + 1, 0) is None


def test_a_failed_operation_stays_until_it_is_put_away() -> None:
    snapshot = fleets.failed()
    assert operations.current(snapshot, NOW + 10_000, 0) is snapshot.operations[0]
    assert operations.current(snapshot, NOW, 7) is None
    said = text(operations.detail(snapshot.operations[0], NOW))
    assert "✕ failed, undone" in said and "ran out of memory" in said and "→ Give atlas a smaller share" in said


# -- the status line ---------------------------------------------------------------------------


def test_the_status_line_tells_what_serves_and_what_needs_a_person() -> None:
    left, right = status.foot(fleets.normal(), status.Mode())
    assert plain(left) == "● serving qwen3-32b  17.4 tok/s  http://127.0.0.1:8080" and plain(right) == "✓ all well"
    left, right = status.foot(fleets.broken_config(), status.Mode(read_only=True, paused=True, filter="bolt"))
    assert plain(left).startswith("▣ read-only  ‖ paused, p goes on  /bolt  ●")
    assert plain(right) == "✕ fleet.yaml: 2 problems"
    assert "▲ 8 nodes need you  ✕ 2 services failed" in plain(status.foot(fleets.difficult(), status.Mode())[1])


def test_everything_that_is_wrong_has_one_page() -> None:
    said = text(status.events(fleets.difficult()))
    for part in ("The head of qwen3-32b has ended.", "heron let nobody in", "worker bolt:50052 went away", "mDNS"):
        assert part in said
    assert "did you mean 'port'?" in text(status.events(fleets.broken_config()))


# -- before a deed -----------------------------------------------------------------------------


def test_a_stop_names_host_process_pid_and_command_and_what_will_fail() -> None:
    snapshot = fleets.normal()
    selected = services.find(snapshot, services.rows(snapshot)[1].key)
    assert selected is not None
    dialog = dialogs.stop(snapshot, selected)
    assert dialog is not None and dialog.command == StopService("bolt", "worker-50052")
    said = text(dialog.entries)
    for part in ("bolt", "worker-50052", "2204", "ggml-rpc-server --host", "requests fail until"):
        assert part in said


def test_a_foreign_process_is_ended_or_adopted_by_pid_and_start_time() -> None:
    snapshot = fleets.difficult()
    foreign = [services.find(snapshot, row.key) for row in services.rows(snapshot)[-2:]]
    ollama, worker = foreign
    assert ollama is not None and worker is not None
    ended = dialogs.stop(snapshot, ollama)
    assert ended is not None and ended.command == EndProcess("elm", 9_120, "99")
    assert dialogs.adopt(ollama) is None and not dialogs.can_adopt(ollama)
    adopted = dialogs.adopt(worker)
    assert adopted is not None and adopted.command == AdoptProcess("elm", 9_333, "100")
    assert "hunter2" not in text(adopted.entries)


def test_tear_down_lists_every_process_and_shows_the_plan() -> None:
    dialog = dialogs.tear_down(fleets.normal())
    assert dialog.command == TearDown() and dialog.planned and dialog.dangerous
    assert "This ends 3 processes" in text(dialog.entries) and "cedar" in text(dialog.entries)
    assert dialogs.bring_up("").command == BringUp("")


def test_the_shell_command_is_quoted() -> None:
    snapshot = fleets.normal()
    selected = services.find(snapshot, services.rows(snapshot)[1].key)
    assert shell.command_for(snapshot, "services", None, selected) == "quarterdeck logs bolt worker-50052"
    assert shell.command_for(snapshot, "nodes", snapshot.nodes["bolt"], None) == "ssh ops@10.20.0.12"
    assert shell.command_for(snapshot, "placement", None, None) == "quarterdeck chat Hello"
    assert shell.command_for(fleets.idle(), "placement", None, None) == "quarterdeck up"
    nasty = Node("x", address=replace(snapshot.nodes["bolt"].address, host="a;reboot"))
    assert shell.command_for(snapshot, "nodes", nasty, None) == "ssh 'a;reboot'"


def test_models_are_offered_once_and_what_serves_last() -> None:
    snapshot = fleets.normal()
    assert [each.value for each in models.candidates(snapshot, CONFIG)] == ["gemma-3-270m", "qwen3-32b"]
    more = (ModelFile("/m/other-00001-of-00002.gguf", 5), ModelFile("/m/other-00002-of-00002.gguf", 5),
            ModelFile("/m/mmproj-x.gguf", 3))
    bolt, cedar = (replace(snapshot.nodes[name], reading=replace(snapshot.nodes[name].reading, models=more))
                   for name in ("bolt", "cedar"))
    found = models.candidates(replace(snapshot, nodes={"bolt": bolt, "cedar": cedar}), CONFIG)
    assert ("/m/other-00001-of-00002.gguf", "bolt, cedar") in [(each.value, each.where) for each in found]
    assert len(found) == 3 and found[-1].serves


def test_what_was_served_last_is_offered_first_and_letters_narrow_the_list() -> None:
    snapshot = fleets.normal()
    before = replace(snapshot.deployment, model="none", model_path="", recent=("qwen3-32b",))
    recent = replace(snapshot, deployment=before)
    found = models.candidates(recent, CONFIG)
    assert [each.value for each in found] == ["qwen3-32b", "gemma-3-270m"]
    assert [each.value for each in models.matching(found, "qx")] == []
    assert [each.value for each in models.matching(found, "gm7")] == ["gemma-3-270m"]
    assert models.matching(found, "") == found
