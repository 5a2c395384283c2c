"""The cockpit as its user has it: the real engine, real hosts, and nothing but the keyboard."""

from __future__ import annotations

import pytest
from cockpits import NARROW, WIDE, Seat, fleet_file, foreign_at, ours, seated

from app.screens.ask import AddNodeScreen, HostKeyScreen, SecretScreen
from app.screens.confirm import ConfirmScreen
from app.screens.fleet import FleetScreen
from app.screens.logs import LogScreen
from fleet.model import DeploymentState, NodeState, OperationState, PlacementState, ServiceState, Snapshot, StepState
from widgets.log_view import LogView

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]
SIZES = pytest.mark.parametrize("size", [WIDE, NARROW], ids=lambda size: f"{size[0]}x{size[1]}")
WORKER, HEAD = "worker-50052", "coordinator-8080"


def engine_processes(lab, *names: str) -> list[str]:
    """What of llama.cpp runs in these nodes, past everything that we say of it."""
    listed = [line for name in names for line in lab.exec(name, "ps", "-eo", "pid=,args=").stdout.splitlines()]
    return [line for line in listed if "llama-server" in line or "rpc-server" in line or "quarterdeck/services" in line]


def all_up(snapshot: Snapshot, *names: str) -> bool:
    return all(name in snapshot.nodes and snapshot.nodes[name].state is NodeState.UP for name in names)


def is_placed(snapshot: Snapshot) -> bool:
    deployment = snapshot.deployment
    return deployment.state is DeploymentState.SERVING and deployment.placement.state is PlacementState.MATCHES


def state_of(snapshot: Snapshot, node: str, service: str) -> ServiceState | None:
    return next((s.state for s in snapshot.nodes[node].services if s.record.id == service), None)


async def bring_up(seat: Seat) -> None:
    """`b`, the plan, yes, and serving."""
    await seat.do("b")
    await seat.knows(is_placed)


@pytest.fixture
def clean(lab):
    """Nothing of llama.cpp runs in the plain nodes when a test is over, however it ended."""
    yield
    left = engine_processes(lab, *lab.plain)
    for name in lab.plain:
        lab.exec(name, "pkill -9 -f 'llama-server|rpc-server|quarterdeck/services'")
        lab.exec(name, "rm -rf ~fleet/.local/state/quarterdeck")
    assert left == []


@SIZES
async def test_up_logs_broken_mended_and_down_by_keyboard_alone(lab, clean, tmp_path, size):
    head, worker, _ = names = lab.plain[:3]
    async with seated(fleet_file(lab, tmp_path / "fleet.yaml", *names), size) as seat:
        await seat.knows(lambda s: all_up(s, *names))
        await seat.sees(*(f"● up {name}" for name in names))

        said = await seat.ask("b")
        assert f"Start worker on {worker}, port 50052" in said and f"Start head on {head}" in said
        await seat.press("enter")                       # Cancel has the focus
        assert isinstance(seat.app.screen, FleetScreen) and seat.engine.latest.operations == ()
        await seat.ask("b")
        await seat.press("y")
        moved = await seat.knows(lambda s: s.operations and any(
            step.state is StepState.RUNNING for step in s.operations[-1].steps))
        await seat.sees(f"▸ {next(s.title for s in moved.operations[-1].steps if s.state is StepState.RUNNING)}"[:30])
        await seat.knows(is_placed)
        await seat.sees("● serving gemma", "✓ placed as planned")

        await seat.to_node(head)
        await seat.press("l")                           # of a node's services, its head comes first
        assert isinstance(seat.app.screen, LogScreen) and seat.app.screen.service == HEAD
        await seat.until(lambda: seat.app.screen.query_one("#log", LogView).kept > 20)
        kept = seat.app.screen.query_one("#log", LogView).kept
        lab.exec(head, "curl -s http://127.0.0.1:8080/completion -d '{\"prompt\":\"1 2 3\",\"n_predict\":3}'")
        await seat.until(lambda: seat.app.screen.query_one("#log", LogView).kept > kept)
        await seat.press("escape")

        lab.exec(worker, "pkill -9 -f ggml-rpc-server")
        broken = await seat.knows(lambda s: s.deployment.state is DeploymentState.BROKEN)
        assert broken.deployment.problem.code == "worker-dead"
        await seat.to_service(worker, ours(WORKER))
        await seat.sees("✕ broken gemma", "✕ failed", "→")
        await seat.to_panel("nodes")
        await bring_up(seat)

        said = await seat.do("d")
        assert all(f"{name} " in said for name in names) and "pid " in said
        await seat.knows(lambda s: s.deployment.state is DeploymentState.DOWN)
        await seat.sees("nothing serves")
    assert engine_processes(lab, *names) == []


async def test_one_service_is_stopped_started_and_restarted_but_not_read_only(lab, clean, tmp_path):
    head, worker = names = lab.plain[:2]
    path = fleet_file(lab, tmp_path / "fleet.yaml", *names)
    async with seated(path, NARROW) as seat:
        await seat.knows(lambda s: all_up(s, *names))
        await bring_up(seat)
        await seat.to_service(worker, ours(WORKER))
        record = next(s.record for s in seat.engine.latest.nodes[worker].services)
        said = await seat.ask("x")
        assert worker in said and WORKER in said and str(record.pid) in said and "ggml-rpc-server" in said
        assert "requests fail" in said
        await seat.press("y")
        await seat.knows(lambda s: state_of(s, worker, WORKER) is ServiceState.EXITED)
        await seat.knows(lambda s: s.deployment.state is DeploymentState.BROKEN)
        await seat.do("s")
        await seat.knows(lambda s: state_of(s, worker, WORKER) in (ServiceState.READY, ServiceState.BUSY))
        await seat.to_service(head, ours(HEAD))
        await seat.do("r")
        after = await seat.knows(is_placed)
        assert after.operations[-1].state is OperationState.DONE
        assert next(s.record for s in after.nodes[worker].services).pid != record.pid
    async with seated(path, WIDE, read_only=True) as seat:       # what runs was left running, and is found again
        await seat.knows(is_placed)
        await seat.sees("▣ read-only")
        for panel in ("nodes", "services", "placement"):
            await seat.to_panel(panel)
            await seat.press("b", "d", "x", "s", "r", "a", "n", "t", "c")
            assert isinstance(seat.app.screen, FleetScreen)
        assert seat.engine.latest.operations == () and is_placed(seat.engine.latest)
    async with seated(path) as seat:
        await seat.knows(is_placed)
        await seat.do("d")


async def test_foreign_processes_are_shown_adopted_and_ended(lab, clean, tmp_path):
    node = lab.plain[0]
    for command in (f"llama-server -m {lab.model()} --port 9001 -c 256 -t 1", "ggml-rpc-server -p 9002"):
        lab.exec(node, f"nohup {command} >/dev/null 2>&1 &", user="fleet")
    async with seated(fleet_file(lab, tmp_path / "fleet.yaml", node), WIDE) as seat:
        await seat.knows(lambda s: all_up(s, node) and {f.port for f in s.nodes[node].foreign} == {9001, 9002})
        await seat.to_service(node, foreign_at(9001))
        await seat.sees("◇ foreign", "llama-server", "This process was not started by")
        assert "into our care" in await seat.do("a")
        await seat.knows(lambda s: state_of(s, node, "coordinator-9001") is not None)
        await seat.to_service(node, foreign_at(9002))
        said = await seat.do("x")
        assert "Quarterdeck did not start this process" in said and "ggml-rpc-server" in said and node in said
        await seat.knows(lambda s: s.nodes[node].foreign == ())
        await seat.to_service(node, ours("coordinator-9001"))
        await seat.do("x")
        await seat.knows(lambda s: state_of(s, node, "coordinator-9001") in (None, ServiceState.EXITED))
    assert engine_processes(lab, node) == []


@SIZES
async def test_machines_ask_for_what_they_need_and_one_more_is_added_by_hand(lab, tmp_path, size):
    password, new_key, extra = lab.one("password"), lab.one("newkey"), lab.plain[2]
    async with seated(fleet_file(lab, tmp_path / "fleet.yaml", password, new_key), size) as seat:
        answered: set[int] = set()
        for _ in (password, new_key):                   # whichever comes first
            await seat.until(lambda: isinstance(seat.app.screen, HostKeyScreen | SecretScreen)
                             and seat.app.screen.question.id not in answered)
            answered.add(seat.app.screen.question.id)
            if isinstance(seat.app.screen, HostKeyScreen):
                await seat.sees(new_key, "SHA256:", "Is this the machine you mean?")
                await seat.press("t")
            else:
                await seat.sees(password)
                await seat.press(*"wrong", "escape")    # not now
        await seat.knows(lambda s: s.nodes[new_key].state is NodeState.UP
                         and s.nodes[password].state is NodeState.LOCKED)
        await seat.until(lambda: isinstance(seat.app.screen, FleetScreen))
        tries = seat.engine.latest.nodes[password].attempts
        await seat.knows(lambda s: s.nodes[password].attempts > tries)
        assert isinstance(seat.app.screen, FleetScreen), "who has said no is not asked again at every try"
        await seat.to_node(password)
        await seat.sees("⊠ locked", "→", "t Try now")
        await seat.press("t")
        await seat.until(lambda: isinstance(seat.app.screen, SecretScreen))
        secret = lab.nodes[password]["password"]
        await seat.press(*secret)
        assert secret not in seat.text
        await seat.press("enter")
        await seat.knows(lambda s: s.nodes[password].state is NodeState.UP)

        await seat.press("n")
        assert isinstance(seat.app.screen, AddNodeScreen)
        await seat.press("enter")
        await seat.sees("An address is needed")
        await seat.press(*lab.address(extra), "enter")
        hostname = lab.nodes[extra]["hostname"]
        await seat.knows(lambda s: any(n.state is NodeState.UP and n.reading and n.reading.hostname == hostname
                                       for n in s.nodes.values()))


async def test_a_broken_file_is_not_taken_and_a_mended_one_is(lab, tmp_path):
    path = fleet_file(lab, tmp_path / "fleet.yaml", *lab.plain[:2])
    good = path.read_text()
    async with seated(path, NARROW) as seat:
        await seat.knows(lambda s: all_up(s, *lab.plain[:2]))
        path.write_text(good.replace("refresh: 1", "refrehs: 1"))
        await seat.press("ctrl+r")
        await seat.until(lambda: any("the old configuration stays in force" in told and "refresh" in told
                                     for told in seat.told))
        await seat.sees("✕ fleet.yaml: 1 problem")
        assert seat.engine.config.refresh == 1.0 and all_up(seat.engine.latest, *lab.plain[:2])
        fleet_file(lab, path, *lab.plain[:3])
        await seat.press("ctrl+r")
        await seat.knows(lambda s: all_up(s, *lab.plain[:3]) and not s.config_problems)
        await seat.sees("✓ all well")


async def test_quitting_while_a_model_is_brought_up_undoes_it(lab, clean, tmp_path):
    names = lab.plain[:3]
    async with seated(fleet_file(lab, tmp_path / "fleet.yaml", *names)) as seat:
        await seat.knows(lambda s: all_up(s, *names))
        await seat.ask("b")
        await seat.press("y")
        await seat.knows(lambda s: s.operations and any(
            step.title.startswith("Load") and step.started for step in s.operations[-1].steps))
        await seat.press("q")
        await seat.until(lambda: isinstance(seat.app.screen, ConfirmScreen))
        await seat.sees("what it has done so far is undone first")
        await seat.press("y")
        await seat.until(lambda: seat.app.return_code is not None)
    assert seat.engine.latest.operations[-1].state is OperationState.CANCELLED
    assert seat.app.return_code == 0
    assert engine_processes(lab, *names) == []
