"""What is open to others without a key is said before it is started and for as long as it runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cli_engine import node

from app.checks import Verdict, all_checks
from app.follow import plan_lines
from app.present import operations
from fleet.config.schema import FleetConfig, NodeConfig, Role
from fleet.errors import PlanRefused
from fleet.facts import HeadFacts
from fleet.judge import Evidence, judge_deployment, judge_services
from fleet.model import (
    Deployment,
    DeploymentState,
    Node,
    NodeReading,
    NodeState,
    Operation,
    OperationState,
    ServiceKind,
    ServiceRecord,
    Snapshot,
)
from fleet.operations.adoption import facts_of_adopted
from fleet.planning.choose import may_be_head
from fleet.planning.exposure import of_head, of_running, of_workers, stays_inside
from fleet.runtimes.rpc_server import checked_bind
from widgets.entries import text_of_entries


def record(kind: ServiceKind, bind: str, *, argv: tuple[str, ...] = ("/x/llama-server",), port: int = 8080,
           started: float = 1.0, alive: bool = True, **facts: object) -> ServiceRecord:
    return ServiceRecord(f"{kind}-{port}", kind, 4711, "t", argv, port, bind, alive, started, "/s", facts=facts)


@pytest.mark.parametrize(("bind", "inside"), [
    ("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("[::1]", True), ("localhost", True),
    ("0.0.0.0", False), ("::", False), ("*", False), ("", False), ("10.0.0.3", False), ("atlas", False),
    ("::ffff:10.0.0.3", False), ("127.0.0.1.evil", False)])
def test_only_loopback_stays_inside(bind: str, inside: bool) -> None:
    assert stays_inside(bind) is inside


def test_an_open_head_and_open_workers_are_named_and_closed_ones_are_not() -> None:
    assert "0.0.0.0:8080" in of_head("atlas", "0.0.0.0", 8080, "")
    assert of_head("atlas", "0.0.0.0", 8080, "/etc/key") == "" and of_head("atlas", "127.0.0.1", 8080, "") == ""
    assert "10.0.0.3:50052 (bolt)" in of_workers([("bolt", "10.0.0.3", 50052), ("cedar", "127.0.0.1", 50052)])
    assert of_workers([("cedar", "127.0.0.1", 50052)]) == ""
    assert of_running("a", record(ServiceKind.COORDINATOR, "0.0.0.0", alive=False)) == ("", "")
    assert of_running("a", record(ServiceKind.COORDINATOR, "0.0.0.0", argv=("x", "--api-key-file", "/k")))[0] == ""


@pytest.mark.parametrize("bind", [
    "0.0.0.0", "224.0.0.1", "255.255.255.255", "::", "atlas", "", "0", "10.0.0.3\n", "10.1"])
def test_a_worker_is_never_bound_to_everything(bind: str) -> None:
    with pytest.raises(PlanRefused):
        checked_bind(bind)


def test_doctor_warns_of_an_open_head_and_of_a_worker_on_a_public_address() -> None:
    reading = NodeReading(os="Linux", arch="x86_64", state_folder="/s", services=(
        record(ServiceKind.COORDINATOR, "0.0.0.0"), record(ServiceKind.WORKER, "10.0.0.3", port=50052),
        record(ServiceKind.WORKER, "8.8.4.4", port=50053)))
    machine = replace(node("atlas", local=True), reading=reading)
    machine = replace(machine, services=judge_services(machine, Evidence({}, {}), 1.0))
    found = [check for check in all_checks(Snapshot(nodes={"atlas": machine}), FleetConfig())
             if "key" in check.what or "authentication" in check.what]
    assert [check.verdict for check in found] == [Verdict.WARN, Verdict.OK, Verdict.WARN]


def test_the_plan_shows_its_remarks_in_every_face() -> None:
    planned = Operation(0, "up", "Bring up", OperationState.PLANNED, remarks=("open \x1b[2J to all",))
    assert "  note: open \\x1b[2J to all" in plan_lines(planned)
    assert "open \\x1b[2J to all" in text_of_entries(operations.remarks(planned))


# Whose head it is, and whose key file


def test_a_node_that_may_be_no_head_cannot_make_itself_one() -> None:
    config = FleetConfig(nodes={"atlas": NodeConfig("atlas"), "bolt": NodeConfig("bolt", roles=(Role.WORKER,))})
    forged = record(ServiceKind.COORDINATOR, "127.0.0.1", started=2.0**40, **HeadFacts("forged").to_json())
    honest = record(ServiceKind.COORDINATOR, "127.0.0.1", **HeadFacts("honest").to_json())
    nodes = {name: Node(name, NodeState.UP, configured=name != "found", reading=NodeReading(services=(said,)))
             for name, said in (("atlas", honest), ("bolt", forged), ("found", forged))}
    nodes = {name: replace(n, services=judge_services(n, Evidence({}, {}), 1.0)) for name, n in nodes.items()}
    may = {name for name, n in nodes.items() if may_be_head(config, n)}
    assert may == {"atlas"}
    judged = judge_deployment(nodes, Evidence({}, {}), Deployment(), 1.0, heads_on=may)
    assert (judged.head, judged.model) == ("atlas", "honest")
    del nodes["atlas"]
    assert judge_deployment(nodes, Evidence({}, {}), Deployment(), 1.0, heads_on=may).state is DeploymentState.DOWN


@pytest.mark.parametrize(("user", "path", "believed"), [
    ("ops", "/home/ops/key", "/home/ops/key"), ("mallory", "/home/ops/.ssh/id_ed25519", ""), ("", "/home/ops/x", ""),
    ("ops", "../key", "")])
def test_the_key_file_that_another_users_head_names_is_never_read(user: str, path: str, believed: str) -> None:
    argv = ("llama-server", "-m", "/m/a.gguf", "--api-key-file", path)
    adopted = record(ServiceKind.COORDINATOR, "127.0.0.1", argv=argv)
    nodes = {"atlas": Node("atlas", reading=NodeReading(user="ops"))}
    facts = facts_of_adopted(adopted, "atlas", nodes, user=user)
    assert facts is not None and facts.api_key_file == believed
