"""What is on disk survives a kill and a power cut, and what is not right is noticed."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path

import pytest

from fleet.node import REPAIR, SEED, Manifest, Store, StoreError, parse_manifest
from fleet.node import store as store_module
from fleet.node.bitfield import SUFFIX, Bitfield, load_bitfield, parse_bitfield

from .parts import PIECE, make_model, make_shards


def put(store: Store, data: bytes, index: int) -> None:
    """What a puller does with a piece that arrived."""
    piece = store.manifest.piece(index)
    os.pwrite(store.handle(piece.file), data[piece.offset:piece.offset + piece.size], piece.at)
    store.finish(index)


def half_done(manifest: Manifest, data: bytes, folder: Path, pieces: list[int]) -> None:
    """A folder in which a pull was stopped."""
    folder.mkdir()
    store = Store(manifest, folder)
    store.open()
    for index in pieces:
        put(store, data, index)
    store.settle()
    store.close()


def found(manifest: Manifest, folder: Path, **options: str) -> tuple[tuple[int, ...], str]:
    """(pieces, why they were hashed anew) of a folder that is opened."""
    store = Store(manifest, folder, **options)
    store.open()
    try:
        return store.holdings.snapshot(), store.rebuilt
    finally:
        store.close()


def test_a_note_is_read_back_and_any_torn_or_changed_byte_is_noticed() -> None:
    note = Bitfield("ab" * 32, 13, frozenset({0, 5, 12}), ((99, 123_456_789_012_345),))
    data = note.as_bytes()
    assert parse_bitfield(data, "ab" * 32, 13) == note
    for cut in range(len(data)):
        assert parse_bitfield(data[:cut], "ab" * 32, 13) is None
        assert parse_bitfield(data[:cut] + b"\0" * (len(data) - cut), "ab" * 32, 13) is None
        for bit in (1, 0x20):
            bent = data[:cut] + bytes([data[cut] ^ bit]) + data[cut + 1:]
            assert parse_bitfield(bent, "ab" * 32, 13) in (None, note)
    assert parse_bitfield(data, "cd" * 32, 13) is None
    assert parse_bitfield(data, "ab" * 32, 14) is None


def test_a_note_torn_at_any_byte_costs_no_finished_piece(tmp_path: Path) -> None:
    manifest, data = make_model(tmp_path / "source", 5, piece_size=4_096)
    half_done(manifest, data, tmp_path / "half", [1, 3])
    note = tmp_path / "half" / ("tiny.gguf" + SUFFIX)
    whole = note.read_bytes()
    for cut in range(len(whole)):
        note.write_bytes(whole[:cut])
        have, why = found(manifest, tmp_path / "half")
        assert have == (1, 3)
        assert "torn" in why
    note.unlink()
    assert found(manifest, tmp_path / "half")[0] == (1, 3)


def test_a_note_never_names_a_piece_that_a_power_cut_could_take(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk of this test holds only what was synced; whenever a note is written, its pieces are on that disk."""
    manifest, data = make_model(tmp_path / "source", 16, piece_size=4_096)
    (tmp_path / "to").mkdir()
    part, disk, checked = tmp_path / "to" / "tiny.gguf.part", [b""], []
    real_sync, real_save = store_module.sync_data, Bitfield.save

    def sync(handle: int) -> None:
        real_sync(handle)
        disk[0] = part.read_bytes()

    def save(note: Bitfield, path: Path) -> None:
        on_disk = disk[0]
        for index in note.have:
            piece = manifest.piece(index)
            assert on_disk[piece.at:piece.at + piece.size] == data[piece.at:piece.at + piece.size]
        checked.append(len(note.have))
        real_save(note, path)

    monkeypatch.setattr(store_module, "sync_data", sync)
    monkeypatch.setattr(Bitfield, "save", save)
    store = Store(manifest, tmp_path / "to")
    store.open()
    order = list(range(16))
    random.Random(5).shuffle(order)
    for index in order:
        put(store, data, index)
    store.settle()
    store.put_in_place()
    store.close()
    assert checked[-1] == 16
    assert (tmp_path / "to" / "tiny.gguf").read_bytes() == data


def test_half_a_new_note_beside_the_old_one_changes_nothing(tmp_path: Path) -> None:
    manifest, data = make_model(tmp_path / "source", 5)
    half_done(manifest, data, tmp_path / "half", [0])
    (tmp_path / "half" / f".tiny.gguf{SUFFIX}.new").write_bytes(b'{"format":')
    assert found(manifest, tmp_path / "half") == ((0,), "")


def test_a_clean_stop_is_believed_and_data_that_changed_after_it_is_hashed(tmp_path: Path) -> None:
    manifest, data = make_model(tmp_path / "source", 6)
    half_done(manifest, data, tmp_path / "half", [0, 2, 4])
    assert found(manifest, tmp_path / "half") == ((0, 2, 4), "")
    part = tmp_path / "half" / "tiny.gguf.part"
    with part.open("r+b") as file:
        file.seek(2 * PIECE + 5)
        file.write(b"other")
    have, why = found(manifest, tmp_path / "half")
    assert have == (0, 4)
    assert "changed" in why


@pytest.mark.parametrize("what", ["deleted", "truncated", "emptied"])
def test_data_that_is_gone_or_shorter_is_noticed(tmp_path: Path, what: str) -> None:
    manifest, data = make_model(tmp_path / "source", 6)
    half_done(manifest, data, tmp_path / "half", [0, 2, 4])
    part = tmp_path / "half" / "tiny.gguf.part"
    if what == "deleted":
        part.unlink()
    else:
        os.truncate(part, PIECE + 10 if what == "truncated" else 0)
    have, why = found(manifest, tmp_path / "half")
    assert have == ((0,) if what == "truncated" else ())
    assert why
    assert part.stat().st_size == len(data)


def test_a_note_of_another_manifest_is_not_believed(tmp_path: Path) -> None:
    manifest, _data = make_model(tmp_path / "source", 6)
    other, other_data = make_model(tmp_path / "other", 6, seed=2)
    half_done(other, other_data, tmp_path / "half", [0, 1, 2])
    assert found(manifest, tmp_path / "half")[0] == ()


def test_a_finished_file_with_changed_bytes_is_not_served(tmp_path: Path) -> None:
    manifest, _ = make_model(tmp_path, 6)
    with (tmp_path / "tiny.gguf").open("r+b") as file:
        file.seek(3 * PIECE)
        file.write(b"wrong")
    have, why = found(manifest, tmp_path, mode=SEED)
    assert have == (0, 1, 2, 4, 5)
    assert why


@pytest.mark.parametrize("content", [b"something else", None])
def test_another_file_under_the_name_is_never_overwritten(tmp_path: Path, content: bytes | None) -> None:
    manifest, data = make_model(tmp_path / "source", 4)
    (tmp_path / "to").mkdir()
    other = content if content is not None else bytes(len(data))
    (tmp_path / "to" / "tiny.gguf").write_bytes(other)
    with pytest.raises(StoreError) as caught:
        found(manifest, tmp_path / "to")
    assert caught.value.code == "exists"
    assert (tmp_path / "to" / "tiny.gguf").read_bytes() == other


def test_a_file_that_appears_during_the_pull_is_not_overwritten(tmp_path: Path) -> None:
    manifest, data = make_model(tmp_path / "source", 4)
    half_done(manifest, data, tmp_path / "to", [0, 1, 2])
    store = Store(manifest, tmp_path / "to")
    store.open()
    put(store, data, 3)
    (tmp_path / "to" / "tiny.gguf").write_bytes(b"mine")
    with pytest.raises(StoreError):
        store.put_in_place()
    store.close()
    assert (tmp_path / "to" / "tiny.gguf").read_bytes() == b"mine"
    assert (tmp_path / "to" / "tiny.gguf.part").read_bytes() == data


def test_a_kill_between_the_two_names_is_put_right(tmp_path: Path) -> None:
    manifest, data = make_model(tmp_path / "to", 4)
    os.link(tmp_path / "to" / "tiny.gguf", tmp_path / "to" / "tiny.gguf.part")
    store = Store(manifest, tmp_path / "to")
    store.open()
    assert store.complete
    store.close()
    assert not (tmp_path / "to" / "tiny.gguf.part").exists()
    assert (tmp_path / "to" / "tiny.gguf").read_bytes() == data


@pytest.mark.parametrize("kind", ["link", "folder"])
def test_a_link_or_a_folder_in_the_place_of_the_data_is_refused(tmp_path: Path, kind: str) -> None:
    manifest, _ = make_model(tmp_path / "source", 4)
    (tmp_path / "to").mkdir()
    (tmp_path / "victim").write_bytes(b"precious")
    part = tmp_path / "to" / "tiny.gguf.part"
    part.symlink_to(tmp_path / "victim") if kind == "link" else part.mkdir()
    with pytest.raises(StoreError):
        found(manifest, tmp_path / "to")
    assert (tmp_path / "victim").read_bytes() == b"precious"


def test_two_pulls_into_one_file_are_one_too_many(tmp_path: Path) -> None:
    manifest, _ = make_model(tmp_path / "source", 4)
    (tmp_path / "to").mkdir()
    first = Store(manifest, tmp_path / "to")
    first.open()
    with pytest.raises(StoreError) as caught:
        found(manifest, tmp_path / "to")
    assert caught.value.code == "busy"
    first.close()


def test_shards_take_their_names_together(tmp_path: Path) -> None:
    manifest, parts = make_shards(tmp_path / "source")
    data = b"".join(parts)
    half_done(manifest, data, tmp_path / "to", [0, 3])
    store = Store(manifest, tmp_path / "to")
    store.open()
    for index in (1, 2, 4):
        put(store, data, index)
    assert not any(path.exists() for path in store.finals)
    store.put_in_place()
    store.close()
    assert [path.read_bytes() for path in store.finals] == parts
    store.finals[0].rename(store.parts[0])   # as if killed before the first had its name
    assert found(manifest, tmp_path / "to")[0] == (0, 1, 2, 3, 4)


def test_tightwads_half_done_file_is_taken_over_after_hashing_what_it_claims(tmp_path: Path) -> None:
    manifest, data = make_model(tmp_path / "source", 6)
    (tmp_path / "to").mkdir()
    half = bytearray(len(data))
    for index in (0, 2, 3):
        half[index * PIECE:(index + 1) * PIECE] = data[index * PIECE:(index + 1) * PIECE]
    (tmp_path / "to" / "tiny.gguf").write_bytes(half)
    (tmp_path / "to" / "tiny.gguf.tightwad.pieces").write_text(json.dumps({"have": [0, 2, 4]}))
    assert found(manifest, tmp_path / "to")[0] == (0, 2)
    assert not (tmp_path / "to" / "tiny.gguf").exists()


def test_a_repair_takes_a_bad_file_back_and_keeps_what_is_right(tmp_path: Path) -> None:
    manifest, _ = make_model(tmp_path, 6)
    os.truncate(tmp_path / "tiny.gguf", 3 * PIECE + 7)
    assert found(manifest, tmp_path, mode=REPAIR)[0] == (0, 1, 2)
    assert not (tmp_path / "tiny.gguf").exists()


def test_a_manifest_whose_whole_is_another_is_not_complete(tmp_path: Path) -> None:
    manifest, _ = make_model(tmp_path / "source", 3)
    content = manifest.as_dict()
    content["sha256"] = "1" * 64
    for piece in content["pieces"]:
        del piece["upto"]
    bent = parse_manifest(json.dumps(content).encode())
    (tmp_path / "to").mkdir()
    shutil.copy(tmp_path / "source" / "tiny.gguf", tmp_path / "to" / "tiny.gguf")
    assert load_bitfield(tmp_path / "source" / ("tiny.gguf" + SUFFIX), bent.id, bent.count) is not None
    store = Store(bent, tmp_path / "to", mode=SEED)
    store.open()
    assert not store.complete
    store.close()


def test_a_full_disk_is_said_before_anything_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest, _ = make_model(tmp_path / "source", 3)
    (tmp_path / "to").mkdir()

    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.raises(StoreError) as caught:
        found(manifest, tmp_path / "to")
    assert caught.value.code == "full"
