"""The image of the proxy: what its Dockerfile says holds, as far as it can be seen without Docker."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from fleet.proxy.environment import PREFIX, from_environment

ROOT = Path(__file__).parents[3]


def instructions() -> list[tuple[str, str]]:
    """Instruction and the rest of it, continued lines joined."""
    joined = re.sub(r"\\\n\s*", " ", (ROOT / "Dockerfile").read_text())
    lines = [line.strip() for line in joined.split("\n") if line.strip() and not line.startswith("#")]
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in lines]


def test_it_is_no_root_with_a_health_check_and_one_way_in() -> None:
    found = dict(instructions())
    assert instructions()[0][0] == "FROM" and ":latest" not in found["FROM"] and ":" in found["FROM"]
    assert found["USER"] not in ("root", "0") and found["USER"] in found["RUN"]
    assert json.loads(found["ENTRYPOINT"]) == ["python", "-m", "fleet.proxy"]
    assert json.loads(found["HEALTHCHECK"].partition("CMD ")[2]) == ["python", "-m", "fleet.proxy", "--health"]
    assert [rest for word, rest in instructions() if word == "COPY"] == ["fleet ./fleet"]
    order = [word for word, _ in instructions()]
    assert order.index("COPY") > order.index("RUN") and order.index("USER") > order.index("COPY")


def test_the_linter_has_nothing_to_say() -> None:
    linter = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:/usr/bin:/usr/local/bin")
    if linter is None:
        pytest.skip("hadolint is not installed (the test extra has it for Linux on x86-64)")
    ended = subprocess.run([linter, "--no-color", str(ROOT / "Dockerfile")], capture_output=True, text=True, timeout=60,
                           check=False)
    assert (ended.returncode, ended.stdout) == (0, "")


def test_what_it_installs_is_what_the_project_needs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    run = next(rest for word, rest in instructions() if word == "RUN")
    installed = re.findall(r'"([a-z][^"]*)"', run)
    assert installed and set(installed) <= set(project["dependencies"])
    version = re.search(r"python:(3\.\d+)", dict(instructions())["FROM"])
    assert version is not None and f"Programming Language :: Python :: {version[1]}" in project["classifiers"]


def test_the_proxy_imports_nothing_that_is_not_installed_there() -> None:
    """A process that cannot import anything else, as in the image."""
    script = (
        "import sys\n"
        "allowed = {'fleet', 'uvicorn', 'yaml', '_yaml', 'h11', 'click'} | set(sys.stdlib_module_names)\n"
        "class Only:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] not in allowed:\n"
        "            raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, Only())\n"
        "import fleet.proxy.serve\n"
        "from fleet.proxy.__main__ import main\n"
        "sys.exit(main(['--variables'], {}))\n")
    ended = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60,
                           check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("| variable |")


def test_the_example_of_compose_starts_a_proxy() -> None:
    service = yaml.safe_load((ROOT / "compose.example.yaml").read_text())["services"]["proxy"]
    assert service["network_mode"] == "host" and service["build"] == "." and "privileged" not in service
    assert all(name.startswith(PREFIX) for name in service["environment"])
    found = from_environment(service["environment"])
    assert found.warnings == () and found.settings.upstreams[0].url == "http://127.0.0.1:8080"
    assert "Docker Desktop" in (ROOT / "compose.example.yaml").read_text()


def test_the_context_of_the_build_holds_the_package_alone() -> None:
    rules = [line for line in (ROOT / ".dockerignore").read_text().split("\n") if line and not line.startswith("#")]
    assert rules[:2] == ["*", "!fleet"]
