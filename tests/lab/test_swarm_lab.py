"""Distributing a model over real hosts: late ones, lost ones, bad disks, kills, no python3, full disks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest
from fleets import running, until
from swarms import (
    FOLDER,
    MIB,
    clear,
    fleet_of,
    fleet_yaml,
    hash_on,
    leftovers,
    make_manifest,
    make_whole,
    peer,
    put_manifest,
    put_model,
    quarterdeck,
    spoil,
    swarm_of,
)

from fleet.events import Distribute
from fleet.model import OperationState
from fleet.model.swarm import PeerState
from fleet.operations import spreading

NAME = "m.gguf"
PIECE = 512 * 1024


@pytest.fixture
def nodes(lab) -> Iterator[tuple[str, ...]]:
    """A source and five targets, without a model."""
    names = (*lab.plain, lab.one("nvidia"), lab.one("noforward"), lab.one("fish"))
    clear(lab, names)
    yield names
    clear(lab, names)


async def test_a_late_one_a_lost_one_and_a_bad_disk(lab, nodes, tmp_path, monkeypatch):
    monkeypatch.setattr(spreading, "AWAY", 6.0)
    size, (source, one, two, bad, lost, late) = 24 * MIB, nodes
    wanted = put_model(lab, source, NAME, size)
    put_manifest(lab, source, make_manifest(tmp_path, NAME, size, 1, PIECE))
    make_whole(lab, bad, NAME, size, 1, tmp_path, PIECE)
    spoil(lab, bad, NAME, PIECE)
    lab.kill(late)
    async with running(fleet_of(lab, nodes)) as engine:
        number = engine.submit(Distribute(f"{source}:{FOLDER}/{NAME}", nodes[1:], limit=5e6))
        await until(engine, lambda s: (there := peer(s, lost)) and there.have_count > 2)
        lab.kill(lost)
        lab.boot(late)
        engine.connect(late)         # at once, not at its next try
        operation = await engine.outcome(number)
        swarm = swarm_of(engine.latest)
    by_name = {each.node: each for each in swarm.peers}
    assert operation.state is OperationState.FAILED and operation.problem is not None
    assert bad in operation.problem.what and lost in operation.problem.what
    assert all(by_name[node].state is PeerState.DONE for node in (one, two, late)), by_name
    assert by_name[bad].problem.code == "wrong-bytes" and {ban.source for ban in swarm.bans} == {bad}
    assert by_name[lost].state is PeerState.FAILED
    assert all(hash_on(lab, node, NAME) == wanted for node in (one, two, late))
    assert swarm.sent_by_source <= 1.2 * size
    assert not leftovers(lab, (source, one, two, bad, late))


async def test_a_puller_that_is_killed_goes_on_and_loses_nothing_that_was_finished(lab, nodes):
    size, (source, one, two, *_) = 24 * MIB, nodes
    wanted = put_model(lab, source, NAME, size)
    async with running(fleet_of(lab, nodes[:3])) as engine:
        number = engine.submit(Distribute(NAME, (one, two), sha256=(wanted,), limit=6e6))
        await until(engine, lambda s: (there := peer(s, one)) and there.have_count > 6)
        lab.exec(one, "pkill -9 -f quarterdeck-nod[e]-")
        operation = await engine.outcome(number)
        swarm = swarm_of(engine.latest)
        assert operation.state is OperationState.DONE, operation.problem
        assert {each.state for each in swarm.peers} == {PeerState.DONE}
        assert hash_on(lab, one, NAME) == hash_on(lab, two, NAME) == wanted
        assert swarm.sent_by_source <= 1.3 * size
        assert not leftovers(lab, nodes[:3])
        models = {node: [file.path for file in engine.latest.nodes[node].reading.models] for node in (one, two)}
        assert models == {one: [f"{FOLDER}/{NAME}"], two: [f"{FOLDER}/{NAME}"]}
        again = await engine.outcome(engine.submit(Distribute(NAME, (one, two))))
        assert again.state is OperationState.DONE
        assert swarm_of(engine.latest).sent_by_source == 0


async def test_a_cockpit_that_is_killed_leaves_pulls_and_the_same_command_ends_them(lab, nodes, tmp_path):
    size, (source, one, two, *_) = 24 * MIB, nodes
    wanted = put_model(lab, source, NAME, size)
    file = fleet_yaml(lab, nodes[:3], tmp_path / "fleet.yaml")
    words = ["--config", str(file), "swarm", "distribute", f"{source}:{FOLDER}/{NAME}", "--to", f"{one},{two}"]
    async with running(fleet_of(lab, nodes[:3])) as engine:
        cockpit = await quarterdeck(*words, "--limit", "4M", tmp_path=tmp_path)
        try:
            assert cockpit.stdout is not None
            while b": pulling" not in await asyncio.wait_for(cockpit.stdout.readline(), 60):
                continue
        finally:
            cockpit.kill()
            await cockpit.wait()
        # Nobody looks after them, and they go on.
        await until(engine, lambda s: sum(record.alive and record.id.startswith("swarm-") for node in s.nodes.values()
                                          if node.reading for record in node.reading.services) == 3)
        while f"{FOLDER}/{NAME}" not in [file.path for file in (await engine.reread(one)).models]:
            continue
        again = await quarterdeck(*words, "--json", tmp_path=tmp_path)
        out, _ = await asyncio.wait_for(again.communicate(), 60)
    said = json.loads(out)
    assert again.returncode == 0, said
    assert {peer["state"] for peer in said["swarm"]["peers"]} == {"done"}
    assert said["swarm"]["sent_by_source"] <= 1.2 * size
    assert hash_on(lab, one, NAME) == hash_on(lab, two, NAME) == wanted
    assert not leftovers(lab, nodes[:3])


async def test_what_is_cancelled_is_stopped_and_goes_on_where_it_was(lab, nodes):
    size, (source, one, *_) = 24 * MIB, nodes
    wanted = put_model(lab, source, NAME, size)
    async with running(fleet_of(lab, nodes[:2])) as engine:
        number = engine.submit(Distribute(NAME, (one,), limit=6e6))
        await until(engine, lambda s: (there := peer(s, one)) and there.have_count > 8)
        engine.cancel(number)
        operation = await engine.outcome(number)
        assert operation.state is OperationState.CANCELLED and not leftovers(lab, nodes[:2])
        assert peer(engine.latest, one).state is PeerState.STOPPED
        had = peer(engine.latest, one).have_count
        operation = await engine.outcome(engine.submit(Distribute(NAME, (one,))))
        assert operation.state is OperationState.DONE, operation.problem
        assert swarm_of(engine.latest).sent_by_source <= size - (had - 1) * MIB
    assert hash_on(lab, one, NAME) == wanted


async def test_nodes_without_python3_or_sftp_are_written_to_and_hashed_there(lab, nodes):
    size, (source, one, *_) = 5 * MIB + 12_345, nodes
    without = lab.one("nopython")
    clear(lab, (without,))
    wanted = put_model(lab, source, NAME, size)
    torn = f"head -c 3000000 /dev/urandom >{FOLDER}/{NAME}.part"
    lab.exec(without, f"mkdir -p {FOLDER}; {torn}", user="fleet")
    async with running(fleet_of(lab, (source, one, without))) as engine:
        operation = await engine.outcome(engine.submit(Distribute(NAME, (one, without))))
        swarm = swarm_of(engine.latest)
    assert operation.state is OperationState.DONE, operation.problem
    assert any("no python3" in remark for remark in operation.remarks)
    assert hash_on(lab, one, NAME) == hash_on(lab, without, NAME) == wanted
    assert not lab.exec(without, f"ls {FOLDER}/{NAME}.part").stdout
    assert swarm.sent_by_source <= 1.2 * size      # it had it from the other one
    clear(lab, (without,))


async def test_a_full_disk_is_refused_before_a_byte_moves(lab, nodes):
    size, (source, one, two, *_) = 24 * MIB, nodes
    put_model(lab, source, NAME, size)
    lab.exec(two, f"mkdir -p {FOLDER} && mount -t tmpfs -o size=16m,uid=7700 tmpfs {FOLDER}")
    async with running(fleet_of(lab, nodes[:3])) as engine:
        operation = await engine.outcome(engine.submit(Distribute(NAME, (one, two))))
        assert operation.state is OperationState.REFUSED and operation.problem.code == "no-room"
        assert two in operation.problem.what and one not in operation.problem.what
        assert engine.latest.swarms == ()
    assert not leftovers(lab, nodes[:3])
    assert not lab.exec(one, f"ls {FOLDER} 2>/dev/null").stdout
