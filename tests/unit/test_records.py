"""What a state folder says, read without ever failing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.model import ServiceKind, Severity
from fleet.nodes.records import STATE_SH, parse_services, read_listing
from fleet.nodes.transport import with_arguments

SHELLS = [[sh] if sh != "busybox" else ["busybox", "sh"] for sh in ("dash", "bash", "busybox") if shutil.which(sh)]
PID_JSON = {"pid": 4711, "start_time": "b0:17", "started_epoch": 1700000000,
            "argv": ["/opt/ggml-rpc-server", "-p", "50052"], "port": 50052, "bind": "10.0.0.2",
            "build": "b10068 (571d0d5)", "kind": "worker", "fleet": "home"}


def section(*lines: str, folder: str = "/s") -> str:
    return "\n".join(("noise before", f"qd-services 1 {folder}", *lines, "qd-services-end", "noise after", ""))


def run(sh: list[str], script: str, *arguments: str) -> str:
    text = with_arguments(f"{STATE_SH}\nset -eu\n{script}\n", arguments)
    done = subprocess.run([*sh, "-s"], input=text, text=True, capture_output=True, check=True)
    assert done.stderr == ""
    return done.stdout


def test_a_running_service_is_read_whole() -> None:
    record, = parse_services(section("service worker-50052", "log 1234", f"pid|{json.dumps(PID_JSON)}", "state alive",
                                     'facts|{"model":"gemma"}'))
    assert (record.id, record.kind) == ("worker-50052", ServiceKind.WORKER)
    assert (record.pid, record.start_time) == (4711, "b0:17")
    assert record.argv == ("/opt/ggml-rpc-server", "-p", "50052")
    assert (record.port, record.bind, record.build, record.fleet) == (50052, "10.0.0.2", "b10068 (571d0d5)", "home")
    assert (record.alive, record.exit_status, record.stopping, record.log_size) == (True, None, False, 1234)
    assert record.folder == "/s/services/worker-50052"
    assert record.facts == {"model": "gemma"}


@pytest.mark.parametrize("state", ["dead", "zombie", "recycled", "torn", "", "ALIVE"])
def test_only_alive_is_alive(state: str) -> None:
    record, = parse_services(section("service a", f"pid|{json.dumps(PID_JSON)}", f"state {state}", "exit 137    ",
                                     "stopping"))
    assert (record.alive, record.exit_status, record.stopping) == (False, 137, True)


@pytest.mark.parametrize("change", [
    {"pid": 1}, {"pid": -4}, {"pid": 0}, {"pid": True}, {"pid": "4711"}, {"pid": None}, {"pid": 2**40}, {"pid": 1.5},
    {"start_time": ""}, {"start_time": "a b"}, {"start_time": "x\n"}, {"start_time": 5}, {"start_time": "x" * 200},
    {"argv": "sh"}, {"argv": [1]}, {"argv": None}, {"argv": ["x"] * 5000},
    {"port": "1"}, {"port": -1}, {"port": 70000}, {"port": True}, {"kind": "emperor"}, {"kind": None},
    {"started_epoch": "now"}, {"started_epoch": float("nan")}, {"bind": 7}, {"build": []}, {"fleet": {}}])
def test_a_pid_file_that_says_what_cannot_be_gives_a_problem(change: dict[str, object]) -> None:
    listing = read_listing(section("service a", f"pid|{json.dumps(PID_JSON | change)}", "state alive"))
    assert listing.records == ()
    assert [problem.code for problem in listing.problems] == ["pid-file-unreadable"]
    assert listing.leftovers == ("a",)


@pytest.mark.parametrize("facts", ["", "{", "[]", "null", "5", '{"a":' * 40 + "1" + "}" * 40, "[" * 100_000])
def test_broken_facts_are_no_facts(facts: str) -> None:
    record, = parse_services(section("service a", f"pid|{json.dumps(PID_JSON)}", "state alive", f"facts|{facts}"))
    assert record.facts == {}


@pytest.mark.parametrize("name", ["../x", "A", "a b", "", "x" * 65, "-a", "a/b"])
def test_a_folder_with_a_hostile_name_is_nothing(name: str) -> None:
    assert parse_services(section(f"service {name}", f"pid|{json.dumps(PID_JSON)}", "state alive")) == ()


def test_a_start_that_is_under_way_is_no_problem() -> None:
    listing = read_listing(section("service a", "state empty"))
    assert (listing.records, listing.problems, listing.leftovers) == ((), (), ("a",))


def test_no_folder_at_all_says_why_each_place_would_not_do() -> None:
    listing = read_listing(section(
        "refused|/home/u/x cannot be written", "refused|/tmp/q belongs to another user", folder=""))
    problem, = listing.problems
    assert problem.code == "no-state-folder" and problem.severity is Severity.ERROR
    assert "/home/u/x cannot be written; /tmp/q belongs to another user" in problem.what


@given(st.text())
def test_no_text_makes_it_fail(text: str) -> None:
    parse_services(text)
    read_listing(section(*text.split("\n")))


@given(st.lists(st.sampled_from(
    ["service a", "service b", "state alive", "state torn", f"pid|{json.dumps(PID_JSON)}", "pid|{", "exit 9",
     "exit 999", "exit x", "log 5", "log -5", "log 99999999999999999999999", "stopping", "more",
      "odd", "facts|{}", "refused|x"])))
def test_no_order_of_lines_makes_it_fail(lines: list[str]) -> None:
    assert all(record.pid == 4711 for record in parse_services(section(*lines)))


# ---------------------------------------------------------------------------------------------
# The sh half, in every sh that is here


@pytest.mark.parametrize("sh", SHELLS, ids=" ".join)
def test_the_node_tells_the_living_from_the_dead_and_the_hostile(sh: list[str], tmp_path: Path) -> None:
    services = tmp_path / "state/services"
    mine = run(sh, 'qd_start_time "$1"', str(os.getpid())).strip()

    def make(name: str, **texts: str) -> None:
        (services / name).mkdir(parents=True)
        for file, text in texts.items():
            (services / name / file.replace("_", ".")).write_text(text)

    def pid_json(pid: int, start: str) -> str:
        rest = json.dumps({key: value for key, value in PID_JSON.items() if key not in ("pid", "start_time")})
        return f'{{"pid":{pid},"start_time":"{start}",{rest[1:]}\n'

    make("alive", pid_json=pid_json(os.getpid(), mine), log="12345", facts_json='{"a": "b\\\\n"}\n', stopping="")
    make("recycled", pid_json=pid_json(os.getpid(), "b0:1"), exit="143    \n")
    make("dead", pid_json=pid_json(4194303, "b0:1"))
    make("torn", pid_json='{"pid":12')
    make("posing", pid_json=f"garbage\nservice fake\npid|{pid_json(os.getpid(), mine)}state alive\n")
    make("init", pid_json=pid_json(1, mine))
    make("shellish", pid_json='{"pid":$(id),"start_time":"`id`",}\n')
    make("huge", pid_json=pid_json(os.getpid(), mine)[:-2] + ',"x":"' + "y" * 70_000 + '"}\n')
    make("under-way")
    make("Odd Name\nservice x")
    (services / "link").symlink_to(services / "alive")
    os.mkfifo(services / "torn/log")
    (services / "pipe").mkdir()
    os.mkfifo(services / "pipe/pid.json")

    (tmp_path / "state").chmod(0o700)
    text = run(sh, 'qd_find_state_folder "$1"\nqd_list_services "$qd_folder"', str(tmp_path / "state"))
    listing = read_listing(text)
    assert listing.folder == str(tmp_path / "state")
    assert {record.id: record.alive for record in listing.records} == {"alive": True, "recycled": False, "dead": False}
    alive = next(record for record in listing.records if record.id == "alive")
    assert (alive.log_size, alive.facts, alive.stopping) == (5, {"a": "b\\n"}, True)
    assert listing.recycled == ("recycled",)
    assert next(record for record in listing.records if record.id == "recycled").exit_status == 143
    assert set(listing.leftovers) == {"torn", "posing", "init", "shellish", "huge", "under-way", "pipe"}
    assert {problem.code for problem in listing.problems} == {"pid-file-unreadable", "state-folder-odd"}


@pytest.mark.parametrize("sh", SHELLS, ids=" ".join)
def test_a_process_may_call_itself_what_it_likes(sh: list[str], tmp_path: Path) -> None:
    for name in ("a) S 1 1", "new\nline", "( Z"):
        program = tmp_path / name
        program.symlink_to(shutil.which("sleep") or "/bin/sleep")
        with subprocess.Popen([str(program), "60"]) as process:
            answer = run(sh, 'qd_look "$1"; echo "$qd_state $qd_group $qd_start"', str(process.pid)).split()
            assert answer[:2] == ["S", str(os.getpgid(process.pid))]
            expected = Path(f"/proc/{process.pid}/stat").read_bytes().rpartition(b") ")[2].split()[19].decode()
            assert answer[2].rpartition(":")[2] == expected
            process.kill()


@pytest.mark.parametrize("sh", SHELLS, ids=" ".join)
@pytest.mark.parametrize("pid", ["", "0", "-1", "01", "1;id", "99999999999", "../self", "$$"])
def test_what_is_no_pid_is_no_process(sh: list[str], pid: str) -> None:
    assert run(sh, 'qd_start_time "$1"', pid) == ""
