"""Files that another user of this machine could have put there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fleet.config import load
from fleet.config.load import ConfigErrors, find
from fleet.discovery.ssh_config import read_ssh_config
from fleet.errors import NodeError
from fleet.model import Address
from fleet.nodes.ssh_settings import Settings
from fleet.nodes.ssh_target import SshTarget
from fleet.ownership import why_not_ours

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")


def test_a_fleet_yaml_that_everybody_may_write_is_not_obeyed_for_lying_in_the_folder(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text("fleet: theirs\n")
    file.chmod(0o666)
    with pytest.raises(ConfigErrors, match="everybody may write"):
        find(None, {}, tmp_path)
    assert find(str(file), {}, tmp_path) == file          # who names it means it
    file.chmod(0o644)
    assert find(None, {}, tmp_path) == file


@as_root
def test_another_users_fleet_yaml_is_not_obeyed_but_that_of_who_called_sudo_is(tmp_path, monkeypatch) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text("fleet: theirs\n")
    os.chown(file, 12345, 12345)
    monkeypatch.delenv("SUDO_UID", raising=False)
    with pytest.raises(ConfigErrors, match="another user"):
        find(None, {}, tmp_path)
    monkeypatch.setenv("SUDO_UID", "12345")
    assert find(None, {}, tmp_path) == file


@as_root
def test_a_group_of_others_is_others(tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text("")
    os.chown(file, 0, 12345)
    file.chmod(0o664)
    assert "group" in why_not_ours(file.stat())
    file.chmod(0o644)
    assert why_not_ours(file.stat()) == ""


def test_an_ssh_config_that_others_may_write_runs_nothing_and_names_nobody(tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text("Host box\n  HostName 10.0.0.9\n  ProxyCommand touch /tmp/owned\n")
    file.chmod(0o602)
    found = read_ssh_config(file)
    assert found.aliases == () and "everybody may write" in found.warnings[0]
    with pytest.raises(NodeError, match="everybody may write"):
        Settings(SshTarget("box", (Address("box"),), ssh_config_files=(str(file),)))


BOMBS = {
    "laughs": "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{chr(98 + n)}: &{chr(98 + n)} [{','.join(['*' + chr(97 + n)] * 9)}]\n" for n in range(12)),
    "merges": "x-a: &a {" + ",".join(f"k{n}: 1" for n in range(2000)) + "}\n" + "".join(
        f"x-{n}: {{<<: [*a, *a, *a, *a]}}\n" for n in range(200)),
    "deep": "fleet: " + "[" * 100_000,
    "wide": "model_dirs: [" + ",".join(["x"] * 400_000) + "]",
    "long": "fleet: " + "x" * 3_000_000,
    "python": "fleet: !!python/object/apply:os.system [touch /tmp/owned]",
    "itself": "nodes: &n {a: *n}",
    "nul": "fleet: \"a\\0b\"",
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS.keys())
def test_a_bomb_is_told_as_a_problem_of_the_file(bomb: str, tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(bomb)
    with pytest.raises(ConfigErrors) as caught:
        load.load(file)
    assert all(len(problem) < 2000 and problem.isprintable() for problem in caught.value.problems)


@pytest.mark.parametrize("setting", [
    'nodes: {a: {address: "10.0.0.1\\n-oProxyCommand=x"}}', "nodes: {a: {address: -oProxyCommand=x}}",
    "nodes: {a: {address: 10.0.0.1, user: -oProxyCommand=x}}",
    "nodes: {a: {address: 10.0.0.1, jump: -oProxyCommand=x}}",
    'nodes: {a: {address: 10.0.0.1, llama: "/opt\\nreboot"}}', 'nodes: {a: {address: 10.0.0.1, llama: "/opt\\e[2J"}}',
    "nodes: {a: {address: local, workers: [{env: {\"A=B; reboot\": x}}]}}",
    'nodes: {a: {address: local, head: {env: {LD_PRELOAD: "a\\0b"}}}}',
    "nodes: {-oProxyCommand=x: {}}", "nodes: {\"a\\nb\": {address: 10.0.0.1}}",
])
def test_a_value_that_would_be_an_option_or_more_than_one_line_is_refused(setting: str) -> None:
    with pytest.raises(ConfigErrors):
        load.parse(setting)


def test_spaces_and_quotes_in_a_folder_stay_what_they_are() -> None:
    config = load.parse("nodes: {a: {address: 10.0.0.1, llama: \"/opt/my $(x) 'llama' `y`\"}}")
    assert config.nodes["a"].llama == "/opt/my $(x) 'llama' `y`"
