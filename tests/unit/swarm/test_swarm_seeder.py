"""A seeder on a real socket: what it gives, to whom, and what it puts up with."""

from __future__ import annotations

import json
import socket
import threading
import time
from pathlib import Path

import pytest

from fleet.node import SEED, Access, Seeder, Store, SwarmError, parse_manifest
from fleet.node.access import check_exposure
from fleet.node.holdings import Holdings

from .parts import PIECE, ask, get, make_model, seeding

TOKEN = "correct-horse-battery"


def test_the_wire_is_what_tightwads_pullers_ask_for(tmp_path: Path) -> None:
    manifest, data = make_model(tmp_path, 4)
    with seeding(manifest, tmp_path) as seeder:
        assert parse_manifest(get(seeder.port, "/manifest")[1]) == manifest
        assert json.loads(get(seeder.port, "/bitfield")[1])["have"] == [0, 1, 2, 3]
        assert get(seeder.port, "/pieces/3") == (200, data[3 * PIECE:])
        health = json.loads(get(seeder.port, "/health")[1])
        assert (health["name"], health["completion_pct"]) == ("tiny.gguf", 100.0)
        assert health["uptime_seconds"] >= 0


@pytest.mark.parametrize(("wanted", "status", "start", "stop"), [
    ("bytes=0-9", 206, 0, 10), ("bytes=100-", 206, 100, PIECE), ("bytes=-7", 206, PIECE - 7, PIECE),
    ("bytes=65000-99999", 206, 65_000, PIECE), ("bytes=0-0,5-6", 200, 0, PIECE), ("rows=1-2", 200, 0, PIECE),
    ("bytes=9-3", 200, 0, PIECE), ("bytes=70000-", 416, 0, 0), ("bytes=-0", 416, 0, 0),
])
def test_a_range_is_honoured_or_refused(tmp_path: Path, wanted: str, status: int, start: int, stop: int) -> None:
    manifest, data = make_model(tmp_path, 3)
    with seeding(manifest, tmp_path) as seeder:
        got, body = get(seeder.port, "/pieces/1", Range=wanted)
        assert got == status
        if status != 416:
            assert body == data[PIECE:2 * PIECE][start:stop]


@pytest.mark.parametrize("path", ["/pieces/3", "/pieces/-1", "/pieces/x", "/pieces/", "/pieces/1/2", "/", "/etc/passwd",
                                  "/pieces/..%2f..%2fetc", "/models/none/manifest", "/pieces/99999999999999999999",
                                  "/models/..%2f/manifest", "/pieces/%31%00"])
def test_what_is_not_there_is_404(tmp_path: Path, path: str) -> None:
    manifest, _ = make_model(tmp_path, 3)
    with seeding(manifest, tmp_path) as seeder:
        assert get(seeder.port, path)[0] == 404


def test_several_models_have_their_own_paths_and_the_first_the_short_ones(tmp_path: Path) -> None:
    first, _ = make_model(tmp_path / "a", 3)
    second, data = make_model(tmp_path / "b", 2, name="other model.gguf", seed=2)
    with seeding(first, tmp_path / "a") as seeder:
        store = Store(second, tmp_path / "b", mode=SEED)
        store.open()
        seeder.add(store)
        assert parse_manifest(get(seeder.port, "/manifest")[1]) == first
        assert parse_manifest(get(seeder.port, "/models/other%20model.gguf/manifest")[1]) == second
        assert get(seeder.port, f"/models/{second.id}/pieces/1") == (200, data[PIECE:])
        listed = json.loads(get(seeder.port, "/models")[1])["models"]
        assert [model["name"] for model in listed] == ["tiny.gguf", "other model.gguf"]
        store.close()


def test_the_token_comes_first_and_then_the_address(tmp_path: Path) -> None:
    manifest, _ = make_model(tmp_path, 2)
    with seeding(manifest, tmp_path, access=Access(TOKEN, ["10.0.0.0/8"])) as seeder:
        assert get(seeder.port, "/health")[0] == 401
        assert get(seeder.port, "/health", Authorization="Bearer wrong-horse-battery")[0] == 401
        assert get(seeder.port, "/health", Authorization="Bearer \xe9")[0] == 401
        assert get(seeder.port, "/pieces/0", Authorization=f"Bearer {TOKEN}")[0] == 403
    with seeding(manifest, tmp_path, access=Access(TOKEN, ["127.0.0.0/8", "::1"])) as seeder:
        assert get(seeder.port, "/pieces/0", Authorization=f"Bearer {TOKEN}")[0] == 200


@pytest.mark.parametrize(("address", "networks", "status"), [
    ("192.168.1.7", ["192.168.1.0/24"], 200), ("192.168.2.7", ["192.168.1.0/24"], 403),
    ("::ffff:192.168.1.7", ["192.168.1.0/24"], 200), ("fd00::7", ["fd00::/8"], 200), ("fd00::7", ["10.0.0.0/8"], 403),
    ("fe80::1%eth0", ["fe80::/10"], 200), ("10.0.0.1", ["::/0"], 403), ("nonsense", ["0.0.0.0/0"], 403), ("x", [], 200),
])
def test_addresses_are_held_against_networks(address: str, networks: list[str], status: int) -> None:
    assert Access("", networks).judge(address, "") == status


def test_a_seeder_for_everybody_stays_on_loopback_unless_asked_for() -> None:
    check_exposure("127.0.0.1", Access(), False)
    check_exposure("::1", Access(), False)
    check_exposure("0.0.0.0", Access(TOKEN), False)
    check_exposure("0.0.0.0", Access("", ["10.0.0.0/8"]), False)
    check_exposure("0.0.0.0", Access(), True)
    for host in ("0.0.0.0", "", "192.168.1.5", "::"):
        with pytest.raises(SwarmError):
            check_exposure(host, Access(), False)
    with pytest.raises(SwarmError):
        Access("", ["10.0.0.0/33"])
    with pytest.raises(SwarmError):
        Access("short")


def test_a_taken_port_is_said(tmp_path: Path) -> None:
    manifest, _ = make_model(tmp_path, 2)
    with seeding(manifest, tmp_path) as seeder:
        with pytest.raises(SwarmError) as caught:
            Seeder(port=seeder.port).start()
        assert caught.value.code == "port"


def test_who_waits_is_told_of_a_new_piece_at_once(tmp_path: Path) -> None:
    manifest, _ = make_model(tmp_path / "source", 3)
    (tmp_path / "to").mkdir()
    store = Store(manifest, tmp_path / "to")
    store.open()
    seeder = Seeder(port=0)
    seeder.add(store)
    seeder.start()
    known = json.loads(get(seeder.port, "/bitfield")[1])
    assert known["have"] == []
    told: list[dict] = []
    waiter = threading.Thread(
        target=lambda: told.append(json.loads(get(seeder.port, f"/bitfield?since={known['version']}&wait=30")[1])))
    waiter.start()
    store.finish(2)
    waiter.join(20)
    assert told[0]["new"] == [2]
    assert told[0]["version"] > known["version"]
    assert json.loads(get(seeder.port, "/bitfield?since=5&wait=30")[1])["have"] == [2]
    seeder.stop()
    store.close()


def test_what_is_lost_is_told_as_a_whole() -> None:
    holdings = Holdings([1, 2, 3])
    version = holdings.version
    holdings.gain(4)
    assert holdings.news(version).new == (4,)
    holdings.replace([1])
    news = holdings.news(version)
    assert news.new is None
    assert news.have == (1,)


def test_a_model_whose_file_changes_is_not_served_any_more(tmp_path: Path) -> None:
    manifest, _ = make_model(tmp_path, 3)
    with seeding(manifest, tmp_path) as seeder:
        assert get(seeder.port, "/pieces/0")[0] == 200
        with (tmp_path / "tiny.gguf").open("r+b") as file:
            file.write(b"changed")
        assert get(seeder.port, "/pieces/0")[0] == 404
        health = json.loads(get(seeder.port, "/health")[1])
        assert "written to" in health["trouble"]
        assert health["have_pieces"] == 0


@pytest.mark.parametrize("request_bytes", [
    b"GET / HTTP/1.1\r\n" + b"x: " + b"y" * 20_000, b"GET /" + b"a" * 5_000 + b" HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 100 + b"\r\n", b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", b"GET /\r\n\r\n",
    b"GET http://x/ HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nno colon\r\n\r\n", b"GET / HTTP/1.1\r\n folded\r\n\r\n",
    b"GET / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello",
    b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", b"GET /%ff HTTP/1.1\r\n\r\n", b"GET /\0 HTTP/1.1\r\n\r\n",
    b"GET /?" + b"a=1&" * 40 + b" HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\nHost: x\r\n\r\n",
], ids=range(15))
def test_a_head_that_is_none_ends_the_connection_and_nothing_else(tmp_path: Path, request_bytes: bytes) -> None:
    manifest, _ = make_model(tmp_path, 2)
    with seeding(manifest, tmp_path, head_within=1.0) as seeder:
        answer = ask(seeder.port, request_bytes)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 400")
        assert get(seeder.port, "/health")[0] == 200


def test_other_methods_are_refused(tmp_path: Path) -> None:
    manifest, _ = make_model(tmp_path, 2)
    with seeding(manifest, tmp_path) as seeder:
        answer = ask(seeder.port, b"DELETE /pieces/0 HTTP/1.1\r\nConnection: close\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 405")


def test_several_requests_share_a_connection_also_when_they_come_at_once(tmp_path: Path) -> None:
    manifest, data = make_model(tmp_path, 2)
    with seeding(manifest, tmp_path) as seeder:
        one = b"GET /pieces/1 HTTP/1.1\r\n\r\n"
        answer = ask(seeder.port, one + one + b"GET /pieces/1 HTTP/1.1\r\nConnection: close\r\n\r\n")
        assert answer.count(data[PIECE:]) == 3
        assert answer.endswith(data[PIECE:])


def test_a_guest_that_says_nothing_or_takes_nothing_is_sent_away(tmp_path: Path) -> None:
    manifest, _ = make_model(tmp_path, 2, piece_size=16 << 20)
    with seeding(manifest, tmp_path, head_within=0.5, stall=1.0, idle=0.5) as seeder:
        with socket.create_connection(("127.0.0.1", seeder.port)) as silent:
            silent.settimeout(20)
            assert silent.recv(1) == b""
        with socket.create_connection(("127.0.0.1", seeder.port)) as slow:
            slow.settimeout(20)
            slow.sendall(b"GET /pieces/0 HTTP/1.1\r\nX: ")
            assert slow.recv(1) == b""
        with socket.socket() as full:
            full.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            full.connect(("127.0.0.1", seeder.port))
            full.sendall(b"GET /pieces/0 HTTP/1.1\r\n\r\n")
            until = time.monotonic() + 20
            while seeder._guests and time.monotonic() < until:
                threading.Event().wait(0.05)
            assert not seeder._guests


def test_connections_are_counted_and_one_too_many_is_told_to_come_back(tmp_path: Path) -> None:
    manifest, _ = make_model(tmp_path, 2)
    with seeding(manifest, tmp_path, most_of_address=3) as seeder:
        guests = [socket.create_connection(("127.0.0.1", seeder.port)) for _ in range(3)]
        for guest in guests:
            guest.sendall(b"GET /health HTTP/1.1\r\n\r\n")
            assert guest.recv(4_096).startswith(b"HTTP/1.1 200")
        assert ask(seeder.port, b"").startswith(b"HTTP/1.1 503")
        for guest in guests:
            guest.close()
        until = time.monotonic() + 20
        while seeder._guests and time.monotonic() < until:
            threading.Event().wait(0.05)
        assert get(seeder.port, "/health")[0] == 200


def test_peers_that_announce_themselves_are_told_to_each_other(tmp_path: Path) -> None:
    manifest, _ = make_model(tmp_path, 2)
    with seeding(manifest, tmp_path) as seeder:
        path = f"/announce?manifest={manifest.id}&port="
        first = json.loads(get(seeder.port, path + "9081")[1])
        assert first["peers"] == []
        assert first["here"] == f"/models/{manifest.id}"
        second = json.loads(get(seeder.port, path + "9082")[1])
        assert second["peers"] == [f"http://127.0.0.1:9081/models/{manifest.id}"]
        assert len(json.loads(get(seeder.port, path + "0")[1])["peers"]) == 2
        assert get(seeder.port, "/announce?manifest=../x&port=1")[0] == 400
        assert get(seeder.port, f"/announce?manifest={manifest.id}&port=99999")[0] == 400
