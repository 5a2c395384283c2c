"""Seeders that are found by mDNS: real multicast on loopback, and records that lie."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.cli import main as command
from app.exit_codes import ExitCode
from fleet.discovery.services import SWARM_SERVICE, Found, Lost, found
from fleet.model import Interface, LinkKind
from fleet.swarm.nearby import MOST_OF_ADDRESS, Announcing, Nearby, reached_by, read

from .parts import make_model, seeding

ID = "ab" * 32
PATIENCE = 20.0      # seconds until a test gives up; nothing waits that long when it works


def own() -> tuple[Interface, ...]:
    return (Interface("lo", LinkKind.LOOPBACK, ("127.0.0.1/8",)),)


def record(**changes: object) -> Found:
    given = {"service": SWARM_SERVICE, "key": f"x.{SWARM_SERVICE}", "host": "tower.local.", "addresses": ("10.0.0.7",),
             "port": 9080, "properties": {"manifest": ID, "name": "tiny.gguf"}, **changes}
    return Found(**given)


def until(nearby: Nearby, manifest: str, count: int) -> list[str]:
    end = time.monotonic() + PATIENCE
    while len(nearby.peers_of(manifest)) != count:
        assert time.monotonic() < end, (nearby.seeders(), nearby.problem)
        nearby.wait(0.2)
    return nearby.peers_of(manifest)


def test_what_is_announced_is_heard_and_its_end_too() -> None:
    manifest = os.urandom(32).hex()
    with Nearby(("127.0.0.1",), own=own, local=True) as nearby:
        with Announcing("127.0.0.1", ("127.0.0.1",), own=own) as announcing:
            announcing.announce(manifest, "tiny.gguf", 9080)
            announcing.announce(os.urandom(32).hex(), "other.gguf", 9080)
            assert until(nearby, manifest, 1) == [f"http://127.0.0.1:9080/models/{manifest}"]
        until(nearby, manifest, 0)


def test_a_model_is_pulled_by_its_name_from_whoever_announces_it(tmp_path: Path, monkeypatch, capsys) -> None:
    source, to = tmp_path / "source", tmp_path / "to"
    name = f"tiny-{os.urandom(4).hex()}.gguf"
    manifest, data = make_model(source, 6, name=name)
    to.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "fleet.yaml").write_text("discovery: {interfaces: [127.0.0.1], ssh_config: false}\n")
    with seeding(manifest, source) as seeder, Announcing("127.0.0.1", ("127.0.0.1",), own=own) as announcing:
        announcing.announce(manifest.id, name, seeder.port)
        assert command(["swarm", "pull", name, "to", "--json"]) == ExitCode.OK
        told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert told[-1]["event"] == "done" and (to / name).read_bytes() == data


def test_a_token_is_shown_to_nobody_who_only_announces_himself(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("QUARTERDECK_SWARM_TOKEN", "correct-horse-battery")
    (tmp_path / "fleet.yaml").write_text("discovery: {interfaces: [127.0.0.1], ssh_config: false}\n")
    assert command(["swarm", "pull", "tiny.gguf"]) == ExitCode.USAGE
    assert "Name the seeder" in capsys.readouterr().err


def test_who_announces_another_manifest_than_he_gives_is_refused(tmp_path: Path, monkeypatch, capsys) -> None:
    name = f"tiny-{os.urandom(4).hex()}.gguf"
    manifest, _ = make_model(tmp_path / "source", 3, name="other.gguf")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "fleet.yaml").write_text("discovery: {interfaces: [127.0.0.1], ssh_config: false}\n")
    with seeding(manifest, tmp_path / "source") as seeder, \
            Announcing("127.0.0.1", ("127.0.0.1",), own=own) as announcing:
        announcing.announce(manifest.id, name, seeder.port)
        assert command(["swarm", "pull", name]) == ExitCode.FAILED
    assert "gives another manifest than it announced" in capsys.readouterr().err
    assert not list(tmp_path.glob("*.part"))


def test_an_address_that_is_no_machine_of_the_network_is_passed_over() -> None:
    seeder = read(record(addresses=("127.0.0.1", "224.0.0.1", "0.0.0.0", "fe80::1", "10.0.0.7")))
    assert seeder is not None and seeder.url == f"http://10.0.0.7:9080/models/{ID}"
    assert read(record(addresses=("127.0.0.1",))) is None
    assert read(record(addresses=("2001:db8::7",))).url == f"http://[2001:db8::7]:9080/models/{ID}"


@pytest.mark.parametrize("changes", [
    {"port": 0}, {"addresses": ()}, {"service": "_ssh._tcp.local."}, {"properties": {}},
    {"properties": {"manifest": ID}}, {"properties": {"manifest": ID.upper(), "name": "tiny.gguf"}},
    {"properties": {"manifest": ID, "name": "../../etc/passwd"}}, {"properties": {"manifest": ID, "name": "-rf"}},
    {"properties": {"manifest": ID, "name": "a\x1b[2J.gguf"}}, {"properties": {"manifest": "../x", "name": "t.gguf"}},
])
def test_a_record_that_is_none_is_passed_over(changes: dict) -> None:
    assert read(record(**changes)) is None or "\x1b" not in read(record(**changes)).name


@given(st.dictionaries(st.binary(max_size=80), st.none() | st.binary(max_size=300), max_size=40),
       st.lists(st.text(max_size=50), max_size=20), st.integers(-1, 70_000), st.text(max_size=300))
def test_whatever_is_announced_gives_nothing_or_a_plain_peer(properties, addresses, port, host) -> None:
    heard = found(SWARM_SERVICE, f"x.{SWARM_SERVICE}", host, addresses, port,
                  {b"manifest": ID.encode(), b"name": b"tiny.gguf", **properties})
    seeder = read(heard) if heard is not None else None
    assert seeder is None or (seeder.url.startswith("http://") and seeder.url.isprintable() and "/" not in seeder.name)


def test_one_machine_cannot_push_the_others_out() -> None:
    nearby = Nearby(own=own)
    for number in range(500):
        nearby._take(record(key=f"{number}.{SWARM_SERVICE}"), own())
    nearby._take(record(key=f"good.{SWARM_SERVICE}", addresses=("10.0.0.8",)), own())
    assert len(nearby.seeders()) == MOST_OF_ADDRESS + 1
    nearby._take(Lost(SWARM_SERVICE, f"good.{SWARM_SERVICE}", True), own())
    assert len(nearby.seeders()) == MOST_OF_ADDRESS


def test_only_what_leads_to_the_seeder_is_announced() -> None:
    wired = Interface("eth0", LinkKind.WIRED, ("10.0.0.2/24", "fe80::2%eth0/64", "fd00::2/64"))
    assert reached_by("0.0.0.0", (wired,))[0].addresses == ("10.0.0.2/24",)
    assert reached_by("::", (wired,))[0].addresses == ("fe80::2%eth0/64", "fd00::2/64")
    assert reached_by("10.0.0.2", (*own(), wired))[0].addresses == ("10.0.0.2/24",)
    assert reached_by("", (wired,)) == (wired,)
