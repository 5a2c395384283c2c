"""Which Python of a node runs the proxy, and what is said when none can."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from fleet.errors import PlanRefused
from fleet.nodes.local import LocalTransport
from fleet.nodes.pythons import Python, Pythons, choose_python, find_pythons, read_pythons
from fleet.proxy.zipapp import own_code

OLDEST = (3, 11)


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


async def test_pythons_are_found_under_all_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "bin" / "python3", "#!/bin/sh\necho 3.9.2 -\n")
    program(tmp_path / "bin" / "python3.13", "#!/bin/sh\necho 3.13.1 -\n")
    program(tmp_path / "bin" / "python3.12", "#!/bin/sh\nexit 1\n")
    (tmp_path / "bin" / "python3.14").mkdir()
    program(tmp_path / "home" / ".local" / "share" / "uv" / "python" / "x" / "bin" / "python3.14",
            "#!/bin/sh\necho 3.14.0 ssl\n")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:relative:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    found = (await find_pythons(LocalTransport("here"))).found
    mine = [python for python in found if python.path.startswith(str(tmp_path))]
    assert [(python.version, python.lacks) for python in mine] == [
        ((3, 9, 2), ""), ((3, 13, 1), ""), ((3, 14, 0), "ssl")]
    assert len(found) > 3 or sys.prefix != sys.base_prefix


async def test_an_installed_quarterdeck_is_known_by_its_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / ".local" / "bin" / "quarterdeck", f"#!{sys.executable}\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    found = await find_pythons(LocalTransport("here"))
    assert found.with_code(own_code()) == sys.executable
    assert found.with_code("0" * 64) == ""


def test_python3_counts_before_a_newer_one_and_a_newer_one_before_an_old_python3() -> None:
    usual, newer = Python("/usr/bin/python3", (3, 11, 2)), Python("/opt/bin/python3.13", (3, 13, 0))
    old = Python("/usr/bin/python3", (3, 9, 0))
    assert choose_python("n", Pythons((newer, usual)), OLDEST, "The proxy") is usual
    assert choose_python("n", Pythons((old, newer)), OLDEST, "The proxy") is newer


@pytest.mark.parametrize(("found", "sentence"), [
    ((), "needs Python 3.11 or newer, and n has no python3."),
    ((Python("/usr/bin/python3", (3, 9, 18)), Python("/usr/bin/python3.10", (3, 10, 1))),
     "the newest on n is Python 3.10.1 (/usr/bin/python3.10)."),
    ((Python("/usr/bin/python3", (3, 11, 2), "asyncio"),), "has no module asyncio"),
])
def test_a_node_without_a_good_one_is_refused_with_the_sentence(found: tuple[Python, ...], sentence: str) -> None:
    with pytest.raises(PlanRefused) as refused:
        choose_python("n", Pythons(found), OLDEST, "The proxy")
    assert sentence in refused.value.what and "n" in refused.value.remedy


def test_what_a_hostile_node_prints_is_bounded_and_passed_over() -> None:
    text = "\n".join(["python|3.12.1 - relative/python3", "python|3.x.1 - /a", "python|99999.1.1 - /a", "python|",
                      "python|3.12.1 - /a\x1b[2J", "ours|x", "python|3.12.1", *["python|3.12.1 - /p"] * 5000, "end"])
    assert len(read_pythons(text).found) <= 64
    assert all(python.path == "/p" for python in read_pythons(text).found)
