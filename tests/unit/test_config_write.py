"""The first fleet.yaml: written from what was discovered, and read again without a problem."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fleet.config.load import load, parse
from fleet.config.schema import DiscoveryConfig, FleetConfig, RpcMode, SshConfig
from fleet.config.write import render, write_new
from fleet.errors import ConfigError
from fleet.model import (
    Address,
    Binary,
    Cpu,
    Device,
    DeviceKind,
    Memory,
    ModelFile,
    Node,
    NodeReading,
    NodeState,
    Problem,
)

GIB = 1 << 30
READ = NodeReading(
    os="Linux", arch="x86_64", user="me", cpu=Cpu(threads=16), memory=Memory(64 * GIB),
    devices=(Device("CUDA0", DeviceKind.CUDA, "NVIDIA GeForce RTX 3090", 24 * GIB), Device("CPU", DeviceKind.CPU)),
    binaries=(Binary("/opt/llama/llama-server", "llama-server", 10068), Binary("/opt/llama/ggml-rpc-server",
                                                                             "ggml-rpc-server")),
    models=(ModelFile("/m/big.gguf", 60 * GIB), ModelFile("/m/mid-00001-of-00002.gguf", 15 * GIB),
            ModelFile("/m/mid-00002-of-00002.gguf", 15 * GIB), ModelFile("/m/mmproj-x.gguf", GIB)))


def test_what_was_found_is_written_and_read_again() -> None:
    text = render("home", [
        Node("kitchen", NodeState.UP, sources=("mdns",), aliases=("kitchen.local",),
             addresses=(Address("10.20.0.14"), Address("10.20.1.14")), address=Address("10.20.1.14"),
             reading=replace(READ, user="ops", models=())),
        Node("desk", NodeState.UP, local=True, reading=READ),
        Node("gpu-box", NodeState.UP, sources=("ssh_config",), addresses=(Address("10.20.0.15"),)),
        Node("printer", NodeState.LOCKED, sources=("mdns",), addresses=(Address("10.20.0.16"),),
             problem=Problem("sign-in", "No key was accepted.")),
    ], FleetConfig())
    config = parse(text)
    assert list(config.nodes) == ["desk", "gpu-box", "kitchen"] and config.nodes["desk"].local
    assert config.nodes["kitchen"].addresses == ("10.20.1.14", "kitchen.local")
    assert config.nodes["kitchen"].user == "ops" and config.nodes["gpu-box"].addresses == ()
    assert {name: (m.file, m.head) for name, m in config.models.items()} == {
        "big": ("/m/big.gguf", "desk"), "mid": ("/m/mid-00001-of-00002.gguf", "desk")}
    assert config.model == "mid"     # 15 GiB fit into what the devices have, 60 do not
    assert "NVIDIA GeForce RTX 3090, 24.0 GiB" in text and "No key was accepted." in text


def test_an_empty_home_gives_a_file_too() -> None:
    assert parse(render("home", [], FleetConfig())).nodes == {}


def test_what_is_set_already_is_kept() -> None:
    config = FleetConfig(rpc=RpcMode.TUNNEL, ssh=SshConfig(user="ops"), discovery=DiscoveryConfig(interfaces=("eth0",)))
    again = parse(render("x", [], config))
    assert (again.rpc, again.ssh.user, again.discovery.interfaces) == (RpcMode.TUNNEL, "ops", ("eth0",))


HOSTILE = ["", "a: b", "'", '"', "a\nb", "#x", "<<", "~", "null", "on", "- a", "{", "*a", "&a", "!t", "%", "\u2028",
           "é", "日本", "🦙", "\x1b[31m", "\ud800", "x" * 300, "local", "1e3", "a\\b", "?", " a ", "\u202e", "\x85",
           "@"]
TEXTS = st.one_of(st.sampled_from(HOSTILE), st.text(max_size=12), st.text(st.characters(), max_size=6))
HOSTS = st.one_of(TEXTS, st.sampled_from(["10.0.0.1", "10.0.0.2", "fe80::1", "fe80::1%eth0", "2001:db8::1", "127.0.0.1",
                                          "localhost", "atlas.local", "local", "0.0.0.0"]))
ADDRESSES = st.builds(Address, HOSTS, st.sampled_from([22, 2222]))
READINGS = st.one_of(st.none(), st.builds(
    NodeReading, os=TEXTS, user=TEXTS, models=st.lists(st.builds(
        ModelFile, st.one_of(TEXTS, TEXTS.map("/m/{}.gguf".format)), st.integers(0, GIB)), max_size=3).map(tuple),
    devices=st.lists(st.builds(Device, TEXTS, st.sampled_from(DeviceKind), TEXTS), max_size=2).map(tuple),
    binaries=st.lists(st.builds(Binary, TEXTS, st.sampled_from(["llama-server", "rpc-server"])),
                      max_size=2).map(tuple)))
NODES = st.lists(st.builds(
    Node, TEXTS, st.sampled_from(NodeState), local=st.booleans(), aliases=st.lists(HOSTS, max_size=2).map(tuple),
    problem=st.one_of(st.none(), TEXTS.map(lambda text: Problem("x", text))),
    sources=st.lists(st.sampled_from(["mdns", "ssh_config", "fleet.yaml"]), max_size=2).map(tuple),
    addresses=st.lists(ADDRESSES, max_size=3).map(tuple), address=st.one_of(st.none(), ADDRESSES), reading=READINGS),
    max_size=5)


@settings(max_examples=300)
@given(TEXTS, NODES)
@example("x", [Node(name, addresses=(Address(f"10.0.0.{place}"),)) for place, name in enumerate(HOSTILE)])
def test_whatever_machines_call_themselves_the_file_is_read_again(fleet: str, nodes: list[Node]) -> None:
    text = render(fleet, nodes, FleetConfig())
    text.encode()
    config = parse(text)
    wanted = [node for node in nodes if node.addresses == (Address("10.0.0.1"),) and node.state is NodeState.UP]
    assert not wanted or config.nodes


@given(st.lists(TEXTS, min_size=1, max_size=6, unique=True))
def test_every_machine_with_an_address_of_its_own_is_in_the_file(names: list[str]) -> None:
    nodes = [Node(name, NodeState.UP, sources=("mdns",), addresses=(Address(f"10.0.0.{place + 1}"),))
             for place, name in enumerate(names)]
    config = parse(render("x", nodes, FleetConfig()))
    assert {node.addresses for node in config.nodes.values()} == {(node.addresses[0].host,) for node in nodes}


# ---- the file


def test_a_file_is_never_written_over(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    write_new(path, "fleet: one\n")
    with pytest.raises(ConfigError, match="there already"):
        write_new(path, "fleet: two\n")
    assert load(path).fleet == "one" and os.listdir(tmp_path) == ["fleet.yaml"]
    dangling = tmp_path / "link.yaml"
    dangling.symlink_to(tmp_path / "elsewhere.yaml")
    with pytest.raises(ConfigError, match="there already"):
        write_new(dangling, "x")
    assert not (tmp_path / "elsewhere.yaml").exists()


def test_missing_folders_are_made_for_the_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "config" / "quarterdeck" / "fleet.yaml"
    write_new(path, "fleet: x\n")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_file_in_an_open_folder_can_be_read_by_all(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o755)
    mask = os.umask(0o022)
    try:
        write_new(folder / "fleet.yaml", "fleet: x\n")
    finally:
        os.umask(mask)
    assert stat.S_IMODE((folder / "fleet.yaml").stat().st_mode) == 0o644


def test_a_place_that_cannot_be_written_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written"):
        write_new(tmp_path / "file" / "fleet.yaml", "x")


def test_without_hard_links_nothing_is_written_over_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")
    monkeypatch.setattr(os, "link", no_links)
    write_new(tmp_path / "fleet.yaml", "fleet: one\n")
    with pytest.raises(ConfigError, match="there already"):
        write_new(tmp_path / "fleet.yaml", "fleet: two\n")
    assert (tmp_path / "fleet.yaml").read_text() == "fleet: one\n" and os.listdir(tmp_path) == ["fleet.yaml"]
