"""Twenty thousand hostile inputs, seeded: refused with a reason, in bounded memory, nothing outside the target."""

from __future__ import annotations

import json
import random
import socket
import threading
import tracemalloc
from pathlib import Path

import pytest

from fleet.node import ManifestRefused, Puller, SwarmError, parse_manifest
from fleet.node.bitfield import Bitfield, parse_bitfield, parse_indices
from fleet.node.heads import BadHead, parse_answer, parse_range, parse_request
from fleet.node.manifest import Manifest

from .parts import make_model, seeding

CASES = 3_500          # of manifests, notes, lists, requests, answers and ranges each
BOUND = 24 << 20       # bytes of Python objects at the peak; the inputs are small
ODD = [None, True, -1, 0, 1, 2**31, 2**63, 2**64, 1e308, "", "..", "/", "a/b", "\0", "\ud800", "x" * 5_000, [], {},
       [[]], [1] * 100, {"a": 1}, "0" * 64, "\u202e", "-rf", "NaN"]


def bent(rng: random.Random, data: bytes) -> bytes:
    """A few bytes changed, cut out, doubled or put in."""
    out = bytearray(data)
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(out) + 1)
        way = rng.randrange(5)
        if way == 0 and out:
            out[at % len(out)] = rng.randrange(256)
        elif way == 1:
            del out[at:at + rng.randrange(1, 40)]
        elif way == 2:
            out[at:at] = rng.randbytes(rng.randrange(1, 9))
        elif way == 3:
            out[at:at] = out[at:at + rng.randrange(1, 200)]
        else:
            out[at:at] = rng.choice([b"[" * 50, b'"', b"{", b"\r\n", b"\0", b"9" * 30, b"\xff\xfe", b"\\u0000", b"-"])
    return bytes(out)


def twisted(rng: random.Random, value: object) -> object:
    """A JSON value with one node replaced by something odd."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = rng.choice(list(value))
        if rng.random() < 0.1:
            return {name: inner for name, inner in value.items() if name != key}
        return {**value, key: twisted(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.8:
        at = rng.randrange(len(value))
        return [*value[:at], twisted(rng, value[at]), *value[at + 1:]]
    return rng.choice(ODD)


@pytest.fixture(autouse=True)
def bounded() -> object:
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < BOUND


def is_sound(manifest: Manifest) -> bool:
    """What was let through keeps every rule."""
    end = 0
    for index in range(manifest.count):
        piece = manifest.piece(index)
        if piece.offset != end or piece.size < 1:
            return False
        end += piece.size
    names = [entry.name for entry in manifest.files]
    return end == manifest.total_size and all(name and "/" not in name and name not in (".", "..") and "\0" not in name
                                              for name in names)


def test_manifests(tmp_path: Path) -> None:
    rng, let_through, reasons = random.Random(11), 0, set()
    manifest, _ = make_model(tmp_path, 4, piece_size=4_096)
    content, data = manifest.as_dict(), manifest.as_bytes()
    for number in range(CASES):
        given = bent(rng, data) if number % 2 else json.dumps(twisted(rng, content)).encode()
        try:
            read = parse_manifest(given)
        except ManifestRefused as error:
            reasons.add(error.what)
            continue
        assert is_sound(read)
        parse_manifest(read.as_bytes())
        let_through += 1
    assert let_through < CASES / 2
    assert all(reason.isprintable() for reason in reasons)


def test_notes_and_the_bitfields_of_peers() -> None:
    rng = random.Random(12)
    note = Bitfield("ab" * 32, 40, frozenset(range(0, 40, 3)), ((5, 6),))
    data = note.as_bytes()
    for _ in range(CASES):
        assert parse_bitfield(bent(rng, data), "ab" * 32, 40) in (None, note)
        said = parse_indices(twisted(rng, list(range(0, 40, 3))), 40)
        assert said is None or all(type(index) is int and 0 <= index < 40 for index in said)


def test_heads() -> None:
    rng = random.Random(13)
    request = b"GET /pieces/3?since=5 HTTP/1.1\r\nHost: a:9080\r\nRange: bytes=0-99\r\nAuthorization: Bearer x"
    answer = b"HTTP/1.1 206 Partial Content\r\nContent-Length: 100\r\nContent-Range: bytes 0-99/5000"
    for _ in range(CASES):
        try:
            read = parse_request(bent(rng, request))
            assert read.path.startswith("/")
            read.segments()
        except BadHead:
            pass
        try:
            got = parse_answer(bent(rng, answer))
            assert got.length >= 0
        except BadHead:
            pass
        try:
            span = parse_range(bent(rng, b"bytes=10-200").decode("latin-1"), 100)
            assert span is None or 0 <= span[0] < span[1] <= 100
        except BadHead:
            pass


def test_what_a_peer_sends(tmp_path: Path) -> None:
    """A peer whose every answer is bent: the puller ends with a reason and writes nowhere else."""
    rng = random.Random(14)
    manifest, data = make_model(tmp_path / "source", 3, piece_size=4_096)
    to = tmp_path / "to"
    to.mkdir()
    listener = socket.create_server(("127.0.0.1", 0))
    asked = [0]

    def serve() -> None:
        while True:
            try:
                guest, _ = listener.accept()
            except OSError:
                return
            with guest:
                try:
                    head = guest.recv(4_096)
                    asked[0] += 1
                    body = data[:4_096] if b"/pieces/" in head else b'{"have":[0,1,2]}'
                    whole = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body
                    if b"/pieces/" in head or asked[0] % 4:
                        whole = bent(rng, whole[:120]) + whole[120:]
                    guest.sendall(whole)
                except OSError:
                    continue

    threading.Thread(target=serve, daemon=True).start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    for _ in range(3):
        puller = Puller(manifest, to, [url], patience=1.0, stall=0.5, rng=rng)
        with pytest.raises(SwarmError):
            puller.run()
    listener.close()
    assert asked[0] > 3
    assert {path.name for path in to.iterdir()} <= {"tiny.gguf.part", "tiny.gguf.quarterdeck.manifest",
                                                    "tiny.gguf.quarterdeck.pieces"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "to"]


def test_a_seeder_lives_through_bent_requests(tmp_path: Path) -> None:
    rng = random.Random(15)
    manifest, _ = make_model(tmp_path, 3, piece_size=4_096)
    with seeding(manifest, tmp_path, head_within=0.3, idle=0.3) as seeder:
        for _ in range(300):
            with socket.create_connection(("127.0.0.1", seeder.port), 5) as sock:
                try:
                    sock.sendall(bent(rng, b"GET /pieces/1 HTTP/1.1\r\nHost: x\r\nRange: bytes=1-9\r\n\r\n"))
                    sock.shutdown(socket.SHUT_WR)
                    while sock.recv(65_536):
                        pass
                except OSError:
                    continue
        with socket.create_connection(("127.0.0.1", seeder.port), 5) as sock:
            sock.sendall(b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n")
            assert sock.recv(100).startswith(b"HTTP/1.1 200")
