"""Headers through a transport: few bytes, each file once, every part of a model."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from made_gguf import Maker, large, llama, number

from fleet.errors import FleetError, ModelFileError
from fleet.models.local import header_of_file
from fleet.models.reader import FileKey, Headers
from fleet.nodes.local import LocalTransport

MIB = 1024 * 1024


class Counting(LocalTransport):
    """Counts what it reads."""

    def __init__(self) -> None:
        super().__init__("here")
        self.reads: list[tuple[str, int]] = []

    async def read_file(self, path: str, offset: int, length: int, *, timeout: float = 10.0) -> bytes:
        data = await super().read_file(path, offset, length, timeout=timeout)
        self.reads.append((path, len(data)))
        return data

    @property
    def moved(self) -> int:
        return sum(count for _, count in self.reads)


@pytest.fixture
def node() -> Counting:
    return Counting()


async def test_a_file_of_40_gb_is_known_from_less_than_its_header(tmp_path: Path, node: Counting):
    made = large()
    path = made.write(tmp_path / "large.gguf")
    assert path.stat().st_size > 40e9
    header = await Headers().model_of(node, str(path))
    assert len(header.tensors) == 963 and header.n_layers == 80 and header.n_vocab == 262_144
    assert header.missing_bytes == 0 and header.vocabulary
    assert node.moved < min(len(made.head()) + MIB, 32 * MIB)
    assert len(node.reads) < 20
    assert header_of_file(str(path)).fingerprint == header.fingerprint


async def test_a_file_is_read_once_until_it_changes(tmp_path: Path, node: Counting):
    path = llama().write(tmp_path / "a.gguf")
    os.utime(path, (1000, 1000))
    headers = Headers()
    first = await headers.model_of(node, str(path))
    assert await headers.model_of(node, str(path)) is first and len(node.reads) == 1
    key = FileKey("here", str(path), path.stat().st_size, 1000)
    assert headers.known(key) is first and headers.fingerprints() == {key: first.fingerprint}
    os.utime(path, (2000, 2000))
    assert (await headers.model_of(node, str(path))).fingerprint == first.fingerprint and len(node.reads) == 2


async def test_who_asks_meanwhile_gets_the_same_answer(tmp_path: Path, node: Counting):
    path, headers = llama().write(tmp_path / "a.gguf"), Headers()
    size, mtime = path.stat().st_size, int(path.stat().st_mtime)
    found = await asyncio.gather(*(headers.header_of(node, str(path), size, mtime) for _ in range(5)))
    assert len(node.reads) == 1 and len(set(map(id, found))) == 1


async def test_a_file_that_cannot_be_read_is_tried_again(tmp_path: Path, node: Counting):
    path, headers = tmp_path / "a.gguf", Headers()
    path.write_bytes(b"")
    with pytest.raises(ModelFileError, match="is empty"):
        await headers.model_of(node, str(path))
    llama().write(path)
    assert (await headers.model_of(node, str(path))).n_layers == 2


async def test_only_the_newest_headers_are_kept(tmp_path: Path, node: Counting):
    headers = Headers(kept=2)
    for name in "abc":
        await headers.model_of(node, str(llama().write(tmp_path / f"{name}.gguf")))
    assert sorted(Path(key.path).name for key in headers.fingerprints()) == ["b.gguf", "c.gguf"]


async def test_without_a_time_of_change_nothing_is_remembered(tmp_path: Path, node: Counting):
    path, headers = llama().write(tmp_path / "a.gguf"), Headers()
    await headers.header_of(node, str(path), path.stat().st_size, 0)
    assert headers.fingerprints() == {}


def parts(folder: Path, count: int = 3) -> list[Path]:
    """A model in several files."""
    paths = []
    for index in range(count):
        made = llama(0).entries if index == 0 else []
        made = Maker(*made, number("split.no", index), number("split.count", count))
        made.tensor(f"blk.{index}.attn_q.weight", (64, 64))
        paths.append(made.write(folder / f"demo-{index + 1:05d}-of-{count:05d}.gguf"))
    return paths


async def test_the_parts_of_a_model_are_read_together(tmp_path: Path, node: Counting):
    paths = parts(tmp_path)
    header = await Headers().model_of(node, str(paths[0]))
    assert [(tensor.name, tensor.file) for tensor in header.tensors] == [
        (f"blk.{n}.attn_q.weight", n) for n in range(3)]
    assert header.file_size == sum(path.stat().st_size for path in paths)
    assert header_of_file(str(paths[0])).fingerprint == header.fingerprint


async def test_a_part_that_is_missing_is_named(tmp_path: Path, node: Counting):
    paths = parts(tmp_path)
    paths[1].unlink()
    with pytest.raises(ModelFileError, match=r"00002-of-00003\.gguf is not on here") as wrong:
        await Headers().model_of(node, str(paths[0]))
    assert wrong.value.code == "no-file" and wrong.value.remedy
    with pytest.raises(ModelFileError, match=r"There is no file .*00002-of-00003"):
        header_of_file(str(paths[0]))


async def test_a_later_part_is_not_taken_for_the_model(tmp_path: Path, node: Counting):
    with pytest.raises(ModelFileError, match="not named as the first"):
        await Headers().model_of(node, str(parts(tmp_path)[1]))


@pytest.mark.parametrize("kind", ["folder", "pipe", "nothing", "nul"])
def test_what_is_no_file_is_refused_and_does_not_hold_anybody(tmp_path: Path, kind: str):
    path = tmp_path / "x.gguf"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    with pytest.raises(ModelFileError) as wrong:
        header_of_file(f"{path}\0" if kind == "nul" else str(path))
    assert wrong.value.remedy


async def test_a_node_that_breaks_off_says_so_once(tmp_path: Path):
    class Broken(Counting):
        async def read_file(self, path: str, offset: int, length: int, *, timeout: float = 10.0) -> bytes:
            if offset:
                raise FleetError("the cable is out.", "Put it in.")
            return await super().read_file(path, offset, length, timeout=timeout)

    path = llama(tokens=[f"token{n}" for n in range(300_000)]).write(tmp_path / "a.gguf")
    with pytest.raises(FleetError, match="cable"):
        await Headers().model_of(Broken(), str(path))
