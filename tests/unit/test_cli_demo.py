"""The demo's fleet and its model file: free ports, its own state, a file that is whole or not there."""

import asyncio
import hashlib
import socket
import sys
import types
from contextlib import ExitStack, asynccontextmanager

import pytest

from app.cli import main as command
from app.demo import model_file
from app.demo.fleet import Ports, demo_config, free_ports, model_of, ports_of, state_folder
from app.demo.model_file import DemoModelMissing, ready
from app.demo.running import demo_records, running_demo
from app.demo.screenshots import portable
from app.exit_codes import ExitCode
from fleet.model import ServiceKind, ServiceRecord
from fleet.nodes.local import LocalTransport
from fleet.nodes.supervisor import ServiceSpec, Supervisor

PARTS = (b"GGUF" + b"a" * 1000, b"b" * 500)


def record(kind: ServiceKind, port: int, *, alive: bool = True, facts: dict | None = None) -> ServiceRecord:
    return ServiceRecord(id=f"{kind.value}-{port}", kind=kind, pid=1, start_time="b:1", argv=(), port=port,
                         bind="127.0.0.1", alive=alive, started_epoch=0.0, folder="", facts=facts or {})


# --- the fleet --------------------------------------------------------------------------------


def test_the_demo_is_two_workers_and_a_head_on_loopback_in_a_state_of_its_own(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    config = demo_config("tiny", "/m/tiny.gguf", Ports((50052, 50053), 8080), cores=8)
    node, = config.nodes.values()
    assert node.local
    assert [worker.port for worker in node.workers] == [50052, 50053]
    assert (node.head.port, node.head.bind, node.rpc_address) == (8080, "127.0.0.1", "127.0.0.1")
    assert node.state_dir == str(tmp_path / "quarterdeck" / "demo") == str(state_folder())
    assert config.models[config.model].workers == (node.name,)
    assert not (config.discovery.mdns or config.discovery.ssh_config or config.discovery.announce)


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 1), (8, 2), (32, 10)])
def test_the_cores_are_shared_between_the_three_processes(cores, threads):
    node, = demo_config("tiny", "/m", Ports((1, 2), 3), cores=cores).nodes.values()
    assert {node.head.threads, *(worker.threads for worker in node.workers)} == {threads}


def test_a_port_that_is_taken_is_stepped_over():
    with ExitStack() as stack:
        before = free_ports()
        for port in (*before.workers, before.head):
            taken = stack.enter_context(socket.socket())
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(("127.0.0.1", port))
            taken.listen()
        after = free_ports()
    assert not {*before.workers, before.head} & {*after.workers, after.head}
    assert len({*after.workers, after.head}) == 3


def test_a_running_demo_is_found_on_the_ports_that_it_has():
    records = [record(ServiceKind.WORKER, 50062), record(ServiceKind.WORKER, 50061, alive=False),
               record(ServiceKind.COORDINATOR, 8099, facts={"model": "tiny", "model_path": "/m/tiny.gguf"})]
    assert ports_of(records) == Ports((50061, 50062), 8099)
    assert model_of(records) == ("tiny", "/m/tiny.gguf")


def test_a_demo_without_a_live_process_is_no_demo():
    assert ports_of([record(ServiceKind.WORKER, 50061, alive=False)]) is None
    assert ports_of([]) is None


def test_a_demo_that_is_half_there_keeps_what_it_has():
    ports = ports_of([record(ServiceKind.WORKER, 50099)])
    assert ports is not None
    assert ports.workers[0] == 50099
    assert len(ports.workers) == 2


def test_a_machine_that_never_ran_the_demo_has_none(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert running_demo() is None
    assert list(tmp_path.iterdir()) == []


def test_an_empty_state_folder_is_no_demo(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    state_folder().mkdir(parents=True)
    assert running_demo() is None


def test_a_fleet_of_this_machine_is_no_demo(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    state_folder().mkdir(parents=True)
    started = asyncio.run(start_in(state_folder().parent, fleet="fleet"))
    try:
        assert running_demo() is None
        assert demo_records() == ()
        assert asyncio.run(services_in(state_folder())) == []
    finally:
        asyncio.run(stop_in(state_folder().parent, started.id))


async def start_in(folder, *, fleet: str) -> ServiceRecord:
    async with closing_transport() as transport:
        spec = ServiceSpec(id="coordinator-8080", kind=ServiceKind.COORDINATOR, argv=("/bin/sleep", "600"), port=0,
                           bind="127.0.0.1", fleet=fleet)
        return await Supervisor(transport, str(folder), settle=0.1).start(spec)


async def services_in(folder) -> list[str]:
    async with closing_transport() as transport:
        return [record.id for record in await Supervisor(transport, str(folder)).records()]


async def stop_in(folder, id: str) -> None:
    async with closing_transport() as transport:
        await Supervisor(transport, str(folder)).stop(id)


@asynccontextmanager
async def closing_transport():
    transport = LocalTransport("here")
    try:
        yield transport
    finally:
        await transport.close()


# --- the model --------------------------------------------------------------------------------


@pytest.fixture
def package(monkeypatch, tmp_path):
    """A package with a model in parts, as the demo extra's."""
    parts = []
    for number, part in enumerate(PARTS):
        path = tmp_path / f"part{number}"
        path.write_bytes(part)
        parts.append(path)
    module = types.ModuleType(model_file.PACKAGE)
    module.MODEL_NAME = "tiny.gguf"
    module.EXPECTED_SHA256 = hashlib.sha256(b"".join(PARTS)).hexdigest()
    module.chunk_paths = lambda: parts
    monkeypatch.setitem(sys.modules, model_file.PACKAGE, module)
    return module


def quiet(what: str, done: float) -> None:
    """Nobody looks."""


def test_the_model_is_put_together_and_told_of(package, tmp_path):
    told: list[tuple[str, float]] = []
    path = ready(tmp_path / "models", lambda what, done: told.append((what, done)))
    assert path.read_bytes() == b"".join(PARTS)
    assert told[-1] == ("putting the model together", 1.0)
    assert [p.name for p in path.parent.iterdir()] == ["tiny.gguf"]


def test_a_model_that_is_there_is_checked_and_left_alone(package, tmp_path):
    path = ready(tmp_path, quiet)
    before = path.stat().st_mtime_ns
    told: list[str] = []
    ready(tmp_path, lambda what, done: told.append(what))
    assert set(told) == {"checking the model"}
    assert path.stat().st_mtime_ns == before


@pytest.mark.parametrize("damage", [b"", b"GGUF", b"x" * sum(map(len, PARTS))])
def test_a_damaged_model_is_made_anew(package, tmp_path, damage):
    (tmp_path / "tiny.gguf").write_bytes(damage)
    assert ready(tmp_path, quiet).read_bytes() == b"".join(PARTS)


def test_parts_that_do_not_fit_leave_nothing_behind(package, tmp_path):
    package.EXPECTED_SHA256 = "0" * 64
    with pytest.raises(DemoModelMissing, match="hash"):
        ready(tmp_path / "models", quiet)
    assert list((tmp_path / "models").iterdir()) == []


def test_an_interrupt_leaves_nothing_behind(package, tmp_path):
    def interrupt(what: str, done: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ready(tmp_path / "models", interrupt)
    assert list((tmp_path / "models").iterdir()) == []


def test_a_missing_part_says_how_to_get_it(package, tmp_path):
    package.chunk_paths()[0].unlink()
    with pytest.raises(DemoModelMissing) as error:
        ready(tmp_path / "models", quiet)
    assert "pip install" in error.value.remedy


def test_a_folder_that_cannot_be_written_is_a_sentence(package, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DemoModelMissing, match="cannot be written"):
        ready(tmp_path / "file" / "models", quiet)


@pytest.mark.parametrize("missing", ["model", "programs"])
def test_a_missing_extra_is_a_sentence_with_the_command(missing, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    if missing == "model":
        monkeypatch.setattr("app.verbs.demo.check_programs", lambda: None)
        monkeypatch.setitem(sys.modules, model_file.PACKAGE, None)
    else:
        monkeypatch.setattr("fleet.runtimes.binaries.bundled", lambda: None)
        monkeypatch.setenv("PATH", str(tmp_path))
    assert command(["demo", "--no-ui"]) == ExitCode.FAILED
    assert "pip install 'quarterdeck[" in capsys.readouterr().err


# --- pictures ---------------------------------------------------------------------------------


def test_pictures_fetch_nothing_from_the_web_and_keep_their_spaces():
    svg = ('<svg class="a"><style>@font-face { font-family: "Fira Code"; src: url("https://example.org/f.woff2") }\n'
           '.a { font-family: Fira Code, monospace; }</style>')
    shown = portable(svg)
    assert "http" not in shown
    assert shown.startswith('<svg xml:space="preserve" ')
    assert "font-family: 'Fira Code', 'DejaVu Sans Mono'" in shown
