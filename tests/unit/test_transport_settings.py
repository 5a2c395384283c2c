"""What ssh_config says, read without running anything that it names; and the way through its hops."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.errors import NodeError
from fleet.model import Address
from fleet.nodes.ssh_hops import hops
from fleet.nodes.ssh_settings import Settings
from fleet.nodes.ssh_target import SshTarget

MAIN = Path(__file__).parent.parent / "data" / "config" / "ssh_config_main"


def target(name: str, *files: Path, **fields) -> SshTarget:
    return SshTarget(name=name, ssh_config_files=tuple(map(str, files)),
                     **({"addresses": (Address(name),)} | fields))


@pytest.fixture
def config(tmp_path):
    def write(text: str) -> Path:
        (tmp_path / "config").write_text(text)
        return tmp_path / "config"
    return write


def test_a_block_for_the_name_is_read_and_unknown_options_are_passed_over():
    settings = Settings(target("box1", MAIN))
    assert (settings.hostname, settings.user) == ("10.20.0.14", "ops")
    assert settings.identity_files(target("box1")) == (str(Path("~/.ssh/id_fleet").expanduser()),)
    assert settings.get("IdentitiesOnly") is True


def test_a_link_local_address_of_an_included_file_keeps_its_scope(tmp_path, monkeypatch):
    (tmp_path / ".ssh").symlink_to(MAIN.parent)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Settings(target("box2", MAIN)).hostname == "fe80::1%eth0"


def test_the_name_stands_for_itself_in_a_pattern():
    assert Settings(target("lab-mac", MAIN)).hostname == "lab-mac.lab.example"


def test_match_exec_runs_nothing_and_does_not_match(config, tmp_path):
    file = config(f'Match host * exec "touch {tmp_path}/ran"\n  User evil\n'
                  f'Match !exec "touch {tmp_path}/ran" user root\n  User evil\nHost *\n  User good\n')
    assert Settings(target("bolt", file)).user == "good"
    assert not (tmp_path / "ran").exists()


def test_conditions_that_are_not_known_do_not_match_and_break_nothing(config):
    file = config("Match version OpenSSH_9* sessiontype shell\n  User evil\nMatch originalhost bolt\n  User good\n")
    assert Settings(target("bolt", file)).user == "good"


def test_match_final_comes_last(config):
    file = config("Match final host 10.0.0.5\n  Port 2200\nHost bolt\n  HostName 10.0.0.5\n")
    assert Settings(target("bolt", file)).port == 2200


def test_a_block_for_the_address_counts_when_none_names_the_node(config):
    file = config("Host bolt.lan\n  User ops\nHost *\n  User everybody\n")
    assert Settings(target("bolt", file, addresses=(Address("10.0.0.5"), Address("bolt.lan")))).user == "ops"
    assert Settings(target("atlas", file)).user == "everybody"


def test_what_the_target_says_wins(config):
    file = config("Host bolt\n  User ops\n  IdentityFile ~/other\n")
    mine = target("bolt", file, user="me", identity_files=("/keys/mine",), agent=False)
    settings = Settings(mine)
    assert settings.user == "me" and settings.identity_files(mine) == ("/keys/mine",)
    assert settings.agent_path(mine) is None


def test_the_agent_is_the_one_that_is_named(config, monkeypatch):
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/agent")
    plain = target("bolt")
    assert Settings(plain).agent_path(plain) == "/run/agent"
    none = target("bolt", config("Host bolt\n  IdentityAgent none\n"))
    assert Settings(none).agent_path(none) is None
    named = target("bolt", config("Host bolt\n  IdentityAgent ~/agent\n"))
    assert Settings(named).agent_path(named) == str(Path("~/agent").expanduser())


def test_a_line_that_cannot_be_read_is_named(config):
    with pytest.raises(NodeError, match=r"line 2: Invalid Port") as caught:
        Settings(target("bolt", config("Host bolt\n  Port many\n")))
    assert caught.value.code == "ssh-config"


def test_a_file_that_is_not_there_says_nothing(tmp_path):
    assert Settings(target("bolt", tmp_path / "none")).hostname == ""


def names(way: list[SshTarget]) -> list[str]:
    return [hop.name for hop in way]


def test_without_a_jump_the_way_is_the_node_itself():
    assert names(hops(target("box1", MAIN))) == ["box1"]


def test_a_list_of_hops_is_taken_in_order():
    assert names(hops(target("deep", MAIN))) == ["hop1", "hop2", "deep"]


def test_the_jump_of_the_first_hop_comes_before_it():
    assert names(hops(target("inner", MAIN, jump="hop2"))) == ["hop1", "hop2", "inner"]


def test_a_hop_may_have_user_and_port_of_its_own():
    way = hops(target("bolt", jump="ops@gate:2222,[fd00::1]:23,ssh://plain"))
    assert [(hop.user, hop.addresses[0].host, hop.addresses[0].port) for hop in way[:3]] == [
        ("ops", "gate", 2222), (None, "fd00::1", 23), (None, "plain", 22)]


def test_a_circle_of_jumps_is_refused(config):
    file = config("Host a\n  ProxyJump b\nHost b\n  ProxyJump a\n")
    with pytest.raises(NodeError) as caught:
        hops(target("a", file))
    assert caught.value.code == "jump-circle"


@pytest.mark.parametrize("jump", ["user@", "host:port", "host:99999", "[::1"])
def test_a_jump_that_makes_no_sense_is_said_so(jump):
    with pytest.raises(NodeError) as caught:
        hops(target("bolt", jump=jump))
    assert caught.value.code == "jump"
