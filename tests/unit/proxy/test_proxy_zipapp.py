"""The proxy as one file for nodes: what is in it, that it is the same each time, and that it runs with nothing else."""

from __future__ import annotations

import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
import urllib.request
import zipfile
from pathlib import Path

import pytest

from fleet.proxy import zipapp


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("zipapp") / "proxy.pyz"
    path.write_bytes(zipapp.build())
    return path


def test_two_builds_are_the_same_file_and_its_name_says_which() -> None:
    first = zipapp.build()
    assert first == zipapp.build()
    assert zipapp.name(first) != zipapp.name(first + b"x")


def test_everything_that_the_proxy_imports_is_carried() -> None:
    assert zipapp.foreign_packages() <= zipapp.CARRIED.keys()


def test_it_holds_sources_and_licences_and_nothing_else(app: Path) -> None:
    with zipfile.ZipFile(app) as archive:
        names = archive.namelist()
        assert all(info.date_time == (1980, 1, 1, 0, 0, 0) for info in archive.infolist())
    assert all(name.endswith(".py") for name in names if not name.startswith("licences/"))
    licensed = {name.split("/")[1].partition("-")[0] for name in names if name.startswith("licences/")}
    assert licensed == {"quarterdeck", *zipapp.CARRIED.values()}
    assert {name.split("/")[0] for name in names} == {"__main__.py", "fleet", "licences", *zipapp.CARRIED}


def test_nothing_of_the_cockpit_of_ssh_or_of_models_is_in_it() -> None:
    rooms = {path.split("/")[1] for path in zipapp.own_sources() if path.count("/") > 1}
    assert not rooms & {"nodes", "operations", "models", "swarm", "node", "experts"}


def test_the_hash_of_our_code_changes_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = zipapp.own_code()
    sources = zipapp.own_sources()
    monkeypatch.setattr(zipapp, "own_sources", lambda: {**sources, "fleet/proxy/app.py": b"pass\n"})
    assert zipapp.own_code() != before


def test_it_serves_with_no_package_installed(app: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    env = {"PATH": os.environ["PATH"], "QUARTERDECK_TARGET_URL": "http://127.0.0.1:9", "QUARTERDECK_LISTEN": listen}
    with subprocess.Popen([sys.executable, "-I", "-S", app], env=env, stderr=subprocess.PIPE, text=True) as proxy:
        assert proxy.stderr is not None
        try:
            assert select.select([proxy.stderr], [], [], 60)[0]
            line = proxy.stderr.readline()
            assert line.startswith("quarterdeck: the proxy serves at http://127.0.0.1:"), line + proxy.stderr.read()
            with urllib.request.urlopen(f"{line.split()[-1]}/v1/models", timeout=30) as answer:
                assert json.load(answer)["object"] == "list"
        finally:
            proxy.send_signal(signal.SIGTERM)
        assert proxy.wait(30) == 0


def test_an_older_python_is_told_so() -> None:
    with zipfile.ZipFile(io.BytesIO(zipapp.build())) as archive:
        main = archive.read("__main__.py").decode()
    code = f"import sys; sys.version_info = (3, 10, 9)\n{main}"
    run = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 1 and "older than 3.11" in run.stderr
