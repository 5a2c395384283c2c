"""What the verbs print: aligned text, JSON of one kind, no colour where none belongs."""

import io
import json
from pathlib import PurePosixPath

import pytest
from cli_engine import node, service, serving

from app.as_json import plain, to_line, to_text
from app.output import TransientLine, has_colour, table, width
from app.verbs.nodes import node_lines
from app.verbs.status import device_rows, status_json, status_lines
from fleet.model import (
    Binary,
    Cpu,
    Deployment,
    DeploymentState,
    Device,
    DeviceKind,
    ForeignProcess,
    Memory,
    NodeReading,
    NodeState,
    Placement,
    PlacementState,
    Problem,
    Process,
    ServiceKind,
    Share,
    Snapshot,
)

GIB = 2**30


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


# --- tables -----------------------------------------------------------------------------------


def test_columns_are_aligned_and_numbers_lean_right():
    assert table(("NAME", "N"), [("a", "1"), ("long", "100")], right=frozenset({1})) == [
        "NAME    N", "a       1", "long  100"]


def test_wide_letters_take_two_columns():
    assert width("模型") == 4
    assert table(("N", "X"), [("模型", "1"), ("ab", "2")])[1:] == ["模型  1", "ab    2"]


def test_a_hostile_cell_cannot_reach_the_terminal():
    assert "\x1b" not in "\n".join(table(("N",), [("\x1b[2J",)]))


def test_colour_needs_a_terminal_that_has_it_and_nobody_against_it(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert has_colour(Terminal())
    assert not has_colour(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not has_colour(Terminal())


def test_a_transient_line_is_never_written_into_a_pipe(monkeypatch):
    stream = io.StringIO()
    line = TransientLine(stream)
    line.show("50%")
    line.clear()
    assert stream.getvalue() == ""


def test_a_transient_line_is_cut_to_the_terminal_and_taken_away(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(Terminal, "fileno", lambda self: -1)
    stream = Terminal()
    line = TransientLine(stream)
    line.show("x" * 200)
    line.show("x" * 200)
    line.clear()
    assert stream.getvalue() == f"\r\x1b[K{'x' * 78}…\r\x1b[K"


# --- JSON -------------------------------------------------------------------------------------


def test_records_become_json_by_their_fields_and_words():
    record = plain(node("atlas", service()))
    assert record["state"] == "up"
    assert record["services"][0]["record"]["kind"] == "coordinator"
    assert record["services"][0]["record"]["facts"] == {}
    assert json.loads(to_line(node())) == plain(node())


def test_secrets_of_a_command_line_never_become_json():
    foreign = ForeignProcess(Process(1, "b:1", "S", ("llama-server", "--api-key", "s3cret")), None)
    text = to_text(node("atlas", service(), foreign=(foreign,)))
    assert "s3cret" not in text
    assert "***" in text


def test_secrets_of_an_environment_never_become_json():
    assert plain({"env": {"HF_TOKEN": "s3cret", "A": "1"}}) == {"env": {"HF_TOKEN": "***", "A": "1"}}


def test_what_is_no_number_is_null():
    assert plain([float("nan"), float("inf"), 1.5]) == [None, None, 1.5]


def test_json_is_ascii():
    assert to_line({"a": "\x9b模"}).isascii()


def test_sets_and_paths_have_a_form():
    assert plain({"b": frozenset({"y", "x"}), "p": PurePosixPath("/a")}) == {"b": ["x", "y"], "p": "/a"}


def test_what_no_record_holds_is_a_fault():
    with pytest.raises(TypeError):
        plain(object())


# --- nodes ------------------------------------------------------------------------------------


def test_nodes_are_a_line_each_with_their_troubles_below():
    up = node("atlas", local=True, sources=("local",))
    reading = NodeReading(os="Linux", arch="x86_64", cpu=Cpu(threads=16), memory=Memory(total=64 * GIB),
                          devices=(Device("CUDA0", DeviceKind.CUDA, memory_total=24 * GIB),
                                   Device("CPU", DeviceKind.CPU)),
                          binaries=(Binary("/opt/llama-server", "llama-server", 10068, "571d0d540d"),))
    up = node_with_reading(up, reading)
    locked = node("bolt", state=NodeState.LOCKED, problem=Problem("sign-in", "No key fits.", "Add one."))
    locked = node_with_reading(locked, None)
    lines = node_lines(Snapshot(nodes={"atlas": up, "bolt": locked}))
    assert lines[1].split() == ["atlas", "up", "Linux", "x86_64", "16", "64.0", "GiB", "CUDA0", "24.0", "GiB", "b10068",
                                "(571d0d540)", "local"]
    assert lines[2].split() == ["bolt", "locked"]
    assert lines[-2:] == ["bolt: No key fits.", "  Add one."]


def node_with_reading(known, reading):
    from dataclasses import replace

    return replace(known, reading=reading)


def test_unknown_figures_are_shown_as_unknown():
    assert "–" in node_lines(Snapshot(nodes={"atlas": node("atlas")}))[1]


# --- status -----------------------------------------------------------------------------------

PLANNED = (Share("bolt", "RPC0", "10.0.0.2:50052", 0.5, 10, GIB, 1, None), Share("atlas", "CUDA0", "", 0.5, 9, GIB))
REAL = (Share("bolt", "RPC0", "10.0.0.2:50052", None, 10, GIB, 1, 2), Share("atlas", "CPU", "", None, 1, GIB))


def placed(state: PlacementState = PlacementState.OVER) -> Snapshot:
    from dataclasses import replace

    snapshot = serving(node("atlas", service(), service(ServiceKind.WORKER, port=50052)))
    return replace(snapshot, deployment=replace(snapshot.deployment, placement=Placement(PLANNED, REAL, state)))


def test_planned_and_real_stand_in_one_row_a_device():
    rows = device_rows(Placement(PLANNED, REAL))
    assert [(row["node"], row["device"]) for row in rows] == [("bolt", "RPC0"), ("atlas", "CUDA0"), ("atlas", "CPU")]
    assert rows[0]["planned"] is PLANNED[0]
    assert rows[0]["real"] is REAL[0]
    assert rows[1]["real"] is None
    assert rows[2]["planned"] is None


def test_status_says_what_serves_and_where():
    lines = status_lines(placed(), 100.0)
    assert lines[0] == ("fleet: tiny is serving at http://127.0.0.1:8080, head on atlas (its loopback: reached there, "
                        "or with `quarterdeck chat`), context 4096")
    assert any(line.split()[:5] == ["atlas", "coordinator-8080", "ready", "1", "min"] for line in lines)
    assert any(line.split()[:3] == ["atlas", "coordinator-8080", "ready"] for line in lines)
    assert "placement: more than planned" in lines


def test_status_of_nothing_says_so():
    assert status_lines(Snapshot(), 1.0) == ["fleet: nothing serves"]


def test_status_tells_what_is_wrong_and_what_to_do():
    snapshot = Snapshot(deployment=Deployment(DeploymentState.BROKEN, model="tiny",
                                              problem=Problem("x", "bolt died.\x1b[0m", "Bring it up again.")))
    assert status_lines(snapshot, 1.0)[1:3] == ["  bolt died.\\x1b[0m", "  Bring it up again."]


def test_status_as_json_keeps_its_names():
    data = json.loads(to_text(status_json(placed(PlacementState.MATCHES), 100.0)))
    assert set(data) == {"schema", "clock", "fleet", "config", "deployment", "devices", "services", "nodes"}
    assert data["deployment"]["state"] == "serving"
    assert data["deployment"]["placement"]["state"] == "matches"
    assert data["devices"][0]["real"]["model_bytes"] == GIB
    assert [s["record"]["id"] for s in data["services"]] == ["coordinator-8080", "worker-50052"]
