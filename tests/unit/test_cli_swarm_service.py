"""`swarm seed` as a service of this machine: found by `status`, asked, ended by `down`. Real processes."""

from __future__ import annotations

import json
import random
import socket
import stat
from pathlib import Path

import pytest
from swarm.parts import free_port, make_model

from app.cli import main as command
from app.exit_codes import ExitCode
from fleet.node import Puller

TOKEN = "correct-horse-battery"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own, and nothing is sent to the network."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_STATE_HOME", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "QUARTERDECK_CONFIG",
                 "QUARTERDECK_SWARM_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "fleet.yaml").write_text("fleet: alone\ndiscovery: {mdns: false, ssh_config: false}\n")
    return tmp_path


def test_a_seeder_is_started_asked_and_ended(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "models").mkdir()
    (home / "models" / "raw.bin").write_bytes(random.Random(5).randbytes(50_000))
    manifest, data = make_model(home / "models", 5)
    (home / "token").write_text(TOKEN)
    port = free_port()
    words = ["swarm", "seed", "models/tiny.gguf", "models/raw.bin", "--port", str(port), "--token-file", "token",
             "--host", "127.0.0.1"]
    try:
        assert command(words) == ExitCode.OK
        assert "serves at" in capsys.readouterr().out
        assert command(words) == ExitCode.OK                                # a second time: it runs already
        assert "already" in capsys.readouterr().out
        assert command(["swarm", "seed", "models/raw.bin", "--port", str(port)]) == ExitCode.REFUSED
        assert "Choose another --port" in capsys.readouterr().err
        assert command(["swarm", "status", "--json"]) == ExitCode.OK
        (seeder,) = json.loads(capsys.readouterr().out)["seeders"]
        assert seeder["service"] == f"seeder-{port}" and seeder["problem"] is None
        assert [(model["name"], model["have_count"], model["have"]) for model in seeder["models"]] == [
            ("tiny.gguf", 5, "f8"), ("raw.bin", 1, "80")]
        (home / "to").mkdir()
        Puller(manifest, home / "to", [f"http://127.0.0.1:{port}"], token=TOKEN).run()
        assert (home / "to" / "tiny.gguf").read_bytes() == data
        secrets = [path for path in home.rglob("*") if path.is_file() and path.name != "token"
                   and TOKEN.encode() in path.read_bytes()]
        assert len(secrets) == 1 and stat.S_IMODE(secrets[0].stat().st_mode) == 0o600
    finally:
        assert command(["down"]) == ExitCode.OK
    assert not secrets[0].exists()
    with socket.create_server(("127.0.0.1", port)):
        pass


def test_a_seeder_for_everybody_has_to_be_asked_for(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_model(home / "models", 2)
    assert command(["swarm", "seed", "models/tiny.gguf", "--host", "0.0.0.0", "--dry-run"]) == ExitCode.REFUSED
    assert "--open" in capsys.readouterr().err
    assert command(["swarm", "seed", "models/tiny.gguf", "--open", "--dry-run"]) == ExitCode.OK
    assert "0.0.0.0" in capsys.readouterr().out
