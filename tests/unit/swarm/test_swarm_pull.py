"""Pulls over real sockets: from good peers, bad ones and half-finished ones, and what is left when it goes wrong."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import socket
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from fleet.node import (
    REPAIR,
    Access,
    Banned,
    Manifest,
    PieceDone,
    Puller,
    Seeder,
    Stopped,
    Store,
    StoreError,
    SwarmError,
    Throttle,
    parse_manifest,
)
from fleet.node import fetching as fetching_module
from fleet.node import watching as watching_module

from .parts import PIECE, get, make_model, make_shards, odd_peer, seeding

TOKEN = "correct-horse-battery"


@pytest.fixture
def to(tmp_path: Path) -> Path:
    folder = tmp_path / "to"
    folder.mkdir()
    return folder


def pull(manifest: Manifest, to: Path, peers: list[str], **options: object) -> tuple[Puller, list]:
    """A puller with a fixed seed, and the records that it tells."""
    told: list = []
    options.setdefault("patience", 20.0)
    return Puller(manifest, to, peers, tell=told.append, rng=random.Random(3), **options), told


def nothing_but(to: Path, manifest: Manifest, data: bytes) -> None:
    """The model is there, right, and no .part is left."""
    assert (to / manifest.name).read_bytes() == data
    assert sorted(path.name for path in to.iterdir()) == sorted(
        [manifest.name, manifest.name + ".quarterdeck.manifest", manifest.name + ".quarterdeck.pieces"])


def not_in_place(to: Path, manifest: Manifest, data: bytes) -> None:
    """Resumable: no file under the final name, and what the note names is right."""
    assert not (to / manifest.name).exists()
    store = Store(manifest, to)
    store.open()
    for index in store.holdings.snapshot():
        assert store.digest(manifest.piece(index)) == manifest.piece(index).sha256
    store.close()


@pytest.mark.parametrize("parallel", [1, 4, 9])
def test_a_model_comes_over_byte_for_byte(tmp_path: Path, to: Path, parallel: int) -> None:
    manifest, data = make_model(tmp_path / "source")
    with seeding(manifest, tmp_path / "source") as seeder:
        puller, told = pull(manifest, to, [seeder.url], parallel=parallel)
        outcome = puller.run()
    nothing_but(to, manifest, data)
    assert outcome.received == len(data)
    assert sorted(record.index for record in told if isinstance(record, PieceDone)) == list(range(12))
    assert told[-1].phase == "done"
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("swarm")]


def test_shards_come_over_as_one_set(tmp_path: Path, to: Path) -> None:
    manifest, parts = make_shards(tmp_path / "source")
    with seeding(manifest, tmp_path / "source") as seeder:
        outcome = pull(manifest, to, [seeder.url])[0].run()
    assert [path.read_bytes() for path in outcome.paths] == parts


def test_what_is_there_already_is_not_fetched(tmp_path: Path, to: Path) -> None:
    manifest, data = make_model(tmp_path / "source")
    shutil.copy(tmp_path / "source" / "tiny.gguf", to)
    outcome = pull(manifest, to, ["http://127.0.0.1:1"])[0].run()
    assert outcome.received == 0
    assert (to / "tiny.gguf").read_bytes() == data


def test_pieces_come_from_peers_that_each_have_a_part(tmp_path: Path, to: Path) -> None:
    manifest, data = make_model(tmp_path / "source")
    with odd_peer(manifest, data, "right", [0, 1, 2, 3, 4, 5]) as one, \
            odd_peer(manifest, data, "right", [6, 7, 8, 9, 10, 11]) as other:
        pull(manifest, to, [one, other])[0].run()
    nothing_but(to, manifest, data)


@pytest.mark.parametrize("how", ["corrupt", "truncate", "lie", "garbage", "endless"])
def test_a_bad_peer_beside_a_good_one_costs_time_and_nothing_else(tmp_path: Path, to: Path, how: str) -> None:
    manifest, data = make_model(tmp_path / "source", 24)
    # The good one is slow enough that the bad one is asked, too.
    with odd_peer(manifest, data, how) as bad, seeding(manifest, tmp_path / "source", up=4e6) as good:
        puller, told = pull(manifest, to, [bad, good.url])
        outcome = puller.run()
    nothing_but(to, manifest, data)
    banned = {record.url for record in told if isinstance(record, Banned)}
    assert banned == ({bad} if how == "corrupt" else set())
    assert set(outcome.banned) == banned


@pytest.mark.parametrize("how", ["corrupt", "truncate", "lie", "garbage", "endless"])
def test_a_bad_peer_alone_leaves_a_state_to_go_on_from(tmp_path: Path, to: Path, how: str) -> None:
    manifest, data = make_model(tmp_path / "source", 4)
    with odd_peer(manifest, data, how) as bad, pytest.raises(SwarmError) as caught:
        pull(manifest, to, [bad], patience=1.5)[0].run()
    assert caught.value.code == "no-peers"
    assert bad in caught.value.what
    not_in_place(to, manifest, data)
    with seeding(manifest, tmp_path / "source") as good:
        pull(manifest, to, [good.url])[0].run()
    nothing_but(to, manifest, data)


@pytest.mark.parametrize("how", ["hang", "drip"])
def test_what_a_stuck_or_dripping_peer_holds_is_taken_over(
        tmp_path: Path, to: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching_module, "STALLED", 1.0)
    manifest, data = make_model(tmp_path / "source", 6)
    with odd_peer(manifest, data, how) as bad, seeding(manifest, tmp_path / "source") as good:
        pull(manifest, to, [bad, good.url], stall=60.0)[0].run()
    nothing_but(to, manifest, data)


def test_a_wrong_piece_from_two_peers_is_brought_home_to_the_one_who_sent_it(tmp_path: Path, to: Path) -> None:
    manifest, data = make_model(tmp_path / "source", 3)
    puller, told = pull(manifest, to, [])
    puller.store.open()
    bad, good = "http://10.0.0.1:9080", "http://10.0.0.2:9080"
    puller.peers = {url: watching_module.Peer(watching_module.parse_peer(url)) for url in (bad, good)}
    piece, fetching = manifest.piece(1), puller._fetching

    def arrives(runs: list[tuple[str, int, int, bytes]]) -> None:
        assembly = fetching.assemblies.setdefault(1, fetching_module.Assembly(piece))
        assembly.gaps = []
        segments = [(assembly.begin(url, start, stop), content) for url, start, stop, content in runs]
        for segment, content in segments:
            segment.claim(len(content))
            os.pwrite(puller.store.handle(0), content, piece.at + segment.start)
            segment.hasher.update(content)
            assembly.end(segment)
        fetching._check(assembly)

    right = data[PIECE:2 * PIECE]
    arrives([(bad, 0, 1_000, b"x" * 1_000), (good, 1_000, PIECE, right[1_000:])])
    assert not [record for record in told if isinstance(record, Banned)]
    arrives([(good, 0, PIECE, right)])
    assert [record.url for record in told if isinstance(record, Banned)] == [bad]
    assert puller.store.holdings.snapshot() == (1,)
    puller.store.close()


def test_a_peer_that_starts_later_is_found_again(tmp_path: Path, to: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest, data = make_model(tmp_path / "source")
    with seeding(manifest, tmp_path / "source") as first:
        port = first.port
    away = threading.Event()
    puller, told = pull(manifest, to, [f"http://127.0.0.1:{port}"])
    puller._tell = lambda record: (told.append(record), getattr(record, "state", "") == "away" and away.set())
    thread = threading.Thread(target=puller.run)
    thread.start()
    assert away.wait(20)
    with seeding(manifest, tmp_path / "source", port=port):
        thread.join(30)
    nothing_but(to, manifest, data)


def test_peers_join_while_it_runs(tmp_path: Path, to: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest, data = make_model(tmp_path / "source")
    with odd_peer(manifest, data, "right", [0, 1]) as one, odd_peer(manifest, data, "right") as late:
        puller, told = pull(manifest, to, [one])

        def tell(record: object) -> None:
            told.append(record)
            if isinstance(record, PieceDone) and record.have == 2:
                puller.add_peer(late)

        puller._tell = tell
        puller.run()
    nothing_but(to, manifest, data)


def test_two_pullers_give_to_each_other_and_find_each_other_by_the_tracker(tmp_path: Path) -> None:
    manifest, data = make_model(tmp_path / "source", 30)
    with ExitStack() as stack:
        source = stack.enter_context(seeding(manifest, tmp_path / "source", up=1.5e6))
        pullers, threads = [], []
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            seeder = Seeder(port=0)
            seeder.start()
            stack.callback(seeder.stop)
            puller, _ = pull(manifest, tmp_path / name, [], seeder=seeder, trackers=[source.url])
            stack.callback(puller.store.close)
            pullers.append(puller)
            threads.append(threading.Thread(target=puller.run))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert all(puller.store.complete for puller in pullers)
        given = sum(sum(puller.seeder.sent.values()) for puller in pullers)
        assert given > 0
    for name in ("a", "b"):
        assert (tmp_path / name / "tiny.gguf").read_bytes() == data


def test_a_puller_does_not_pull_from_itself(tmp_path: Path, to: Path) -> None:
    manifest, _ = make_model(tmp_path / "source", 3)
    seeder = Seeder(port=0)
    seeder.start()
    puller, _ = pull(manifest, to, [seeder.url], seeder=seeder, patience=1.0)
    with pytest.raises(SwarmError) as caught:
        puller.run()
    assert "this machine" in caught.value.what
    seeder.stop()


def test_a_seeder_of_another_model_is_asked_for_ours_by_its_id(tmp_path: Path, to: Path) -> None:
    other, _ = make_model(tmp_path / "other", 2, name="other.gguf", seed=2)
    manifest, data = make_model(tmp_path / "source")
    with seeding(other, tmp_path / "other") as seeder:
        store = Store(manifest, tmp_path / "source", mode="seed")
        store.open()
        seeder.add(store)
        pull(manifest, to, [seeder.url])[0].run()
        store.close()
    nothing_but(to, manifest, data)


def test_without_the_token_nothing_is_given_and_the_reason_is_said(tmp_path: Path, to: Path) -> None:
    manifest, data = make_model(tmp_path / "source", 3)
    with seeding(manifest, tmp_path / "source", access=Access(TOKEN)) as seeder:
        with pytest.raises(SwarmError) as caught:
            pull(manifest, to, [seeder.url], patience=1.0)[0].run()
        assert "401" in caught.value.what
        pull(manifest, to, [seeder.url], token=TOKEN)[0].run()
    nothing_but(to, manifest, data)


def test_a_stop_is_heeded_and_the_next_pull_goes_on(tmp_path: Path, to: Path) -> None:
    manifest, data = make_model(tmp_path / "source")
    with seeding(manifest, tmp_path / "source", up=500_000) as seeder:
        puller, told = pull(manifest, to, [seeder.url])
        puller._tell = lambda record: isinstance(record, PieceDone) and record.have == 3 and puller.stop()
        with pytest.raises(Stopped):
            puller.run()
        not_in_place(to, manifest, data)
        puller, told = pull(manifest, to, [seeder.url])
        outcome = puller.run()
    assert outcome.received <= len(data) - 3 * PIECE + PIECE
    assert told
    nothing_but(to, manifest, data)


def test_a_manifest_that_contradicts_itself_puts_nothing_in_place(tmp_path: Path, to: Path) -> None:
    manifest, data = make_model(tmp_path / "source", 3)
    content = manifest.as_dict()
    content["sha256"] = "1" * 64
    for piece in content["pieces"]:
        del piece["upto"]
    bent = parse_manifest(json.dumps(content).encode())
    with odd_peer(manifest, data, "right") as peer, pytest.raises(SwarmError) as caught:
        pull(bent, to, [peer])[0].run()
    assert caught.value.code == "whole"
    assert not (to / "tiny.gguf").exists()


def test_bytes_that_rot_on_disk_during_the_pull_are_found_by_the_whole(
        tmp_path: Path, to: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest, data = make_model(tmp_path / "source", 8)
    real, rotten = Store.finish, []

    def finish(store: Store, index: int) -> None:
        if index == 5 and not rotten:
            rotten.append(index)
            os.pwrite(store.handle(0), b"rot", 5 * PIECE + 9)
        real(store, index)

    monkeypatch.setattr(Store, "finish", finish)
    with odd_peer(manifest, data, "right") as one, odd_peer(manifest, data, "right") as other:
        pull(manifest, to, [one, other])[0].run()
    assert rotten
    nothing_but(to, manifest, data)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EFBIG, errno.EIO])
def test_a_disk_that_fails_in_the_middle_ends_the_pull_with_a_reason(
        tmp_path: Path, to: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    manifest, data = make_model(tmp_path / "source")
    real = fetching_module.write_all

    def write(handle: int, view: memoryview, offset: int) -> None:
        if offset >= 7 * PIECE:
            raise OSError(number, os.strerror(number))
        real(handle, view, offset)

    monkeypatch.setattr(fetching_module, "write_all", write)
    with seeding(manifest, tmp_path / "source") as seeder:
        with pytest.raises(StoreError) as caught:
            pull(manifest, to, [seeder.url])[0].run()
        assert caught.value.code == ("file" if number == errno.EIO else "full")
        not_in_place(to, manifest, data)
        monkeypatch.setattr(fetching_module, "write_all", real)
        pull(manifest, to, [seeder.url])[0].run()
    nothing_but(to, manifest, data)


def test_a_repair_fetches_what_is_bad_and_nothing_else(tmp_path: Path, to: Path) -> None:
    manifest, data = make_model(tmp_path / "source")
    with seeding(manifest, tmp_path / "source") as seeder:
        pull(manifest, to, [seeder.url])[0].run()
        before = (to / "tiny.gguf").stat()
        with (to / "tiny.gguf").open("r+b") as file:
            file.seek(4 * PIECE + 100)
            file.write(b"bad")
        os.utime(to / "tiny.gguf", ns=(before.st_atime_ns, before.st_mtime_ns))   # the note would believe it
        outcome = pull(manifest, to, [seeder.url], mode=REPAIR, trust=False)[0].run()
    assert outcome.received == PIECE
    nothing_but(to, manifest, data)


def test_the_wall_clock_may_jump(tmp_path: Path, to: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest, data = make_model(tmp_path / "source", 6)
    jumps = random.Random(4)
    monkeypatch.setattr(time, "time", lambda: jumps.uniform(-1e10, 1e10))
    with seeding(manifest, tmp_path / "source") as seeder:
        pull(manifest, to, [seeder.url])[0].run()
    nothing_but(to, manifest, data)


def test_limits_hold_both_ways_and_can_be_lifted_while_it_runs(tmp_path: Path, to: Path) -> None:
    manifest, data = make_model(tmp_path / "source", 20)
    with seeding(manifest, tmp_path / "source") as seeder:
        puller, told = pull(manifest, to, [seeder.url], throttle=Throttle(400_000))
        first = threading.Event()
        puller._tell = lambda record: (told.append(record), isinstance(record, PieceDone) and first.set())
        thread = threading.Thread(target=puller.run)
        thread.start()
        assert first.wait(20)
        assert sum(isinstance(record, PieceDone) for record in told) < 20
        puller.set_limits(0)
        thread.join(30)
    nothing_but(to, manifest, data)


def test_a_peer_that_joins_while_the_disk_is_checked_counts(tmp_path: Path, to: Path) -> None:
    manifest, data = make_model(tmp_path / "source", 6)
    joined = threading.Event()
    with odd_peer(manifest, data, "right") as peer:
        puller, told = pull(manifest, to, [])
        puller._tell = lambda record: (told.append(record), getattr(record, "state", "") == "joined" and joined.set())
        puller.add_peer(peer)
        assert joined.wait(20)
        puller.run()
    nothing_but(to, manifest, data)


def swarm_of(tmp_path: Path, stack: ExitStack, manifest: Manifest, source: Seeder, names: str) -> list[Puller]:
    """Pullers that seed and know of each other and of the source."""
    seeders = {}
    for name in names:
        (tmp_path / name).mkdir()
        seeders[name] = Seeder(port=0)
        seeders[name].start()
        stack.callback(seeders[name].stop)
    pullers = []
    for name in names:
        urls = [source.url, *(seeder.url for other, seeder in seeders.items() if other != name)]
        puller, _ = pull(manifest, tmp_path / name, urls, seeder=seeders[name])
        stack.callback(puller.store.close)
        pullers.append(puller)
    return pullers


def test_a_source_that_gives_once_sends_the_file_once_and_everybody_has_it(tmp_path: Path) -> None:
    manifest, data = make_model(tmp_path / "source", 40)
    with ExitStack() as stack:
        source = stack.enter_context(seeding(manifest, tmp_path / "source", up=4e6))
        source.add(source.models()[0], once=True)
        pullers = swarm_of(tmp_path, stack, manifest, source, "abc")
        threads = [threading.Thread(target=puller.run) for puller in pullers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sum(source.sent.values()) <= 1.2 * len(data)
    for name in "abc":
        assert (tmp_path / name / "tiny.gguf").read_bytes() == data


def test_who_leaves_with_a_piece_that_was_given_once_does_not_hold_up_the_rest(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleet.node.turns.REST", 0.5)
    manifest, data = make_model(tmp_path / "source", 12)
    with ExitStack() as stack:
        source = stack.enter_context(seeding(manifest, tmp_path / "source"))
        source.add(source.models()[0], once=True)
        for index in (2, 5):   # a guest that takes two pieces and is gone
            assert get(source.port, f"/pieces/{index}")[0] == 200
        puller, = swarm_of(tmp_path, stack, manifest, source, "a")
        puller.run()
    assert (tmp_path / "a" / "tiny.gguf").read_bytes() == data


def test_who_comes_when_a_source_gave_everything_once_is_served_by_the_others(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleet.node.turns.REST", 0.1)
    manifest, data = make_model(tmp_path / "source", 12)
    with ExitStack() as stack:
        source = stack.enter_context(seeding(manifest, tmp_path / "source"))
        store = source.models()[0]
        source.add(store, once=True)
        early, late = swarm_of(tmp_path, stack, manifest, source, "ab")
        early.run()
        turns = source.turns(store)
        turns._last -= 1.0           # the rest is over
        turns.look()
        assert turns.over and source.total_sent() == len(data)
        late.run()
        assert source.total_sent() == len(data)
    assert (tmp_path / "b" / "tiny.gguf").read_bytes() == data


def test_a_peer_that_was_away_is_asked_again_as_soon_as_it_asks_us(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleet.node.peers.FIRST_PAUSE", 3_600.0)
    monkeypatch.setattr("fleet.node.peers.LONGEST_PAUSE", 3_600.0)
    manifest, data = make_model(tmp_path / "source", 4)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with ExitStack() as stack:
        seeder = Seeder(port=0)
        seeder.start()
        stack.callback(seeder.stop)
        away = threading.Event()
        (tmp_path / "a").mkdir()
        puller = Puller(manifest, tmp_path / "a", [f"http://127.0.0.1:{port}"], seeder=seeder,
                        tell=lambda record: away.set() if getattr(record, "state", "") == "away" else None)
        stack.callback(puller.store.close)
        thread = threading.Thread(target=puller.run)
        thread.start()
        assert away.wait(30)
        stack.enter_context(seeding(manifest, tmp_path / "source", port=port))
        assert get(seeder.port, "/bitfield")[0] == 200
        thread.join(30)
        assert not thread.is_alive()
    assert (tmp_path / "a" / "tiny.gguf").read_bytes() == data
