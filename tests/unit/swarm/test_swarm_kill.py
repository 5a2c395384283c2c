"""kill -9 of pullers and seeders at random instants: never a wrong byte in place, never a finished piece lost.

QUARTERDECK_SWARM_KILLS sets how often (12; the long run takes 100), QUARTERDECK_SWARM_SEED where.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fleet.node import Manifest
from fleet.node.bitfield import SUFFIX, load_bitfield

from .parts import free_port, get, make_model

KILLS = int(os.environ.get("QUARTERDECK_SWARM_KILLS", "12"))
SEED = int(os.environ.get("QUARTERDECK_SWARM_SEED", "6"))
PIECE = 262_144


def start(*words: str, **options: object) -> subprocess.Popen:
    """A real process of the node's command."""
    return subprocess.Popen([sys.executable, "-m", "fleet.node", *words], stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, text=True, **options)


def kill(process: subprocess.Popen) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()


def noted(manifest: Manifest, to: Path) -> set[int]:
    """The pieces that the note names; each is right on disk."""
    note = load_bitfield(to / ("tiny.gguf" + SUFFIX), manifest.id, manifest.count)
    final, part = to / "tiny.gguf", to / "tiny.gguf.part"
    path = part if part.exists() else final
    for index in note.have if note else ():
        piece = manifest.piece(index)
        with path.open("rb") as file:
            file.seek(piece.at)
            assert hashlib.sha256(file.read(piece.size)).hexdigest() == piece.sha256
    return set(note.have) if note else set()


def seeder_of(source: Path, port: int) -> subprocess.Popen:
    process = start("seed", str(source / "tiny.gguf"), "--port", str(port), "--limit-up", "24M")
    assert json.loads(process.stdout.readline())["event"] == "serving"
    return process


def test_a_killed_puller_goes_on_where_it_was(tmp_path: Path) -> None:
    rng, left = random.Random(SEED), KILLS
    manifest, data = make_model(tmp_path / "source", 32, piece_size=PIECE)
    port = free_port()
    seeder, round_number = seeder_of(tmp_path / "source", port), 0
    try:
        while left:
            to = tmp_path / f"to{round_number}"
            to.mkdir()
            round_number += 1
            before: set[int] = set()
            while left:
                puller = start("pull", str(to), "--manifest", f"http://127.0.0.1:{port}", "--seed", str(left))
                lines = rng.randrange(1, 24)      # an instant: after so many records, and a little
                for _ in range(lines):
                    if not puller.stdout.readline():
                        break
                time.sleep(rng.uniform(0, 0.01))
                kill(puller)
                left -= 1
                after = noted(manifest, to)
                assert before <= after
                before = after
                if (to / "tiny.gguf").exists():
                    assert (to / "tiny.gguf").read_bytes() == data
                    break
            puller = start("pull", str(to), "--manifest", f"http://127.0.0.1:{port}")
            out, _ = puller.communicate(timeout=60)
            assert puller.returncode == 0, out
            done = json.loads(out.splitlines()[-1])
            assert done["received"] <= len(data) - len(before) * PIECE + PIECE
            assert (to / "tiny.gguf").read_bytes() == data
            assert not (to / "tiny.gguf.part").exists()
    finally:
        kill(seeder)


def test_a_killed_seeder_that_comes_back_is_used_again(tmp_path: Path) -> None:
    rng = random.Random(SEED + 1)
    _, data = make_model(tmp_path / "source", 48, piece_size=PIECE)
    port = free_port()
    (tmp_path / "to").mkdir()
    seeder = seeder_of(tmp_path / "source", port)
    puller = start("pull", str(tmp_path / "to"), "--manifest", f"http://127.0.0.1:{port}", "--limit-down", "12M")
    try:
        for _ in range(max(2, KILLS // 12)):
            for _ in range(rng.randrange(3, 12)):
                puller.stdout.readline()
            kill(seeder)
            seeder = seeder_of(tmp_path / "source", port)
        out, _ = puller.communicate(timeout=100)
        assert json.loads(out.splitlines()[-1])["event"] == "done"
        assert (tmp_path / "to" / "tiny.gguf").read_bytes() == data
    finally:
        kill(seeder)
        if puller.poll() is None:
            kill(puller)


def test_a_real_limit_on_the_size_of_files_is_said_and_costs_nothing(tmp_path: Path) -> None:
    manifest, data = make_model(tmp_path / "source", 8, piece_size=PIECE)
    port = free_port()
    (tmp_path / "to").mkdir()
    seeder = seeder_of(tmp_path / "source", port)
    try:
        words = ("pull", str(tmp_path / "to"), "--manifest", f"http://127.0.0.1:{port}")
        puller = start(*words, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (PIECE, PIECE)))
        out, _ = puller.communicate(timeout=60)
        last = json.loads(out.splitlines()[-1])
        assert (puller.returncode, last["event"], last["code"]) == (1, "error", "full")
        assert not (tmp_path / "to" / "tiny.gguf").exists()
        puller = start(*words)
        puller.communicate(timeout=60)
        assert (tmp_path / "to" / "tiny.gguf").read_bytes() == data
        assert manifest.total_size == len(data)
    finally:
        kill(seeder)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_really_full_disk_is_said_and_costs_nothing(tmp_path: Path) -> None:
    _, data = make_model(tmp_path / "source", 8, piece_size=PIECE)
    to, port = tmp_path / "to", free_port()
    to.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", to], capture_output=True).returncode:
        pytest.skip("no tmpfs can be mounted here")
    seeder = None
    try:
        seeder = seeder_of(tmp_path / "source", port)
        puller = start("pull", str(to), "--manifest", f"http://127.0.0.1:{port}")
        out, _ = puller.communicate(timeout=60)
        assert json.loads(out.splitlines()[-1])["code"] == "full"
        subprocess.run(["mount", "-o", "remount,size=4m", to], check=True)
        puller = start("pull", str(to), "--manifest", f"http://127.0.0.1:{port}")
        out, _ = puller.communicate(timeout=60)
        assert json.loads(out.splitlines()[-1])["event"] == "done"
        assert (to / "tiny.gguf").read_bytes() == data
        assert get(port, "/health")[0] == 200
    finally:
        if seeder is not None:
            kill(seeder)
        subprocess.run(["umount", to], check=True)
