"""One source: the pieces come no further ahead of the hash of the whole than that they are on their way with it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from fleet.node import Puller
from fleet.node.fetching import WAITING
from fleet.node.whole import WholeHash

from .parts import make_model, seeding


def test_a_source_that_is_faster_than_the_hash_is_asked_at_its_pace(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest, data = make_model(tmp_path / "source", 40)
    to = tmp_path / "to"
    to.mkdir()
    parallel, ahead, hashing = 3, [], WholeHash._hash

    with seeding(manifest, tmp_path / "source") as seeder:
        puller = Puller(manifest, to, [seeder.url], parallel=parallel)

        def slow(whole: WholeHash, hasher: object, buffer: memoryview, number: int, at: int, size: int) -> None:
            with puller.cond:     # whoever has work for a worker says so here
                puller.cond.wait_for(lambda: not any(peer.active for peer in puller.peers.values()), 10.0)
                ahead.append(len({index for _, index in seeder.pieces_sent}) - whole.next)
            hashing(whole, hasher, buffer, number, at, size)

        monkeypatch.setattr(WholeHash, "_hash", slow)
        outcome = puller.run()
    assert (to / "tiny.gguf").read_bytes() == data
    assert outcome.received == len(data)                  # nothing came twice
    assert len(ahead) == manifest.count                   # nothing was hashed apart from the whole
    assert max(ahead) <= parallel + WAITING


def test_what_is_there_already_holds_up_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hash of the whole has much to read before it comes to what is new: that is fetched meanwhile."""
    manifest, data = make_model(tmp_path / "source", 40)
    to, here = tmp_path / "to", threading.Event()
    to.mkdir()
    (to / "tiny.gguf.part").write_bytes(data[:20 * manifest.piece_size])
    hashing = WholeHash._hash

    with seeding(manifest, tmp_path / "source") as seeder:
        puller = Puller(manifest, to, [seeder.url], tell=lambda record: here.set() if
                        getattr(record, "event", "") == "piece" and record.index == manifest.count - 1 else None)

        def waiting(whole: WholeHash, hasher: object, buffer: memoryview, number: int, at: int, size: int) -> None:
            assert here.wait(20.0)
            hashing(whole, hasher, buffer, number, at, size)

        monkeypatch.setattr(WholeHash, "_hash", waiting)
        puller.run()
    assert (to / "tiny.gguf").read_bytes() == data
