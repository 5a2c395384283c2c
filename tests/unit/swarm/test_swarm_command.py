"""The node's command: what it prints, what it obeys, what it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .parts import PIECE, get, make_model, seeding

COMMAND = [sys.executable, "-m", "fleet.node"]


def run(*words: object, stdin: str = "", environ: dict[str, str] | None = None) -> tuple[int, list[dict]]:
    """(status, records) of a run that ends by itself."""
    done = subprocess.run([*COMMAND, *map(str, words)], input=stdin, capture_output=True, text=True, timeout=60,
                          env={**os.environ, **(environ or {})})
    assert "Traceback" not in done.stderr
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def test_a_manifest_is_made_and_a_model_seeded_pulled_and_verified(tmp_path: Path) -> None:
    source, to = tmp_path / "source", tmp_path / "to"
    _, data = make_model(source)
    to.mkdir()
    (tmp_path / "facts.json").write_text('{"architecture": "llama", "parameters": 270000000}')
    status, told = run("manifest", source / "tiny.gguf", "--piece-size", PIECE, "--facts", tmp_path / "facts.json")
    assert (status, told[-1]["event"], told[-1]["pieces"]) == (0, "done", 12)
    seeder = subprocess.Popen([*COMMAND, "seed", source / "tiny.gguf", "--port", "0"], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, text=True)
    try:
        serving = json.loads(seeder.stdout.readline())
        assert json.loads(get(serving["port"], "/manifest")[1])["metadata"]["parameters"] == 270_000_000
        status, told = run("pull", to, "--manifest", serving["url"] + "/manifest")
        assert (status, told[-1]["event"]) == (0, "done")
        assert told[-1]["paths"] == [str(to / "tiny.gguf")]
        assert (to / "tiny.gguf").read_bytes() == data
        assert run("verify", to / "tiny.gguf")[0] == 0
        with (to / "tiny.gguf").open("r+b") as file:
            file.write(b"bad")
        status, told = run("verify", to / "tiny.gguf")
        assert (status, told[-2]["pieces"], told[-1]["code"]) == (1, [0], "wrong")
        status, told = run("verify", to / "tiny.gguf", "--peer", serving["url"])
        assert (status, told[-1]["received"]) == (0, PIECE)
        assert (to / "tiny.gguf").read_bytes() == data
    finally:
        out, _ = seeder.communicate("limit up 5M\nnonsense\nstop\n", timeout=20)
    assert seeder.returncode == 0
    assert "Not understood" in out


def test_peers_limits_and_a_stop_come_by_stdin(tmp_path: Path) -> None:
    manifest, data = make_model(tmp_path / "source", 20)
    (tmp_path / "to").mkdir()
    with seeding(manifest, tmp_path / "source") as seeder:
        path = tmp_path / "source" / "tiny.gguf.quarterdeck.manifest"
        words = ["pull", str(tmp_path / "to"), "--manifest", str(path)]
        puller = subprocess.Popen([*COMMAND, *words, "--limit-down", "300k"], stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE, text=True)
        puller.stdin.write(f"peer add {seeder.url}\n")
        puller.stdin.flush()
        while json.loads(puller.stdout.readline())["event"] != "piece":
            pass
        out, _ = puller.communicate("stop\n", timeout=30)
        assert puller.returncode == 3
        assert json.loads(out.splitlines()[-1])["code"] == "stopped"
        status, told = run(*words, "--peer", seeder.url)
    assert (status, told[-1]["event"]) == (0, "done")
    assert (tmp_path / "to" / "tiny.gguf").read_bytes() == data


def test_a_token_by_file_or_environment_opens_and_never_shows(tmp_path: Path) -> None:
    token = "correct-horse-battery"
    manifest, _ = make_model(tmp_path / "source", 3)
    (tmp_path / "token").write_text(token + "\n")
    seeder = subprocess.Popen([*COMMAND, "seed", tmp_path / "source" / "tiny.gguf", "--port", "0", "--token-file",
                               tmp_path / "token"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    url = json.loads(seeder.stdout.readline())["url"]
    for name, status in (("a", 1), ("b", 0)):
        (tmp_path / name).mkdir()
        got, told = run("pull", tmp_path / name, "--manifest", url, "--patience", "1",
                        environ={"QUARTERDECK_SWARM_TOKEN": token} if status == 0 else {})
        assert got == status
        assert token not in json.dumps(told)
    got, told = run("pull", tmp_path / "b", "--manifest", url, "--token", token)
    assert got == 0
    assert "--token-file" in told[0]["what"]
    seeder.communicate("stop\n", timeout=20)
    assert manifest.count == 3


@pytest.mark.parametrize(("words", "code"), [
    (("seed", "nothing.gguf"), "missing"), (("verify", "nothing.gguf"), "missing"),
    (("manifest", "nothing.gguf"), "file"), (("pull", "nowhere", "--manifest", "nothing"), "file"),
    (("pull", "nowhere", "--manifest", "http://127.0.0.1:1"), "peer"),
    (("pull", "nowhere", "--manifest", "https://x"), "peer"),
    (("pull", "nowhere", "--manifest", "m", "--host", "0.0.0.0"), "file"),
])
def test_what_cannot_be_done_is_one_error_record(tmp_path: Path, words: tuple[str, ...], code: str) -> None:
    status, told = run(*[str(tmp_path / word) if word.startswith("no") else word for word in words])
    assert (status, told[-1]["event"], told[-1]["code"]) == (1, "error", code)


def test_a_seeder_for_everybody_has_to_be_asked_for(tmp_path: Path) -> None:
    make_model(tmp_path, 2)
    status, told = run("seed", tmp_path / "tiny.gguf", "--port", "0", "--host", "0.0.0.0")
    assert (status, told[-1]["code"]) == (1, "open")
    status, told = run("seed", tmp_path / "tiny.gguf", "--port", "0", "--host", "0.0.0.0", "--open", "--until-eof")
    assert (status, told[0]["event"]) == (0, "serving")
