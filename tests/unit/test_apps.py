"""Files of our code on a node: sent once, checked each time, never half there, readable by nobody else."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fleet.errors import FleetError
from fleet.nodes.apps import Apps
from fleet.nodes.local import LocalTransport

NAME = "quarterdeck-proxy-0123456789abcdef.pyz"
DATA = bytes(range(256)) * 4000


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def apps(state: Path) -> Apps:
    return Apps(LocalTransport("here"), str(state))


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def held(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir()) if folder.exists() else []


def make(folder: Path, **files: bytes) -> Path:
    folder.mkdir(mode=0o700)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


async def test_a_file_is_sent_once_and_for_its_owner_alone(apps: Apps, state: Path) -> None:
    file = state / "apps" / NAME
    assert await apps.push(NAME, DATA, sys.executable) == (str(file), True)
    assert file.read_bytes() == DATA
    assert (mode(file), mode(file.parent)) == (0o600, 0o700)
    assert await apps.push(NAME, DATA, sys.executable) == (str(file), False)
    assert held(state / "apps") == [NAME]


@pytest.mark.parametrize("spoil", [
    lambda file, other: file.write_bytes(DATA[:-1]), lambda file, other: file.write_bytes(b""),
    lambda file, other: (file.unlink(), file.symlink_to(other)), lambda file, other: (file.unlink(), file.mkdir())])
async def test_one_that_is_not_what_its_name_says_is_sent_again(apps: Apps, state: Path, tmp_path: Path,
                                                                spoil: Callable[[Path, Path], object]) -> None:
    file, other = state / "apps" / NAME, make(tmp_path / "other", file=b"theirs") / "file"
    await apps.push(NAME, DATA, sys.executable)
    spoil(file, other)
    assert await apps.push(NAME, DATA, sys.executable) == (str(file), True)
    assert file.read_bytes() == DATA and not file.is_symlink() and other.read_bytes() == b"theirs"


async def test_what_a_push_that_died_left_is_cleared(apps: Apps, state: Path) -> None:
    make(state)
    make(state / "apps", **{f".{NAME}.77": b"half"})
    await apps.push(NAME, DATA, sys.executable)
    assert held(state / "apps") == [NAME]


async def test_nothing_is_left_when_it_is_taken_away(apps: Apps, state: Path) -> None:
    await apps.push(NAME, DATA, sys.executable)
    await apps.remove_others("quarterdeck-proxy-")
    await apps.remove_others("quarterdeck-proxy-")
    assert "apps" not in held(state)


async def test_only_what_is_not_kept_is_taken_away(apps: Apps, state: Path) -> None:
    other = "quarterdeck-proxy-fedcba9876543210.pyz"
    for name in (NAME, other, "quarterdeck-node-0.pyz"):
        await apps.push(name, DATA, sys.executable)
    await apps.remove_others("quarterdeck-proxy-", [other])
    assert held(state / "apps") == ["quarterdeck-node-0.pyz", other]


async def test_a_folder_that_leads_elsewhere_is_not_followed(apps: Apps, state: Path, tmp_path: Path) -> None:
    (make(state) / "apps").symlink_to(make(tmp_path / "elsewhere"))
    with pytest.raises(FleetError, match="symbolic link"):
        await apps.push(NAME, DATA, sys.executable)
    await apps.remove_others("quarterdeck-proxy-")
    assert not held(tmp_path / "elsewhere")


@pytest.mark.parametrize("name", ["../x.pyz", ".hidden", "-rf", "a b", "a\nb", "A", ""])
async def test_a_name_that_could_be_a_path_does_nothing(apps: Apps, state: Path, name: str) -> None:
    with pytest.raises(FleetError, match="could not be kept"):
        await apps.push(name, DATA, sys.executable)
    await apps.remove_others(name)
    assert not held(state)


async def test_without_a_python_that_works_it_says_so_and_leaves_nothing(apps: Apps, state: Path) -> None:
    with pytest.raises(FleetError, match="not what was sent"):
        await apps.push(NAME, DATA, "/nowhere/python3")
    assert not held(state / "apps")
