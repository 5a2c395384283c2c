"""What doctor finds, and how bad it says that is."""

from dataclasses import replace

from cli_engine import node, service, serving

from app.checks import Check, Verdict, all_checks
from app.verbs.doctor import check_lines
from fleet.config.schema import FleetConfig
from fleet.model import (
    Binary,
    DeploymentState,
    Device,
    DeviceKind,
    ForeignProcess,
    NodeReading,
    NodeState,
    Problem,
    Process,
    ServiceKind,
    ServiceState,
    Severity,
    Snapshot,
    Socket,
)

SERVER = Binary("/opt/llama/llama-server", "llama-server", 10068, "571d0d540")
HEALTHY = NodeReading(os="Linux", arch="x86_64", devices=(Device("CPU", DeviceKind.CPU),), binaries=(SERVER,),
                      state_folder="/home/x/.local/state/quarterdeck")


def machine(name="atlas", reading=HEALTHY, *services, **more):
    return replace(node(name, *services, **more), reading=reading)


def checks(*nodes, **more) -> list[Check]:
    return all_checks(Snapshot(nodes={n.name: n for n in nodes}, **more), FleetConfig())


def bad(found: list[Check]) -> list[tuple[str, Verdict]]:
    return [(check.area, check.verdict) for check in found if check.verdict is not Verdict.OK]


def test_a_healthy_fleet_has_nothing_to_mend():
    assert bad(checks(machine(local=True))) == []


def test_a_configured_node_that_cannot_be_reached_fails_a_found_one_only_warns():
    gone = Problem("unreachable", "No answer.", "Wake it.")
    assert bad(checks(machine("a", None, state=NodeState.UNREACHABLE, problem=gone, configured=True),
                      machine("b", None, state=NodeState.UNREACHABLE, problem=gone))) == [
        ("a", Verdict.FAIL), ("b", Verdict.WARN)]


def test_a_machine_that_was_not_tried_is_no_failure():
    assert bad(checks(machine("a", None, state=NodeState.SEEN))) == [("a", Verdict.WARN)]


def test_what_a_node_says_of_itself_keeps_its_severity():
    reading = replace(HEALTHY, problems=(Problem("no-llama", "No llama.cpp.", "Install it.", Severity.WARNING),
                                         Problem("disk", "Disk full.", "Make room.")))
    assert bad(checks(machine("a", reading, local=True))) == [("a", Verdict.WARN), ("a", Verdict.FAIL)]


def test_no_place_for_state_fails():
    assert ("a", Verdict.FAIL) in bad(checks(machine("a", replace(HEALTHY, state_folder=""), local=True)))


def test_no_programs_warns_once():
    assert bad(checks(machine("a", replace(HEALTHY, binaries=())))) == [("a", Verdict.WARN)]


def test_somebody_else_on_our_port_is_named():
    reading = replace(HEALTHY, sockets=(Socket("0.0.0.0", 8080, listening=True, pid=12, program="nginx"),))
    found = [check for check in checks(machine("a", reading)) if check.verdict is Verdict.WARN]
    assert "nginx (pid 12) listens on 8080, the head's port" in found[0].what


def test_our_own_service_on_its_port_is_no_trouble():
    reading = replace(HEALTHY, sockets=(Socket("127.0.0.1", 8080, listening=True),))
    assert bad(checks(machine("a", reading, service()))) == []


def test_a_dead_service_fails_and_says_where_its_log_is():
    found = checks(machine("a", HEALTHY, service(state=ServiceState.FAILED)))
    failed = next(check for check in found if check.verdict is Verdict.FAIL)
    assert "quarterdeck logs a coordinator-8080" in failed.remedy


def test_a_process_that_is_not_ours_is_named_an_unknown_engine_is_not():
    ours = ForeignProcess(Process(9, "b:9", "S", ("/opt/llama-server",)), ServiceKind.COORDINATOR, 8081)
    other = ForeignProcess(Process(10, "b:10", "S", ("ollama",)), None, 11434)
    found = [c.what for c in checks(machine("a", foreign=(ours, other))) if c.verdict is Verdict.WARN]
    assert found == ["llama-server (pid 9) on port 8081 was not started by this fleet"]


def test_the_demo_is_accounted_for():
    demo = ForeignProcess(Process(9, "b:9", "S", ("/opt/llama-server",)), ServiceKind.COORDINATOR, 8080)
    reading = replace(HEALTHY, sockets=(Socket("127.0.0.1", 8080, listening=True, pid=9),))
    atlas = machine("a", reading, foreign=(demo,), local=True)
    assert bad(all_checks(Snapshot(nodes={"a": atlas}), FleetConfig(), spared=frozenset({9}))) == []
    assert len(bad(checks(atlas))) == 1


def test_many_strangers_with_one_trouble_are_one_line():
    key = Problem("host-key-unknown", "Never seen.", "Look at it.")
    found = checks(*(machine(f"n{i}", None, state=NodeState.NEW_KEY, problem=key) for i in range(9)))
    line, = (check for check in found if check.verdict is Verdict.WARN)
    assert line.what == "9 machines are in state “new key”: n0, n1, n2, n3, n4, n5 ..."
    assert line.remedy == "Of n0: Never seen. Look at it."


def test_builds_that_differ_are_named():
    other = replace(HEALTHY, binaries=(Binary("/usr/bin/llama-server", "llama-server", 9000, "abcdef1"),))
    found = next(c for c in checks(machine("a"), machine("b", other)) if c.area == "builds")
    assert found.verdict is Verdict.WARN
    assert "a b10068 (571d0d540), b b9000 (abcdef1)" in found.what
    assert next(c for c in checks(machine("a"), machine("b")) if c.area == "builds").verdict is Verdict.OK


def test_a_broken_deployment_fails():
    snapshot = serving(machine("atlas", HEALTHY, service()), state=DeploymentState.BROKEN)
    assert ("deployment", Verdict.FAIL) in bad(all_checks(snapshot, FleetConfig()))


def test_a_way_of_finding_that_does_not_work_warns():
    assert bad(checks(discovery=(Problem("mdns", "No multicast.", "x"),))) == [("discovery", Verdict.WARN)]


def test_lines_have_a_mark_a_remedy_where_it_is_needed_and_a_sum():
    lines = check_lines([Check("a", Verdict.OK, "fine", "nothing"), Check("b\x1b", Verdict.FAIL, "bad", "mend it")])
    assert lines == ["[ ok ] a: fine", "[FAIL] b\\x1b: bad", "       mend it", "1 ok, 0 to look at, 1 to mend"]
