"""What a command imports: the only proof that a heavy import is put off is the list of modules afterwards."""

import json
import subprocess
import sys

import pytest

HEAVY = {"textual", "rich", "asyncssh", "zeroconf", "gguf", "numpy", "httpx", "yaml", "dataclasses", "asyncio",
         "shutil", "importlib.metadata"}
REPORT = """
import json, sys
from app.cli import main
try:
    code = main(json.loads(sys.argv[1]))
except SystemExit as ended:
    code = ended.code
print(json.dumps([code, sorted(sys.modules)]), file=sys.stderr)
"""


def modules_after(*words: str, **environ: str) -> tuple[int, set[str]]:
    """Exit code, and the modules that are there after `quarterdeck WORDS` in a process of its own."""
    import os

    ran = subprocess.run([sys.executable, "-c", REPORT, json.dumps(words)], capture_output=True, text=True, timeout=60,
                         env={**os.environ, **environ}, check=True)
    code, modules = json.loads(ran.stderr.splitlines()[-1])
    return code, set(modules)


@pytest.mark.parametrize("words", [("--help",), ("up", "--help"), ("chat", "--help")])
def test_help_imports_nothing_heavy(words):
    code, modules = modules_after(*words)
    assert code == 0
    assert not HEAVY & modules
    assert not {name for name in modules if name.startswith("fleet.")} - {"fleet.errors"}


def test_a_headless_snapshot_needs_no_user_interface(tmp_path):
    code, modules = modules_after("--no-ui", "--once", "--json", "--config", str(one_node(tmp_path)),
                                  HOME=str(tmp_path), XDG_STATE_HOME=str(tmp_path / "state"))
    assert code == 0
    assert "fleet.engine" in modules
    assert "textual" not in modules


def one_node(folder):
    """A fleet.yaml that names this machine alone and looks for no others."""
    path = folder / "fleet.yaml"
    path.write_text("nodes:\n  here:\n    address: local\ndiscovery:\n  mdns: false\n  ssh_config: false\n"
                    "  announce: false\n")
    return path
