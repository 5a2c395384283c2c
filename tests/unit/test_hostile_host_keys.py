"""Somebody on the network who answers in a node's place: by its mDNS name, by its address, by a name server's word."""

from __future__ import annotations

import socket

import asyncssh
import pytest

from fleet.errors import HostKeyChanged, HostKeyUnknown, NodeRefused
from fleet.model import Address
from fleet.nodes.host_keys import HostKey, KnownHost, Verdict, judge
from fleet.nodes.questions import nobody
from fleet.nodes.ssh import SshTarget, SshTransport


class _Impostor(asyncssh.SSHServer):
    """Takes any password, and remembers what it was offered."""

    heard: list[str]

    def begin_auth(self, username: str) -> bool:
        self.heard.append(f"user {username}")
        return True

    def password_auth_supported(self) -> bool:
        return True

    def validate_password(self, username: str, password: str) -> bool:
        self.heard.append(f"password {password}")
        return True


@pytest.fixture
async def impostor():
    """(port, its host key, what it heard)."""
    heard: list[str] = []
    host_key = asyncssh.generate_private_key("ssh-ed25519")
    kind = type("Impostor", (_Impostor,), {"heard": heard})
    server = await asyncssh.listen("127.0.0.1", 0, server_factory=kind, server_host_keys=[host_key])
    yield server.get_port(), host_key, heard
    server.close()
    await server.wait_closed()


def _closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.2", 0))
        return free.getsockname()[1]


def _line(name: str, key: asyncssh.SSHKey) -> str:
    return f"{name} {key.export_public_key().decode()}"


async def _answers(kind: object, node: str, text: str, detail: str) -> str:
    return "hunter2"


def _transport(known_hosts, addresses, *, name="atlas", ask=_answers, accept_new=False) -> SshTransport:
    target = SshTarget(name, addresses, user="me", identity_files=("/nonexistent",), agent=False,
                       known_hosts=str(known_hosts), connect_timeout=5.0)
    return SshTransport(target, ask=ask, accept_new=accept_new)


@pytest.mark.parametrize("accept_new", [False, True])
@pytest.mark.parametrize("its_own_is_known", [False, True])
async def test_a_stranger_under_a_nodes_mdns_name_is_refused_and_hears_no_password(
        impostor, tmp_path, accept_new, its_own_is_known):
    port, theirs, heard = impostor
    ours = asyncssh.generate_private_key("ssh-ed25519")
    known_hosts = tmp_path / "known_hosts"
    given = Address("127.0.0.2", _closed_port(), source="fleet.yaml", pinned=True)
    known_hosts.write_text(_line(f"[{given.host}]:{given.port}", ours)
                           + (_line(f"[127.0.0.1]:{port}", theirs) if its_own_is_known else ""))
    before = known_hosts.read_text()
    heard_of = Address("127.0.0.1", port, source="mdns")
    with pytest.raises(NodeRefused):                 # the stranger is passed over, and then nobody is there
        await _transport(known_hosts, (heard_of, given), accept_new=accept_new).connect()
    assert not heard and known_hosts.read_text() == before


async def test_a_known_machine_that_announces_a_name_that_known_hosts_has_is_refused_by_that_line(impostor, tmp_path):
    port, _, heard = impostor
    ours = asyncssh.generate_private_key("ssh-ed25519")
    (tmp_path / "known_hosts").write_text(_line("atlas", ours))
    transport = _transport(tmp_path / "known_hosts", (Address("127.0.0.1", port, source="mdns"),))
    with pytest.raises(HostKeyChanged, match=r"ssh-keygen .* -R atlas"):
        await transport.connect()
    assert not heard


async def test_a_machine_that_is_known_by_its_address_is_not_the_one_that_its_spoofed_name_says(
        impostor, tmp_path, monkeypatch):
    port, theirs, heard = impostor
    ours = asyncssh.generate_private_key("ssh-ed25519")
    (tmp_path / "known_hosts").write_text(_line(f"[atlas.test]:{port}", ours) + _line(f"[127.0.0.1]:{port}", theirs))
    real = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *rest, **more: real(
        "127.0.0.1" if host == "atlas.test" else host, *rest, **more))
    transport = _transport(tmp_path / "known_hosts", (Address("atlas.test", port, source="fleet.yaml"),))
    with pytest.raises(HostKeyChanged):
        await transport.connect()
    assert not heard


async def test_an_unseen_key_hears_neither_user_nor_password_where_nobody_vouches_for_it(impostor, tmp_path):
    port, _, heard = impostor
    transport = _transport(tmp_path / "known_hosts", (Address("127.0.0.1", port, source="mdns"),), ask=nobody)
    with pytest.raises(HostKeyUnknown):
        await transport.connect()
    assert not heard


# The rule by itself

ONE, TWO = (HostKey("ssh-ed25519", name) for name in (b"one", b"two"))


def _known(**lines: HostKey) -> list[KnownHost]:
    return [KnownHost("f", number, "", name, key) for number, (name, key) in enumerate(lines.items(), 1)]


@pytest.mark.parametrize(("lines", "denying", "verdict"), [
    ({"atlas": ONE, "heard": TWO}, ["atlas"], Verdict.CHANGED),      # known, but as another machine
    ({"atlas": ONE}, ["atlas"], Verdict.CHANGED),
    ({"atlas": TWO, "heard": ONE}, ["atlas"], Verdict.KNOWN),        # the node itself, at an address that was another's
    ({"heard": TWO}, ["atlas"], Verdict.KNOWN),                      # nothing is known of the node's own names
    ({"atlas": ONE, "heard": TWO}, [], Verdict.KNOWN),               # a node that the network alone tells of
    ({}, ["atlas"], Verdict.UNKNOWN),
])
def test_what_the_network_says_never_wins_over_what_known_hosts_says_of_the_node(lines, denying, verdict):
    assert judge(_known(**lines), TWO, ["heard"], denying=denying).verdict is verdict


def test_two_keys_of_a_node_are_both_its_own():
    lines = [KnownHost("f", 1, "", "atlas", ONE), KnownHost("f", 2, "", "atlas", TWO)]
    assert judge(lines, TWO, ["heard"], denying=["atlas"]).verdict is Verdict.KNOWN
