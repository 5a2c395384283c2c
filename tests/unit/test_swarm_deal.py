"""Who takes part in a distribution, with which addresses, ports, pieces and room. And a node that is looked at."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.model import Address, Interface, LinkKind, Node, NodeReading, NodeState, Socket
from fleet.nodes.local import LocalTransport
from fleet.swarm import zipapp
from fleet.swarm.deal import (
    LARGEST,
    PORTS,
    SMALLEST,
    Deal,
    Party,
    allowed_addresses,
    bind_address,
    dial_address,
    digest_of,
    first_port,
    missing_bytes,
    node_at,
    piece_size,
    puller_argv,
    seeder_argv,
)
from fleet.swarm.push import FileThere, Ground, Parcels, look, read_look

ID = "00000005" + "0" * 56


def node(name: str, *addresses: str, taken: tuple[int, ...] = ()) -> Node:
    sockets = tuple(Socket("0.0.0.0", port, listening=True) for port in taken)
    interfaces = (Interface("eth0", LinkKind.WIRED, addresses),)
    return Node(name, NodeState.UP, addresses=(Address(addresses[0].partition("/")[0]),), configured=True,
                reading=NodeReading(interfaces=interfaces, sockets=sockets))


def test_a_seeder_binds_the_one_address_that_all_dial_and_every_one_only_where_it_must():
    one, two = node("a", "192.168.1.2/24"), node("b", "192.168.1.3/24")
    both = node("c", "192.168.1.4/24", "10.0.0.4/24")
    far = node("d", "10.0.0.5/24")
    assert bind_address(both, (one, two)) == "192.168.1.4"
    assert bind_address(both, (one, far)) == "0.0.0.0"
    assert bind_address(both, ()) == "127.0.0.1"
    unread = Node("e", NodeState.UNREACHABLE, addresses=(Address("tower.local"), Address("192.168.1.9")))
    assert dial_address(unread, one) == "192.168.1.9"


def test_only_members_may_ask_and_one_that_is_known_by_name_alone_stands_for_the_networks():
    one, two = node("a", "192.168.1.2/24"), node("b", "192.168.1.3/24")
    assert allowed_addresses((one, two)) == ("127.0.0.1", "192.168.1.2", "192.168.1.3")
    named = Node("late", NodeState.UNREACHABLE, addresses=(Address("tower.local"),))
    assert "192.168.1.0/24" in allowed_addresses((one, two, named))


def test_the_port_is_the_same_everywhere_unless_somebody_has_it():
    assert first_port(ID, node("a", "10.0.0.1/24")) == PORTS[5]
    assert first_port(ID, node("a", "10.0.0.1/24", taken=(PORTS[5], PORTS[6]))) == PORTS[7]


@given(st.integers(1, 1 << 45))
def test_pieces_are_powers_of_two_and_enough_of_them(size):
    piece = piece_size(size)
    assert SMALLEST <= piece <= LARGEST and piece & (piece - 1) == 0
    assert size // piece >= 128 or piece == SMALLEST
    assert size // piece < 512 or piece == LARGEST


def test_what_is_set_aside_already_needs_no_room():
    names, sizes = ("a.gguf", "b.gguf", "c.gguf"), (100, 100, 100)
    there = {"/m/a.gguf": FileThere(100, 100), "/m/b.gguf.part": FileThere(100, 40)}
    assert missing_bytes(Ground(folder="/m", files=there), names, sizes) == 160


def test_command_lines_hold_no_token():
    party = Party("b", Ground(python="/usr/bin/python3", folder="/m"), 9100, "10.0.0.2", "/s/node.pyz", "/s/m.manifest")
    deal = Deal("m.gguf", ("/m/m.gguf",), (100,), Party("a", Ground(python="/p"), 9100, "10.0.0.1", "/s/node.pyz"),
                (party,), token="s3cret-s3cret", limit=5e6)
    puller = puller_argv(deal, party, "/s/secret", ("http://10.0.0.1:9100",), "http://10.0.0.1:9100", ("10.0.0.0/8",))
    seeder = seeder_argv(deal, "/s/secret", ("10.0.0.2",))
    assert not any("s3cret" in word for word in (*puller, *seeder))
    assert "/s/secret" in puller and "--once" in seeder and "5000000" in seeder and "s3cret" not in repr(deal)
    assert digest_of("one-token") != digest_of("other-token")


def test_a_url_is_known_by_address_and_port_or_by_the_forward_that_it_is():
    nodes = {name: node(name, f"10.0.0.{number}/24") for number, name in enumerate("ab", 1)}
    deal = Deal("m", ("/m",), (1,), Party("a", port=9100), (Party("b", port=9101),))
    assert node_at("http://10.0.0.2:9101/models/x", nodes, deal, {}) == "b"
    assert node_at("http://127.0.0.1:4000", nodes, deal, {"127.0.0.1:4000": "a"}) == "a"
    assert node_at("http://10.9.9.9:1", nodes, deal, {}) == "http://10.9.9.9:1"


async def test_a_node_is_looked_at_and_gets_the_program_once(tmp_path):
    transport, state = LocalTransport("here"), str(tmp_path / "state")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "a b.gguf").write_bytes(b"x" * 5000)
    ground = await look(transport, state, ["relative", "/proc/nowhere", str(tmp_path / "models")], ["a b.gguf", "c"])
    assert ground.folder == str(tmp_path / "models") and ground.free and ground.state_folder == state
    assert ground.files[f"{ground.folder}/a b.gguf"].size == 5000
    parcels = Parcels(transport, state, sys.executable)
    path = await parcels.push_program()
    before = (tmp_path / path).stat().st_mtime_ns
    assert await parcels.push_program() == path and (tmp_path / path).stat().st_mtime_ns == before
    (tmp_path / path).write_bytes(b"damaged")
    assert await parcels.push_program() == path and (tmp_path / path).read_bytes() == zipapp.build()
    assert (tmp_path / path).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("text", ["", "file|x y z\nspace many\n", "python|rm -rf\nversion|9.99.9\n",
                                  "file|1 1 relative", "state|relative\nfolder|" + "/x" * 4000])
def test_an_answer_that_makes_no_sense_gives_nothing(text):
    ground = read_look(text)
    assert (ground.python, ground.folder, ground.state_folder, ground.free, ground.files) == ("", "", "", None, {})
