"""`manifest create`, `swarm seed --foreground`, `pull` and `verify`: real files, real sockets, real processes."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from swarm.parts import make_model, odd_peer, seeding

from app.cli import main as command
from app.exit_codes import ExitCode
from app.known_pulls import KnownPulls
from app.swarm_moving import piece_size_of
from fleet.node import Access, load_manifest

PROGRAM = [sys.executable, "-c", "import sys; from app.cli import main; sys.exit(main(sys.argv[1:]))"]


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    """Away from the home of whoever runs the tests, and nothing is sent to the network."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "QUARTERDECK_CONFIG", "QUARTERDECK_SWARM_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "fleet.yaml").write_text("fleet: alone\ndiscovery: {mdns: false, ssh_config: false}\n")


def test_a_manifest_is_made_of_all_shards_of_a_set(tmp_path: Path, capsys) -> None:
    parts = []
    for number in (1, 2, 3):
        parts.append(tmp_path / f"big-{number:05}-of-00003.gguf")
        parts[-1].write_bytes(random.Random(number).randbytes(9_000))
    assert command(["manifest", "create", str(parts[1]), "--piece-size", "4KiB", "--json"]) == ExitCode.OK
    said = capsys.readouterr()
    told = json.loads(said.out)
    assert [entry["name"] for entry in told["files"]] == [part.name for part in parts]
    assert told["pieces"] == 9 and load_manifest(told["path"]).id == told["manifest"]
    assert "says nothing of the model" in said.err       # random bytes are no GGUF, and can be moved all the same


@pytest.mark.parametrize("words", [["manifest", "create"], ["swarm", "seed"], ["swarm", "verify"],
                                   ["swarm", "seed", "--foreground"]])
def test_a_file_that_is_not_there_is_said_once(words: list[str], tmp_path: Path, capsys) -> None:
    assert command([*words, str(tmp_path / "nothing.gguf")]) == ExitCode.NOT_THERE
    out, err = capsys.readouterr()
    assert out == "" and err.splitlines()[0] == f"quarterdeck: There is no file {tmp_path}/nothing.gguf."


def test_a_missing_shard_is_named(tmp_path: Path, capsys) -> None:
    (tmp_path / "big-00001-of-00002.gguf").write_bytes(b"x" * 5_000)
    assert command(["manifest", "create", "big-00001-of-00002.gguf"]) == ExitCode.FAILED
    assert "big-00002-of-00002.gguf is missing" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "size"), [("64MB", 67_108_864), ("64", 67_108_864), ("16MiB", 16 << 20),
                                            ("8192", 8192), ("4k", 4096), ("1GiB", 1 << 30)])
def test_piece_sizes(text: str, size: int) -> None:
    assert piece_size_of(text) == size


@pytest.mark.parametrize("words", [
    ["manifest", "create", "x", "--piece-size", "1KiB"], ["manifest", "create", "x", "--piece-size", "-1"],
    ["swarm", "pull"], ["swarm", "pull", "http://127.0.0.1:1", "--parallel", "0"],
    ["swarm", "pull", "http://127.0.0.1:1", "--limit-down", "fast"], ["swarm", "seed", "x", "--port", "70000"],
    ["swarm", "verify", "x", "--patience", "-1"],
])
def test_words_that_cannot_be_are_refused(words: list[str], capsys) -> None:
    assert command(words) == ExitCode.USAGE
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(("words", "said"), [
    (["swarm", "pull", "http://127.0.0.1:1"], "cannot be reached"),
    (["swarm", "pull", "./nothing.manifest"], "No such file"),
    (["swarm", "verify", "/dev/null"], "no manifest"),
    (["swarm", "pull", "http://127.0.0.1:1", "--allowed-ips", "home"], "no network"),
    (["swarm", "pull", "http://127.0.0.1:1", "--token-file", "nothing"], "token file"),
])
def test_what_does_not_work_is_said_in_a_sentence(words: list[str], said: str, capsys) -> None:
    assert command(words) == ExitCode.FAILED
    err = capsys.readouterr().err
    assert said in err and "Traceback" not in err


def test_a_model_is_pulled_verified_broken_and_mended(tmp_path: Path, capsys) -> None:
    manifest, data = make_model(tmp_path / "source")
    (tmp_path / "to").mkdir()
    with seeding(manifest, tmp_path / "source") as seeder:
        assert command(["swarm", "pull", seeder.url, "to"]) == ExitCode.OK
        file = tmp_path / "to" / "tiny.gguf"
        assert file.read_bytes() == data
        assert "whole and verified" in capsys.readouterr().out
        assert command(["swarm", "verify", str(file)]) == ExitCode.OK
        with file.open("r+b") as damaged:
            damaged.write(b"bad")
        assert command(["swarm", "verify", str(file)]) == ExitCode.FAILED
        assert "wrong or missing: 1 pieces (0)" in capsys.readouterr().out
        assert command(["swarm", "verify", str(file), "--peer", seeder.url]) == ExitCode.OK
    assert file.read_bytes() == data
    assert KnownPulls().all() == []


def test_the_destination_may_be_said_as_tightwad_does(tmp_path: Path) -> None:
    manifest, data = make_model(tmp_path / "source")
    (tmp_path / "to").mkdir()
    with seeding(manifest, tmp_path / "source") as seeder:
        assert command(["swarm", "pull", "to/tiny.gguf", "--manifest", seeder.url + "/manifest", "--peer",
                        seeder.url]) == ExitCode.OK
    assert (tmp_path / "to" / "tiny.gguf").read_bytes() == data


def test_another_hash_than_the_hubs_is_refused_before_a_byte_moves(tmp_path: Path, capsys) -> None:
    manifest, _ = make_model(tmp_path / "source")
    with seeding(manifest, tmp_path / "source") as seeder:
        assert command(["swarm", "pull", seeder.url, "--sha256", "ab" * 32]) == ExitCode.FAILED
        assert "is not of the file with that SHA-256" in capsys.readouterr().err
        assert not (tmp_path / "tiny.gguf.part").exists()
        assert command(["swarm", "pull", seeder.url, "--sha256", manifest.files[0].sha256.upper()]) == ExitCode.OK


def test_a_token_comes_by_file_or_environment_and_one_on_the_command_line_is_warned_about(
        tmp_path: Path, capsys, monkeypatch) -> None:
    manifest, _ = make_model(tmp_path / "source", 2)
    (tmp_path / "token").write_text("correct-horse-battery\n")
    with seeding(manifest, tmp_path / "source", access=Access("correct-horse-battery")) as seeder:
        assert command(["swarm", "pull", seeder.url]) == ExitCode.FAILED
        err = capsys.readouterr().err
        assert "wants a token" in err and "--token-file" in err
        for number, words in enumerate((["--token-file", "token"], ["--token", "correct-horse-battery"], [])):
            if not words:
                monkeypatch.setenv("QUARTERDECK_SWARM_TOKEN", "correct-horse-battery")
            (tmp_path / f"to{number}").mkdir()
            assert command(["swarm", "pull", seeder.url, f"to{number}", *words]) == ExitCode.OK
            said = capsys.readouterr()
            assert ("use --token-file" in said.err) == ("--token" in words)
            assert "correct-horse" not in said.out + said.err


def test_a_peer_that_lies_is_named_and_json_is_lines(tmp_path: Path, capsys) -> None:
    manifest, data = make_model(tmp_path / "source")
    (tmp_path / "to").mkdir()
    path = str(tmp_path / "source" / "tiny.gguf.quarterdeck.manifest")
    with odd_peer(manifest, data, "corrupt") as bad, seeding(manifest, tmp_path / "source", up=400_000) as seeder:
        assert command(["swarm", "pull", path, "to", "--peer", bad, "--peer", seeder.url, "--json"]) == ExitCode.OK
        told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["url"] for record in told if record["event"] == "banned"] == [bad]
    assert told[-1]["event"] == "done"
    assert (tmp_path / "to" / "tiny.gguf").read_bytes() == data


def test_a_stopped_pull_says_what_is_kept_is_listed_and_goes_on(tmp_path: Path) -> None:
    manifest, data = make_model(tmp_path / "source", 20)
    (tmp_path / "to").mkdir()
    with seeding(manifest, tmp_path / "source") as seeder:
        words = [*PROGRAM, "swarm", "pull", seeder.url, "to"]
        process = subprocess.Popen([*words, "--limit-down", "300k", "--json"], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        while json.loads(process.stdout.readline())["event"] != "piece":
            pass
        (running,) = KnownPulls().all()
        assert running.running and running.pid == process.pid and running.name == "tiny.gguf"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
        assert process.returncode == ExitCode.INTERRUPTED
        assert "of 20 pieces of tiny.gguf are kept" in err and "Traceback" not in err
        (stopped,) = KnownPulls().all()
        assert not stopped.running and 0 < stopped.have < 20
        done = subprocess.run(words, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and KnownPulls().all() == []
    assert (tmp_path / "to" / "tiny.gguf").read_bytes() == data


def test_a_pull_that_is_stopped_before_its_first_piece_says_so(tmp_path: Path) -> None:
    manifest, _ = make_model(tmp_path / "source", 4)
    (tmp_path / "to").mkdir()
    with seeding(manifest, tmp_path / "source", up=2_000) as seeder:
        process = subprocess.Popen([*PROGRAM, "swarm", "pull", seeder.url, "to", "--json"], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        while json.loads(process.stdout.readline())["event"] != "peer":
            pass
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == ExitCode.INTERRUPTED
    assert "no piece of tiny.gguf was whole yet" in err and "Traceback" not in err


def test_a_seeder_in_the_foreground_makes_the_manifest_and_serves_until_it_is_told(tmp_path: Path) -> None:
    _, data = make_model(tmp_path / "made", 3)
    source = tmp_path / "source"
    source.mkdir()
    os.rename(tmp_path / "made" / "tiny.gguf", source / "tiny.gguf")
    process = subprocess.Popen([*PROGRAM, "swarm", "seed", str(source / "tiny.gguf"), "--foreground", "--port", "0",
                                "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        serving = next(record for record in map(json.loads, process.stdout) if record["event"] == "serving")
        assert command(["swarm", "pull", serving["url"], str(tmp_path)]) == ExitCode.OK
        assert (tmp_path / "tiny.gguf").read_bytes() == data
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
    assert process.returncode == ExitCode.OK
