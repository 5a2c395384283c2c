"""What of a model's experts is in memory: told truly, told as unknown, and cheaply."""

from __future__ import annotations

import asyncio
import base64
import json
import mmap
import os
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_moe import SMALL, make

from fleet.experts.layout import Layout as Where
from fleet.experts.layout import layout_of
from fleet.experts.residency import Presence, ResidencyReader
from fleet.models.gguf import read_header
from fleet.node.residency import CALLS, WHOLE, Layout, Pages, Watch, every_for
from fleet.node.trouble import StoreError
from fleet.swarm.zipapp import build

EXPERTS = SMALL.experts


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model of which nothing is in memory, on a real disk."""
    path = make(tmp_path / "model.gguf", SMALL)
    drop(path)
    return path


def drop(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(handle)


def where(path: Path) -> Where:
    with path.open("rb") as file:
        async def read(offset: int, length: int) -> bytes:
            return os.pread(file.fileno(), length, offset)
        return layout_of(asyncio.run(read_header(read, path.stat().st_size)))


def touch(path: Path, found: Where, row: int, experts: range) -> None:
    """Read some experts, and nothing around them."""
    handle = os.open(path, os.O_RDONLY)
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_RANDOM)
    for expert in experts:
        for piece in found.experts.layers[row].ranges(expert):
            os.pread(handle, piece.length, piece.offset)
    os.close(handle)


def sampled(watch: Watch, reader: ResidencyReader):
    record = {"event": "residency", "at": 1.0, "every": 2.0, "cpu_ms": 3.0, **watch.sample()}
    return reader.feed(json.dumps(record))


@pytest.mark.parametrize("cachestat", [True, False])
def test_experts_that_were_read_are_told(model: Path, cachestat: bool):
    found = where(model)
    pages = Pages([str(model)], cachestat=cachestat)
    if cachestat and pages.method != "cachestat":
        pytest.skip("this kernel has no cachestat")
    assert pages.method == ("cachestat" if cachestat else "mincore")
    watch, reader = Watch(Layout(found.to_json(), [model.stat().st_size]), pages), ResidencyReader()
    first = sampled(watch, reader)
    assert first.layers == 4 and first.count == EXPERTS
    drop(model)
    touch(model, found, 2, range(3, 6))
    second = sampled(watch, reader)
    whole = {(row, expert) for row in range(4) for expert in range(EXPERTS) if second.part(row, expert) == 1}
    assert {(2, 3), (2, 4), (2, 5)} <= whole and len(whole) <= 5         # a neighbour shares its last page
    assert second.presence(2, 4) is Presence.RESIDENT and second.experts < 0.2
    drop(model)
    third = sampled(watch, reader)
    assert third.presence(2, 4) in (Presence.EVICTED, Presence.RECENT) and third.part(2, 4) == 0
    pages.close()


def test_every_fifteenth_line_stands_by_itself(model: Path):
    watch = Watch(Layout(where(model).to_json(), [model.stat().st_size]), Pages([str(model)]))
    lines = [json.dumps({"event": "residency", "at": n, **watch.sample()}) for n in range(32)]
    assert [n for n, line in enumerate(lines) if not json.loads(line)["delta"]] == [0, 15, 30]
    late = ResidencyReader()
    read = [late.feed(line) for line in lines[5:]]
    assert read[:10] == [None] * 10 and all(read[10:])


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to run as somebody else")
def test_somebody_else_s_file_is_unknown_and_not_all_there(model: Path):
    folder = Path("/tmp") / f"quarterdeck-residency-{os.getpid()}"      # nobody can enter pytest's own
    folder.mkdir()
    try:
        folder.chmod(0o755)
        there = Path(shutil.copy(model, folder / "model.gguf"))
        there.chmod(0o644)
        (folder / "node.pyz").write_bytes(build())
        (folder / "layout.json").write_text(where(there).to_json())
        python = shutil.which("python3", path="/usr/bin:/usr/local/bin")
        if python is None:
            pytest.skip("there is no python3 that everybody may run")
        done = subprocess.run([python, str(folder / "node.pyz"), "residency", str(there), "--layout",
                               f"@{folder}/layout.json", "--count", "1"], user=65534, group=65534, extra_groups=[],
                              cwd="/", env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, check=False)
        sample = ResidencyReader().feed(done.stdout)
        assert sample is not None, done.stderr
        assert sample.method == "" and "belongs to somebody else" in sample.unknown
        assert sample.experts is None and sample.cells == b""
    finally:
        shutil.rmtree(folder)


def test_the_node_s_command_tells_a_server_s_figures(model: Path, tmp_path: Path):
    (tmp_path / "node.pyz").write_bytes(build())
    done = subprocess.run([sys.executable, str(tmp_path / "node.pyz"), "residency", str(model), "--layout",
                           where(model).to_json(), "--pid", str(os.getpid()), "--count", "2", "--every", "0.05"],
                          capture_output=True, text=True, check=True)
    lines, reader = done.stdout.splitlines(), ResidencyReader()
    samples = [reader.feed(line) for line in lines]
    assert len(samples) == 2 and all(samples) and max(map(len, lines)) < 2048
    assert samples[0].process["cpu_seconds"] > 0 and samples[0].process["rssanon"] > 1 << 20
    assert "used" in samples[0].group or not samples[0].group
    assert all(sample.every >= 0.05 and sample.cost > 0 for sample in samples)


def test_stdin_that_ends_ends_it(model: Path):
    process = subprocess.Popen([sys.executable, "-m", "fleet.node", "residency", str(model), "--layout",
                                where(model).to_json(), "--until-eof"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline()
    process.stdin.close()
    assert process.wait(20) == 0
    process.stdout.close()


def test_the_pause_grows_with_the_cost():
    assert every_for(2.0, 0.02) == 2.0 and every_for(2.0, 0.06) == pytest.approx(3.0)


def test_large_models_are_asked_about_in_the_middle_and_in_turns(tmp_path: Path):
    """48 layers of 256 experts in 64 GB: one matrix of an expert, part of the experts a sample."""
    path = tmp_path / "sparse"
    each, experts, layers = 1_750_000, 256, 48
    with path.open("wb") as file:
        file.truncate(3 * each * experts * layers)
    told = {"version": 1, "files": 1, "experts": experts, "used": 8, "shared": [[0, 0, 4096]],
            "layers": [[n, [[0, (3 * n + part) * each * experts, each] for part in range(3)]] for n in range(layers)]}
    layout = Layout(json.dumps(told), [path.stat().st_size])
    assert layout.bytes > WHOLE
    watch = Watch(layout, Pages([str(path)]))
    assert len(watch._plan) == -(-layers * experts // CALLS) and all(len(turn) <= CALLS for turn in watch._plan)
    assert all(length == 24 * mmap.PAGESIZE for turn in watch._plan for *_, length in turn)
    reader = ResidencyReader()
    sample = [sampled(watch, reader) for _ in range(3)][-1]
    assert sample.count == experts and set(sample.cells) == {0} and sample.experts == 0


@pytest.mark.parametrize("change", [
    {"layers": [[0, [[0, 0, 1 << 40]]]]}, {"layers": [[0, [[3, 0, 10]]]]}, {"layers": [[0, [[0, -5, 10]]]]},
    {"layers": []}, {"layers": "x"}, {"experts": "many"}, {"shared": [[0, 0, 1 << 50]]}, {"shared": 3},
])
def test_a_layout_that_does_not_fit_is_refused(change: dict):
    told = {"experts": 2, "shared": [], "layers": [[0, [[0, 0, 10]]]], **change}
    with pytest.raises(StoreError):
        Layout(json.dumps(told), [100])


def test_no_line_breaks_the_reader():
    reader = ResidencyReader()
    good = base64.b64encode(zlib.compress(bytes([0, 1, 2, 15]))).decode()
    bomb = base64.b64encode(zlib.compress(bytes(50 << 20))).decode()
    line = {"event": "residency", "method": "mincore", "layers": 2, "cells": good, "experts": 7,
            "group": {"limit": None}}
    sample = reader.feed(json.dumps(line))
    assert [sample.presence(n // 2, n % 2) for n in range(4)] == [
        Presence.NEVER, Presence.EVICTED, Presence.RECENT, Presence.RESIDENT]
    assert sample.experts == 1.0 and sample.group == {}
    for change in ({"cells": "%"}, {"cells": bomb[:1000]}, {"layers": 3}, {"layers": 0}, {"cells": 5}, {"event": "x"},
                   {"delta": True, "cells": base64.b64encode(zlib.compress(b"\1")).decode()}):
        assert reader.feed(json.dumps({**line, **change})) is None


@given(st.text(max_size=200))
def test_no_text_breaks_the_reader(text: str):
    ResidencyReader().feed(text)
    ResidencyReader().feed('{"event": "residency", "method": "mincore", "cells": ' + json.dumps(text) + "}")
