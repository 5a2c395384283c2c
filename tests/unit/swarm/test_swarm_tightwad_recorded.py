"""Tightwad 0.5.4 as it was recorded: its files, its seeder's answers, its puller's requests."""

from __future__ import annotations

import json
import random
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fleet.node import SEED, Manifest, Puller, Seeder, Store, find_manifest, load_manifest, parse_manifest

DATA = Path(__file__).parents[2] / "data" / "swarm" / "tightwad-0.5.4"
MODEL = random.Random(54).randbytes(2_500_000)      # that it was recorded with, in pieces of 1 MB


def read(name: str) -> bytes:
    return (DATA / name).read_bytes()


@contextmanager
def its_seeder() -> Iterator[tuple[str, list[bytes]]]:
    """Answers as its seeder did; the pieces' bytes are made anew. Gives the URL and what it was asked."""
    listener, asked = socket.create_server(("127.0.0.1", 0)), []

    def answer(guest: socket.socket) -> None:
        with guest:
            head = b""
            while b"\r\n\r\n" not in head:
                part = guest.recv(65_536)
                if not part:
                    return
                head += part
            asked.append(head)
            path = head.split()[1].decode()
            if path.startswith("/pieces/"):
                at = int(path.removeprefix("/pieces/")) * 1_048_576
                body = MODEL[at:at + 1_048_576]
                guest.sendall(read("piece.head").replace(b"1048576", str(len(body)).encode()) + body)
            else:
                guest.sendall(read(f"{path.partition('?')[0].strip('/')}.http"))

    def accept() -> None:
        while True:
            try:
                guest, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(guest,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", asked
    finally:
        listener.close()


def its_manifest() -> Manifest:
    return load_manifest(DATA / "tiny.gguf.tightwad.manifest")


def test_its_manifest_file_is_read_and_is_the_one_that_its_seeder_sends() -> None:
    manifest = its_manifest()
    assert (manifest.name, manifest.total_size, manifest.count, manifest.piece_size) == (
        "tiny.gguf", 2_500_000, 3, 1_048_576)
    assert parse_manifest(read("manifest.http").partition(b"\r\n\r\n")[2]).id == manifest.id


def test_a_model_comes_from_its_seeder_which_knows_no_ranges_and_no_long_poll(tmp_path: Path) -> None:
    with its_seeder() as (url, asked):
        Puller(its_manifest(), tmp_path, [url]).run()
    assert (tmp_path / "tiny.gguf").read_bytes() == MODEL
    assert {head.split()[1].partition(b"?")[0] for head in asked} == {
        b"/bitfield", b"/pieces/0", b"/pieces/1", b"/pieces/2"}


def test_its_puller_gets_an_answer_to_each_of_its_requests(tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(MODEL)
    store = Store(its_manifest(), tmp_path, mode=SEED)
    store.open()
    seeder = Seeder(port=0)
    seeder.add(store)
    seeder.start()
    try:
        bodies = {}
        for request in filter(None, read("requests.http").split(b"\r\n\r\n")):
            with socket.create_connection(("127.0.0.1", seeder.port), 10) as sock:
                sock.sendall(request.replace(b"keep-alive", b"close") + b"\r\n\r\n")
                got = b""
                while part := sock.recv(1 << 20):
                    got += part
            assert got.startswith(b"HTTP/1.1 200 ")
            bodies[request.split()[1].decode()] = got.partition(b"\r\n\r\n")[2]
    finally:
        seeder.stop()
        store.close()
    assert json.loads(bodies["/bitfield"])["have"] == [0, 1, 2]
    theirs, ours = json.loads(read("manifest.http").partition(b"\r\n\r\n")[2]), json.loads(bodies["/manifest"])
    assert {key: ours[key] for key in ("filename", "total_size", "piece_size")} == \
        {key: theirs[key] for key in ("filename", "total_size", "piece_size")}
    assert [{key: piece[key] for key in theirs["pieces"][0]} for piece in ours["pieces"]] == theirs["pieces"]
    assert b"".join(bodies[f"/pieces/{index}"] for index in range(3)) == MODEL


def test_its_health_and_ours_have_the_same_words(tmp_path: Path) -> None:
    theirs = json.loads(read("health.http").partition(b"\r\n\r\n")[2])
    (tmp_path / "tiny.gguf").write_bytes(MODEL)
    store = Store(its_manifest(), tmp_path, mode=SEED)
    store.open()
    seeder = Seeder(port=0)
    seeder.add(store)
    seeder.start()
    try:
        with socket.create_connection(("127.0.0.1", seeder.port), 10) as sock:
            sock.sendall(b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n")
            got = b""
            while part := sock.recv(65_536):
                got += part
    finally:
        seeder.stop()
        store.close()
    ours = json.loads(got.partition(b"\r\n\r\n")[2])
    assert theirs.keys() <= ours.keys()
    assert all(type(ours[key]) is type(theirs[key]) for key in theirs)
    assert (ours["total_pieces"], ours["have_pieces"], ours["completion_pct"]) == (3, 3, 100.0)


def test_what_its_note_claims_is_hashed_and_taken_over(tmp_path: Path) -> None:
    """A pull of Tightwad's that was killed: the file under its final name, and a note that says more than is true."""
    (tmp_path / "tiny.gguf").write_bytes(MODEL[:1_048_576] + bytes(len(MODEL) - 1_048_576))
    for name in ("tiny.gguf.tightwad.manifest", "tiny.gguf.tightwad.pieces"):
        shutil.copy(DATA / name, tmp_path)
    found = find_manifest(tmp_path / "tiny.gguf")
    assert found is not None
    store = Store(load_manifest(found), tmp_path)
    store.open()
    assert store.holdings.snapshot() == (0,) and not store.complete
    store.close()
    with its_seeder() as (url, asked):
        Puller(load_manifest(found), tmp_path, [url]).run()
    assert (tmp_path / "tiny.gguf").read_bytes() == MODEL
    assert not any(head.startswith(b"GET /pieces/0 ") for head in asked)
