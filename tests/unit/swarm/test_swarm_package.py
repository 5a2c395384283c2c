"""What goes to a node: Python 3.9, its own library alone, the same bytes from the same sources."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import fleet.node
from fleet.swarm import zipapp

SOURCES = sorted(Path(fleet.node.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_a_module_needs_nothing_but_python_3_9(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 9))
    assert any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            tops = [name.name.partition(".")[0] for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            tops = [] if node.level == 1 else [node.module.partition(".")[0]]
            assert node.level <= 1, f"{path.name} reaches out of the package"
        else:
            continue
        assert set(tops) <= sys.stdlib_module_names, f"{path.name} imports {tops}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_a_module_uses_no_word_of_a_later_python(path: Path) -> None:
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("dataclass", "zip"):
            assert not {word.arg for word in node.keywords} & {"slots", "kw_only", "strict"}
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp):
            assert not (isinstance(node.value.op, ast.BitOr) and "None" in ast.dump(node.value.right)), path.name


def test_two_builds_are_the_same_file_and_its_name_says_which(tmp_path: Path) -> None:
    first, second = zipapp.build(), zipapp.build()
    assert first == second
    assert zipapp.name(first) == zipapp.name(second) != zipapp.name(first + b"x")


def test_the_one_file_runs_with_nothing_installed(tmp_path: Path) -> None:
    app, model = tmp_path / "node.pyz", tmp_path / "m.gguf"
    app.write_bytes(zipapp.build())
    model.write_bytes(b"x" * 10_000)
    run = subprocess.run([sys.executable, "-I", "-S", app, "manifest", model], capture_output=True, timeout=60,
                         check=True, stdin=subprocess.DEVNULL)
    assert json.loads(run.stdout.splitlines()[-1])["event"] == "done"
    assert (tmp_path / "m.gguf.quarterdeck.manifest").is_file()
