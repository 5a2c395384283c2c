"""A model written to a machine without python3: resumed by its hashes, and never under its name before it is right."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace

import pytest

from fleet.errors import OperationFailed
from fleet.node import create_manifest
from fleet.nodes.local import LocalTransport
from fleet.operations.sending import Sending
from fleet.swarm.deal import Deal, Party
from fleet.swarm.push import Ground

PIECE = 65_536
DATA = random.Random(5).randbytes(5 * PIECE + 77)


@pytest.fixture
def deal(tmp_path: Path) -> Deal:
    for name in ("source", "target"):
        (tmp_path / name).mkdir()
    path = tmp_path / "source" / "m x.gguf"
    path.write_bytes(DATA)
    target = Party("b", Ground(folder=str(tmp_path / "target"), tool="sha256sum"))
    return Deal("m x.gguf", (str(path),), (len(DATA),), Party("a", Ground(python="/p")), (target,),
                manifest=create_manifest(path, piece_size=PIECE))


def sending(deal: Deal) -> Sending:
    return Sending(SimpleNamespace(transport=LocalTransport), deal, deal.targets[0], deal.source)


def source(deal: Deal) -> Path:
    return Path(deal.paths[0])


def target(deal: Deal) -> Path:
    return Path(deal.targets[0].ground.folder, deal.name)


@pytest.mark.parametrize("tool", ["sha256sum", ""])
async def test_it_arrives_whole_and_a_second_time_nothing_is_read(deal: Deal, tool: str):
    deal.targets = (Party("b", Ground(folder=deal.targets[0].ground.folder, tool=tool)),)
    first = sending(deal)
    await first.run()
    assert target(deal).read_bytes() == DATA and not target(deal).with_name(deal.name + ".part").exists()
    assert first.read_at_source == len(DATA) and first.pieces == 6
    again = sending(deal)
    await again.run()
    assert again.read_at_source == 0 and again.done == len(DATA)


async def test_a_broken_sending_goes_on_behind_the_last_piece_that_is_right(deal: Deal):
    part = target(deal).with_name(deal.name + ".part")
    part.write_bytes(DATA[:2 * PIECE] + b"\0" * (2 * PIECE))
    one = sending(deal)
    await one.run()
    assert target(deal).read_bytes() == DATA and one.read_at_source == len(DATA) - 2 * PIECE


async def test_another_file_of_that_name_stays_what_it_is(deal: Deal):
    target(deal).write_bytes(b"mine")
    with pytest.raises(OperationFailed) as refused:
        await sending(deal).run()
    assert refused.value.code == "exists" and target(deal).read_bytes() == b"mine"


async def test_a_source_that_changed_is_named_and_nothing_takes_the_name(deal: Deal):
    source(deal).write_bytes(DATA[:-1] + bytes([DATA[-1] ^ 1]))
    with pytest.raises(OperationFailed) as refused:
        await sending(deal).run()
    assert refused.value.code == "wrong-bytes" and "a gave wrong bytes" in refused.value.what
    assert not target(deal).exists()
