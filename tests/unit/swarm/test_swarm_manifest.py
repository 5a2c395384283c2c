"""The manifest: right hashes in one pass, and no mercy for one that breaks a rule."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from fleet.node import (
    ManifestRefused,
    Stopped,
    StoreError,
    create_manifest,
    find_manifest,
    load_manifest,
    parse_manifest,
)

from .parts import PIECE, make_model, make_shards


@pytest.mark.parametrize("size", [1, 4_095, 4_096, 4_097, 8_192, 3_000_000, (1 << 20) + 1])
def test_every_hash_is_the_one_of_its_bytes(tmp_path: Path, size: int) -> None:
    data = bytes(index * 7 & 255 for index in range(size))
    (tmp_path / "m.gguf").write_bytes(data)
    manifest = create_manifest(tmp_path / "m.gguf", piece_size=4_096)
    assert manifest.files[0].sha256 == hashlib.sha256(data).hexdigest()
    assert manifest.total_size == size
    for index in range(manifest.count):
        piece = manifest.piece(index)
        assert piece.sha256 == hashlib.sha256(data[piece.offset:piece.offset + piece.size]).hexdigest()
        assert manifest.prefix(index) == hashlib.sha256(data[:piece.offset + piece.size]).digest()


def test_what_is_saved_is_what_is_read(tmp_path: Path) -> None:
    manifest, _ = make_model(tmp_path)
    found = find_manifest(tmp_path / "tiny.gguf")
    assert found is not None
    assert load_manifest(found) == manifest
    assert load_manifest(found).facts == {"architecture": "llama"}


def test_shards_are_one_set_and_no_piece_crosses_from_one_into_the_next(tmp_path: Path) -> None:
    manifest, parts = make_shards(tmp_path)
    again = parse_manifest(manifest.as_bytes())
    assert again == manifest
    assert [again.piece(index).size for index in range(again.count)] == [65_536, 65_536, 18_928, 65_536, 1]
    whole = b"".join(parts)
    for index in range(again.count):
        piece = again.piece(index)
        assert hashlib.sha256(whole[piece.offset:piece.offset + piece.size]).hexdigest() == piece.sha256
        assert parts[piece.file][piece.at:piece.at + piece.size] == whole[piece.offset:piece.offset + piece.size]


def test_the_id_is_of_the_bytes_and_not_of_the_name(tmp_path: Path) -> None:
    one, _ = make_model(tmp_path / "a", name="one.gguf")
    other, _ = make_model(tmp_path / "b", name="other.gguf")
    third, _ = make_model(tmp_path / "c", name="one.gguf", seed=2)
    assert one.id == other.id != third.id


def test_progress_ends_with_everything_and_a_stop_is_heeded(tmp_path: Path) -> None:
    make_model(tmp_path)
    told: list[tuple[int, int]] = []
    create_manifest(tmp_path / "tiny.gguf", piece_size=PIECE, progress=lambda *both: told.append(both))
    assert told[-1][0] == told[-1][1] == (tmp_path / "tiny.gguf").stat().st_size
    stop = threading.Event()
    stop.set()
    with pytest.raises(Stopped):
        create_manifest(tmp_path / "tiny.gguf", stop=stop)


def test_a_file_that_changes_meanwhile_gets_no_manifest(tmp_path: Path) -> None:
    make_model(tmp_path)
    path = tmp_path / "tiny.gguf"

    def grow(done: int, total: int) -> None:
        if done == total:
            path.write_bytes(path.read_bytes() + b"more")

    with pytest.raises(StoreError) as caught:
        create_manifest(path, progress=grow)
    assert caught.value.code == "changed"


def test_tightwads_manifest_is_read(tmp_path: Path) -> None:
    manifest, _ = make_model(tmp_path)
    content = {key: value for key, value in manifest.as_dict().items() if key not in ("format", "version", "sha256")}
    for piece in content["pieces"]:
        del piece["upto"]
    content["metadata"] = {"arch": "llama", "n_layers": 18, "params": "270M"}
    path = tmp_path / "tiny.gguf.tightwad.manifest"
    path.write_text(json.dumps(content, indent=2))
    (tmp_path / "tiny.gguf.quarterdeck.manifest").unlink()
    assert find_manifest(tmp_path / "tiny.gguf") == path
    theirs = load_manifest(path)
    assert theirs.id == manifest.id
    assert theirs.files[0].sha256 == ""
    assert parse_manifest(theirs.as_bytes().replace(b'"format":"quarterdeck-manifest","version":1,', b"")
                          .replace(b',"sha256":""}', b"}")).id == manifest.id


def changed(**values: object) -> Callable[[dict], None]:
    return lambda content: content.update(values)


def of_piece(number: int, **values: object) -> Callable[[dict], None]:
    return lambda content: content["pieces"][number].update(values)


HOSTILE: dict[str, Callable[[dict], None]] = {
    "a path": changed(filename="../../etc/passwd"), "an absolute path": changed(filename="/etc/passwd"),
    "a backslash": changed(filename="a\\b"), "a drive": changed(filename="c:x"),
    "a hidden file": changed(filename=".bashrc"), "an option": changed(filename="-rf"),
    "dots": changed(filename=".."), "no name": changed(filename=""), "a NUL": changed(filename="a\0b"),
    "a newline": changed(filename="a\nb"), "an escape": changed(filename="\x1b[2J"),
    "turned letters": changed(filename="a\u202eb"), "half a letter": changed(filename="a\ud800"),
    "a long name": changed(filename="a" * 201), "a name of ours": changed(filename="x.part"),
    "a note's name": changed(filename="x.quarterdeck.pieces"), "a name that is a list": changed(filename=["a"]),
    "a negative offset": of_piece(1, offset=-1), "an offset behind the end": of_piece(1, offset=1 << 40),
    "an overlap": of_piece(1, offset=1), "a wrong index": of_piece(1, index=2), "an index twice": of_piece(1, index=0),
    "a wrong size": of_piece(1, size=16), "a true size": of_piece(0, index=False), "a float": of_piece(1, size=65536.0),
    "no hash": of_piece(1, sha256=None), "a short hash": of_piece(1, sha256="ab"),
    "a capital hash": of_piece(1, sha256="A" * 64), "a wrong upto": of_piece(0, upto="0" * 64),
    "a short upto": of_piece(1, upto="0"), "8 TiB": changed(total_size=8 << 40), "nothing": changed(total_size=0),
    "2^62": changed(total_size=1 << 62), "a negative total": changed(total_size=-5),
    "tiny pieces": changed(piece_size=1), "no pieces": changed(pieces=[]), "a huge piece": changed(piece_size=1 << 40),
    "pieces that are none": changed(pieces={"0": 1}),
    "one piece too many": lambda c: c["pieces"].append(c["pieces"][0]),
    "a later version": changed(version=2), "another format": changed(format="x"), "facts": changed(metadata=[1]),
    "a deep fact": changed(metadata={"a": {"b": 1}}), "a long fact": changed(metadata={"a": "x" * 300}),
    "markup for a key": changed(metadata={"[red]": 1}), "many facts": changed(metadata={f"k{n}": n for n in range(99)}),
    "one shard": changed(shards=[{"filename": "tiny.gguf", "size": 5, "sha256": "0" * 64}]),
    "a wrong whole": changed(sha256="1" * 64), "no whole": lambda content: content.pop("sha256"),
    "no sizes": lambda content: content.pop("total_size"), "a date of a page": changed(created_at="x" * 100),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_manifest_that_breaks_a_rule_is_refused_with_the_reason(tmp_path: Path, name: str) -> None:
    manifest, _ = make_model(tmp_path, 3)
    content = manifest.as_dict()
    HOSTILE[name](content)
    with pytest.raises(ManifestRefused) as caught:
        parse_manifest(json.dumps(content).encode())
    assert caught.value.what.isprintable()
    assert len(caught.value.what) < 300


def test_shards_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    manifest, _ = make_shards(tmp_path)
    for change in ({"size": 5}, {"filename": "BIG-00001-of-00003.gguf"}, {"filename": "a/b"}, {"sha256": ""}):
        content = manifest.as_dict()
        content["shards"][1].update(change)
        with pytest.raises(ManifestRefused):
            parse_manifest(json.dumps(content).encode())


@pytest.mark.parametrize("data", [
    b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"total_size":' + b"9" * 100_000 + b"}",
    b'{"a":1,"a":2}', b'{"total_size":NaN}', b'{"total_size":1e999}', b"x" * (17 << 20),
], ids=["empty", "open", "list", "null", "bytes", "deep", "digits", "twice", "nan", "infinite", "big"])
def test_what_is_no_manifest_is_refused(data: bytes) -> None:
    with pytest.raises(ManifestRefused):
        parse_manifest(data)


def test_a_manifest_that_is_a_pipe_or_a_folder_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "nothing"):
        with pytest.raises(StoreError):
            load_manifest(path)
