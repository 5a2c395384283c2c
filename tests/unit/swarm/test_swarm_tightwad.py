"""With Tightwad's own seeder and puller, both ways; QUARTERDECK_TIGHTWAD names its program where it is not on PATH."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

from fleet.node import Puller, load_manifest

from .parts import free_port, make_model, seeding

PROGRAM = os.environ.get("QUARTERDECK_TIGHTWAD") or shutil.which("tightwad")
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="tightwad is not installed")


def test_its_puller_takes_a_model_from_our_seeder(tmp_path: Path) -> None:
    manifest, data = make_model(tmp_path / "source", 8)
    with seeding(manifest, tmp_path / "source") as seeder:
        subprocess.run([PROGRAM, "swarm", "pull", tmp_path / "theirs.gguf", "--manifest", seeder.url + "/manifest",
                        "--peer", seeder.url], check=True, timeout=60, capture_output=True,
                       env={**os.environ, "HOME": str(tmp_path)})
    assert (tmp_path / "theirs.gguf").read_bytes() == data


def test_our_puller_takes_a_model_from_its_seeder_by_its_manifest(tmp_path: Path) -> None:
    _, data = make_model(tmp_path / "made", 8)
    source, to, port = tmp_path / "source", tmp_path / "to", free_port()
    source.mkdir()
    to.mkdir()
    shutil.copy(tmp_path / "made" / "tiny.gguf", source)
    environ = {**os.environ, "HOME": str(tmp_path)}
    subprocess.run([PROGRAM, "manifest", "create", source / "tiny.gguf", "--piece-size", "1", "--no-inspect"],
                   check=True, timeout=60, capture_output=True, env=environ)
    manifest = load_manifest(source / "tiny.gguf.tightwad.manifest")
    seeder = subprocess.Popen([PROGRAM, "swarm", "seed", source / "tiny.gguf", "--port", str(port), "--host",
                               "127.0.0.1"], env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        url, until = f"http://127.0.0.1:{port}", time.monotonic() + 60
        while time.monotonic() < until:
            try:
                urllib.request.urlopen(url + "/health", timeout=2).close()
                break
            except OSError:
                time.sleep(0.1)
        Puller(manifest, to, [url]).run()
        assert (to / "tiny.gguf").read_bytes() == data
    finally:
        seeder.terminate()
        seeder.wait(20)
