"""Seeders of other hosts: found by mDNS over a real network and pulled from by name, and asked through SSH."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from fleets import running, until
from swarms import FOLDER, MIB, clear, fleet_of, peer, put_model, quarterdeck

from fleet.events import Distribute
from fleet.node import create_manifest, mark_source

REPOSITORY = Path(__file__).parents[2]


def seeder_on(lab, node: str, model: Path) -> subprocess.Popen[str]:
    """`swarm seed`'s service in a node's network, with this machine's Python."""
    process = subprocess.Popen(
        ["nsenter", f"--net=/proc/{lab.pids(node)[0]}/ns/net", sys.executable, "-m", "fleet.swarm", "seed", model,
         "--host", "0.0.0.0", "--open", "--port", "9080", "--announce", "--interface", lab.address(node)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)
    while json.loads(process.stdout.readline())["event"] != "serving":
        pass
    return process


@pytest.fixture
def models(tmp_path: Path) -> tuple[Path, Path, bytes]:
    """A whole model, one of which half is there, and its bytes."""
    data = random.Random(3).randbytes(24 * MIB)
    whole, half = tmp_path / "whole" / "near.gguf", tmp_path / "half" / "near.gguf"
    for path in (whole, half):
        path.parent.mkdir()
        path.write_bytes(data)
        mark_source(create_manifest(path, piece_size=MIB), path.parent)
    half.rename(half.with_name("near.gguf.part"))
    with half.with_name("near.gguf.part").open("r+b") as file:
        file.write(bytes(12 * MIB))
    return whole, half, data


async def test_a_model_is_pulled_by_name_from_everybody_who_announces_it(lab, models, tmp_path):
    whole, half, data = models
    one, two = lab.plain[:2]
    (tmp_path / "to").mkdir()
    config = tmp_path / "fleet.yaml"
    config.write_text(f"discovery: {{interfaces: ['{lab.root_addr}'], ssh_config: false}}\n")
    seeders = []
    try:
        for node, model in ((one, whole), (two, half)):
            seeders.append(seeder_on(lab, node, model))
        pull = await quarterdeck("swarm", "pull", "near.gguf", str(tmp_path / "to"), "--config", str(config), "--json",
                                 "--limit-down-peer", "4M", tmp_path=tmp_path)
        out, _ = await pull.communicate()
        told = [json.loads(line) for line in out.splitlines() if line.startswith(b"{")]
        assert pull.returncode == 0, told[-3:]
        joined = {record["url"].split("/")[2] for record in told
                  if record["event"] == "peer" and record["state"] == "joined"}
        assert joined == {f"{lab.address(one)}:9080", f"{lab.address(two)}:9080"}
        assert (tmp_path / "to" / "near.gguf").read_bytes() == data
    finally:
        for seeder in seeders:
            seeder.terminate()
            seeder.communicate(timeout=30)
    missing = await quarterdeck("swarm", "pull", "far.gguf", str(tmp_path / "to"), "--config", str(config),
                                tmp_path=tmp_path)
    await missing.communicate()
    assert missing.returncode == 4


async def test_seeders_of_nodes_are_asked_through_ssh_with_their_own_token(lab):
    nodes, size = lab.plain[:3], 24 * MIB
    clear(lab, nodes)
    put_model(lab, nodes[0], "asked.gguf", size)
    try:
        async with running(fleet_of(lab, nodes)) as engine:
            number = engine.submit(Distribute(f"{nodes[0]}:{FOLDER}/asked.gguf", nodes[1:], limit=4e6))
            await until(engine, lambda s: (there := peer(s, nodes[1])) and there.done_bytes > 4 * MIB)
            seen = {seeder.node: seeder for seeder in await engine.seeders()}
            engine.cancel(number)
            await engine.outcome(number)
        assert set(seen) == set(nodes)
        assert all(seeder.problem is None for seeder in seen.values()), seen
        assert all(seeder.models[0].name == "asked.gguf" and seeder.models[0].size == size for seeder in seen.values())
        assert seen[nodes[0]].sent > 0
    finally:
        clear(lab, nodes)
