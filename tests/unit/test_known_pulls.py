"""The register of pulls: hostile and stale entries go, and no process is taken for another one."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from swarm.parts import make_model

from app.known_pulls import KnownPulls
from fleet.node import Store


def half_done(tmp_path: Path):
    manifest, _ = make_model(tmp_path / "source", 4)
    to = tmp_path / "to"
    to.mkdir()
    store = Store(manifest, to)
    store.open()
    store.close()
    return manifest, to


def test_a_pull_is_known_while_it_runs_and_after_it_until_the_model_is_whole(tmp_path: Path) -> None:
    manifest, to = half_done(tmp_path)
    known = KnownPulls(tmp_path / "register")
    with known.entered(manifest, to, "http://127.0.0.1:1"):
        (pull,) = known.all()
        assert pull.running and pull.pid == os.getpid() and (pull.have, pull.pieces) == (0, 4)
    (pull,) = known.all()
    assert pull.pid == os.getpid()         # this very process still runs
    (to / "tiny.gguf.part").unlink()
    assert known.all() == [] and not list((tmp_path / "register").iterdir())


def test_a_process_that_has_the_number_of_a_dead_pull_is_not_taken_for_it(tmp_path: Path) -> None:
    manifest, to = half_done(tmp_path)
    known = KnownPulls(tmp_path / "register")
    with known.entered(manifest, to, ""):
        (path,) = (tmp_path / "register").iterdir()
        path.write_text(json.dumps({**json.loads(path.read_text()), "started": "1"}))
        (pull,) = known.all()
        assert not pull.running and pull.pid == 0


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\xff", b"[" * 9_000, b'{"folder": 1, "name": "../x"}',
                                     b'{"folder": "/", "name": "\\u0000", "manifest": "", "pid": "x"}'])
def test_an_entry_that_is_none_goes(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.json").write_bytes(content)
    assert KnownPulls(tmp_path).all() == []
    assert not (tmp_path / "x.json").exists()


def test_a_register_that_cannot_be_written_stops_no_pull(tmp_path: Path) -> None:
    manifest, to = half_done(tmp_path)
    (tmp_path / "register").write_bytes(b"a file")
    with KnownPulls(tmp_path / "register").entered(manifest, to, ""):
        assert KnownPulls(tmp_path / "register").all() == []
