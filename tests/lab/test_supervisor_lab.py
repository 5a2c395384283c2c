# ruff: noqa: ASYNC110 - what a node does by itself, it tells nobody
"""The supervisor on real hosts: services outlive the connection, whatever the node is like."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, aclosing

import pytest

from fleet.errors import StartFailed
from fleet.model import ServiceKind
from fleet.nodes.questions import nobody
from fleet.nodes.services import ServiceSpec
from fleet.nodes.ssh import SshTransport
from fleet.nodes.supervise import script
from fleet.nodes.supervisor import Supervisor

USABLE = ("plain", "fish", "csh", "busybox", "noisy", "nopython", "nosftp", "port2222", "readonlyhome", "slow", "lossy")


@pytest.fixture
async def sign_in(lab):
    """Connects to a node by name; all connections are let go of at the end."""
    async with AsyncExitStack() as stack:
        async def made(name: str) -> SshTransport:
            transport = SshTransport(lab.target(name, connect_timeout=30.0), ask=nobody, accept_new=False)
            stack.push_async_callback(transport.close)
            await transport.connect()
            return transport
        yield made


@pytest.fixture
def swept(lab):
    """After a test none of our processes is left on the nodes that it names."""
    names: list[str] = []
    yield names.append
    for name in names:
        left = lab.exec(name, "ps -eo args 2>/dev/null || ps").stdout
        assert "keeper.sh" not in left and "ggml-rpc-server" not in left, left


def worker(lab, name: str) -> ServiceSpec:
    if not lab.bin:
        pytest.skip("the engine extra is not installed")
    address = lab.address(name)
    return ServiceSpec("worker-50052", ServiceKind.WORKER,
                       (f"{lab.bin_inside}/ggml-rpc-server", "-H", address, "-p", "50052", "-d", "CPU"),
                       {"LD_LIBRARY_PATH": lab.bin_inside}, 50052, address, fleet="lab", facts={"planned": ["CPU"]})


@pytest.mark.engine
@pytest.mark.parametrize("trait", USABLE)
async def test_a_worker_outlives_the_connection_and_goes_without_a_trace(lab, sign_in, swept, trait):
    name = lab.one(trait)
    swept(name)
    first = await sign_in(name)
    started = await Supervisor(first).start(worker(lab, name))
    await first.close()
    node = Supervisor(await sign_in(name))
    listing = await node.listing()
    record, = listing.records
    assert (record.pid, record.alive, record.facts) == (started.pid, True, {"planned": ["CPU"]})
    if trait == "readonlyhome":
        assert started.folder.startswith("/tmp/quarterdeck-")
        assert [problem.code for problem in listing.problems] == ["state-folder-fallback"]
    else:
        assert listing.problems == ()
    report = await node.stop("worker-50052")
    assert (report.phases, report.status, report.port_free) == (("TERM", "gone", "port free"), 143, True)
    assert await node.forget_ended() == ("worker-50052",)
    assert await node.records() == ()


@pytest.mark.engine
async def test_a_full_disk_is_said_and_leaves_nothing(lab, sign_in, swept):
    name = lab.one("fulldisk")
    swept(name)
    node = Supervisor(await sign_in(name))
    with pytest.raises(StartFailed, match="is full") as caught:
        await node.start(worker(lab, name))
    assert caught.value.code == "disk-full"
    assert await node.records() == ()


@pytest.mark.engine
async def test_services_and_nothing_else_outlive_an_sshd_that_is_killed(lab, sign_in, swept, monkeypatch):
    monkeypatch.setattr("fleet.nodes.logs.script", lambda name: script(name).replace("-ge 30 ]", "-ge 2 ]"))
    name = lab.one("plain")
    swept(name)
    node = Supervisor(await sign_in(name))
    started = await node.start(worker(lab, name))
    async with aclosing(node.follow_log("worker-50052")) as lines:
        following = asyncio.ensure_future(anext(lines, None))
        async with asyncio.timeout(20):
            while "sleep 0.5" not in lab.exec(name, "ps -eo args").stdout:
                await asyncio.sleep(0.1)
        lab.kill_sshd(name)
        await asyncio.wait([following], timeout=30)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    lab.boot(name)
    async with asyncio.timeout(20):
        while "sleep 0.5" in lab.exec(name, "ps -eo args").stdout:
            await asyncio.sleep(0.1)
    again = Supervisor(await sign_in(name))
    assert [(each.pid, each.alive) for each in await again.records()] == [(started.pid, True)]
    await again.stop("worker-50052")
    await again.forget_ended()
