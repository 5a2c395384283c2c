"""The probe on real hosts: each odd node shows what is odd about it, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from fleet.model import DeviceKind, LinkKind, NodeReading
from fleet.nodes.probe import ProbeSettings, probe
from fleet.nodes.questions import nobody
from fleet.nodes.ssh import SshTransport

SETTINGS = ProbeSettings(model_dirs=("/opt/fleetlab/models",), ports=(50052, 8080))
ODD = ("plain", "fish", "csh", "busybox", "noisy", "nomdns", "nosftp", "noforward", "port2222", "slow", "lossy")


@pytest.fixture
async def connected(lab) -> AsyncIterator:
    """Connects to a node by its trait."""
    made: list[SshTransport] = []

    async def connect(trait: str) -> SshTransport:
        transport = SshTransport(lab.target(lab.one(trait), connect_timeout=30.0), ask=nobody, accept_new=False)
        made.append(transport)
        await transport.connect()
        return transport

    yield connect
    for transport in made:
        await transport.close()


def codes(reading: NodeReading) -> set[str]:
    return {problem.code for problem in reading.problems}


@pytest.mark.parametrize("trait", ODD)
async def test_a_node_that_is_odd_elsewhere_is_read_without_a_problem(lab, connected, trait: str):
    node = await connected(trait)
    first = await probe(node, SETTINGS, None, full=True, timeout=60)
    second = await probe(node, SETTINGS, first, full=False, timeout=60)
    name = lab.one(trait)
    for reading in (first, second):
        assert codes(reading) <= {"no-python", "no-llama"}, reading.problems
        assert reading.hostname == lab.nodes[name]["hostname"] and len(reading.machine_id) == 32
        assert reading.user == lab.nodes[name]["user"] and reading.memory.total and reading.cpu.threads
        eth0 = next(interface for interface in reading.interfaces if interface.name == "eth0")
        assert eth0.kind is LinkKind.WIRED and any(a.startswith(lab.address(name) + "/") for a in eth0.addresses)
        assert reading.devices[-1].name == "CPU" and reading.state_folder.endswith("/quarterdeck")
        if lab.bin:
            assert {binary.program for binary in reading.binaries} == {"llama-server", "ggml-rpc-server"}
            assert {binary.commit for binary in reading.binaries} == {"571d0d5"}
    assert first.binaries == second.binaries


@pytest.mark.parametrize(("trait", "code"), [
    ("nopython", "no-python"), ("nollama", "no-llama"), ("nogpu", "no-driver"), ("fulldisk", "disk-full")])
async def test_a_node_that_lacks_something_says_what(lab, connected, trait: str, code: str):
    reading = await probe(await connected(trait), SETTINGS, None, full=True, timeout=30)
    assert code in codes(reading), reading.problems
    problem = next(problem for problem in reading.problems if problem.code == code)
    assert problem.what and problem.remedy
    assert reading.devices[-1].kind is DeviceKind.CPU


async def test_a_home_that_cannot_be_written_moves_the_state_folder(lab, connected):
    reading = await probe(await connected("readonlyhome"), SETTINGS, None, full=True, timeout=30)
    assert reading.state_folder.startswith("/tmp/quarterdeck-") and "state-folder-fallback" in codes(reading)


@pytest.mark.parametrize(("trait", "device", "label"), [
    ("nvidia", "CUDA0", "NVIDIA GeForce RTX 3090"), ("rocm", "ROCm0", "Radeon RX 7900 XT")])
async def test_a_gpu_is_read_by_both_probes(lab, connected, trait: str, device: str, label: str):
    node = await connected(trait)
    first = await probe(node, SETTINGS, None, full=True, timeout=30)
    second = await probe(node, SETTINGS, first, full=False, timeout=30)
    for reading in (first, second):
        gpu, cpu = reading.devices
        assert (gpu.name, gpu.label, cpu.name) == (device, label, "CPU")
        assert gpu.memory_total and gpu.memory_free and gpu.memory_free < gpu.memory_total


async def test_a_worker_is_seen_with_its_port_and_its_client(lab, connected):
    if not lab.bin:
        pytest.skip("the engine extra is not installed")
    node = await connected("plain")
    address = lab.address(lab.one("plain"))
    script = 'nohup ggml-rpc-server -H "$1" -p 50061 >/dev/null 2>&1 </dev/null & printf %s "$!"'
    pid = int((await node.run(script, [address])).text)
    try:
        reading = await probe(node, SETTINGS, None, full=True, timeout=30)
        async with asyncio.timeout(20):
            while not [socket for socket in reading.sockets if socket.local_port == 50061]:
                reading = await probe(node, SETTINGS, reading, full=False, timeout=30)
        process = next(process for process in reading.processes if "50061" in process.argv)
        assert process.user == "fleet" and not process.is_zombie
        stream = await node.open_connection(address, 50061)
        reading = await probe(node, SETTINGS, reading, full=False, timeout=30)
        sockets = sorted((s for s in reading.sockets if s.local_port == 50061), key=lambda s: s.listening)
        assert [s.listening for s in sockets] == [False, True] and sockets[1].pid == process.pid
        assert sockets[0].local_host == address and sockets[0].peer_host == address
        stream.close()
    finally:
        await node.run('kill "$1"; kill $(ps -o pid= --ppid "$1") 2>/dev/null; :', [str(pid)])


async def test_quick_probes_at_once_on_one_connection_all_answer(lab, connected):
    node = await connected("plain")
    first = await probe(node, SETTINGS, None, full=True, timeout=30)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(probe(node, SETTINGS, first, full=False, timeout=60)) for _ in range(8)]
    assert {task.result().hostname for task in tasks} == {first.hostname}
