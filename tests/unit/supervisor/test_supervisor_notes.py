# ruff: noqa: ASYNC240 - files and processes are what these tests are about
"""Logs, facts, secrets and leases."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

import pytest

from fleet.errors import ServiceError
from fleet.nodes.supervise import script
from fleet.nodes.supervisor import Supervisor

from .conftest import Spec, processes_in, wait_for


async def test_a_log_is_read_on_from_where_one_stopped(node: Supervisor, shell: Spec, tmp_path: Path) -> None:
    go = tmp_path / "go"
    record = await node.start(shell(
        f"printf 'one\\ntwo\\n'; while [ ! -e {go} ]; do sleep 0.05; done; echo three; sleep 60"))
    first = await node.read_log("worker-1", 0)
    assert (first.text, first.offset, first.size, first.rotated) == ("one\ntwo\n", 8, 8, False)
    assert (await node.read_log("worker-1", first.offset)).text == ""
    go.touch()
    assert wait_for(lambda: (Path(record.folder) / "log").stat().st_size > 8)
    assert (await node.read_log("worker-1", first.offset)).text == "three\n"
    assert (await node.read_log("worker-1", 0, 4)).text == "one\n"
    assert (await node.read_log("worker-1", None, 7)).text == "three\n", "the end of it begins with a whole line"


async def test_a_character_is_never_cut_in_two(node: Supervisor, shell: Spec, state: Path) -> None:
    await node.start(shell("exec sleep 60"))
    (state / "services/worker-1/log").write_text("aé漢" * 5)
    text, offset = "", 0
    while chunk := (await node.read_log("worker-1", offset, 4)).text:
        text, offset = text + chunk, offset + len(chunk.encode())
    assert text == "aé漢" * 5


async def test_a_log_that_was_cut_is_read_from_its_new_beginning(node: Supervisor, shell: Spec, state: Path) -> None:
    await node.start(shell("exec sleep 60"))
    log = state / "services/worker-1/log"
    log.write_text("x" * 1000)
    at = (await node.read_log("worker-1")).offset
    log.write_text("new\n")
    chunk = await node.read_log("worker-1", at)
    assert (chunk.text, chunk.start, chunk.offset, chunk.rotated) == ("new\n", 0, 4, True)


async def test_a_log_stays_bounded_while_the_process_writes(node: Supervisor, shell: Spec) -> None:
    record = await node.start(shell(
        "i=0; while :; do i=$((i+1)); echo line $i of many that are written; sleep 0.001; done", log_limit=8192))
    log, older = Path(record.folder) / "log", Path(record.folder) / "log.1"
    assert wait_for(older.exists)
    assert older.stat().st_size == 4096
    assert wait_for(lambda: log.stat().st_size > 0), "it writes on"
    assert b"\0" not in log.read_bytes(), "where the log now begins, not where the writer once was"
    await node.stop("worker-1")


async def test_following_gives_the_last_lines_and_then_the_new_ones(
        node: Supervisor, shell: Spec, tmp_path: Path) -> None:
    record = await node.start(shell("echo one; echo two; echo three; exec sleep 60"))
    log = Path(record.folder) / "log"
    assert wait_for(lambda: log.read_text().endswith("three\n"))
    async with aclosing(node.follow_log("worker-1", tail=2)) as lines:
        assert [await anext(lines), await anext(lines)] == ["two", "three"]
        with log.open("a") as more:
            more.write("four\n")
        assert await anext(lines) == "four"
        log.write_text("cut\n")
        assert await anext(lines) == "cut"


async def test_a_line_without_an_end_is_shown_when_it_goes_quiet(
        node: Supervisor, shell: Spec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleet.nodes.logs.script", lambda name: script(name).replace("-ge 30 ]", "-ge 2 ]"))
    record = await node.start(shell("echo whole; printf 'loading ...'; exec sleep 60"))
    async with aclosing(node.follow_log("worker-1")) as lines:
        assert [await anext(lines), await anext(lines)] == ["whole", "loading ..."]
        with (Path(record.folder) / "log").open("a") as more:
            more.write(" done\n\nnext\n")
        assert [await anext(lines) for _ in range(3)] == [" done", "", "next"]


async def test_following_ends_when_the_service_is_forgotten(node: Supervisor, shell: Spec) -> None:
    await node.start(shell("echo one; exec sleep 60"))
    seen: list[str] = []

    async def follow() -> None:
        async for line in node.follow_log("worker-1"):
            seen.append(line)
            if line == "one":
                await node.stop("worker-1")
                await node.forget("worker-1")

    await asyncio.wait_for(follow(), 20)
    assert seen == ["one"]


async def test_the_log_of_nobody_is_a_sentence(node: Supervisor) -> None:
    with pytest.raises(ServiceError, match="There is no service worker-9 on here"):
        await node.read_log("worker-9")
    with pytest.raises(ServiceError, match="There is no service worker-9 on here"):
        await anext(node.follow_log("worker-9"))


async def test_facts_are_merged_and_a_none_takes_one_away(node: Supervisor, shell: Spec) -> None:
    await node.start(shell("exec sleep 60", facts={"model": "m", "old": 1}))
    await node.annotate("worker-1", {"real": {"bytes": 5, "who": "it's \"x\"\n"}, "old": None})
    assert (await node.records())[0].facts == {"model": "m", "real": {"bytes": 5, "who": "it's \"x\"\n"}}
    with pytest.raises(ServiceError, match="no service"):
        await node.annotate("worker-2", {})
    with pytest.raises(ServiceError, match="at most"):
        await node.annotate("worker-1", {"x": "y" * 70_000})


async def test_facts_of_several_writers_are_all_kept(node: Supervisor, shell: Spec) -> None:
    await node.start(shell("exec sleep 60"))
    await asyncio.gather(*(node.annotate("worker-1", {f"k{i}": i}) for i in range(3)))
    assert (await node.records())[0].facts == {"k0": 0, "k1": 1, "k2": 2}


async def test_a_secret_is_for_its_owner_alone(node: Supervisor) -> None:
    path = Path(await node.write_secret("api-key", b"se\0cret\n"))
    assert path.read_bytes() == b"se\0cret\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    await node.write_secret("api-key", b"new")
    assert path.read_bytes() == b"new"
    await node.remove_secret("api-key")
    await node.remove_secret("api-key")
    assert not path.exists()


async def test_a_lease_is_for_one_until_it_is_given_back(node: Supervisor) -> None:
    await node.lease("up", "desk pid 1")
    with pytest.raises(ServiceError, match="desk pid 1 is at work on here") as caught:
        await node.lease("up", "sofa pid 2")
    assert caught.value.code == "lease-held"
    assert (await node.lease("up", "desk pid 1")).taken_over == "", "renewed"
    await node.release("up", "sofa pid 2")
    with pytest.raises(ServiceError):
        await node.lease("up", "sofa pid 2")
    await node.release("up", "desk pid 1")
    await node.release("up", "desk pid 1")
    assert (await node.lease("up", "sofa pid 2")).taken_over == ""


async def test_a_lease_that_ran_out_is_taken_over_and_said_so(node: Supervisor, state: Path) -> None:
    await node.lease("up", "crashed pid 1")
    (state / "leases/up").write_text("1000 crashed pid 1\n")
    assert (await node.lease("up", "new pid 2")).taken_over == "crashed pid 1"


async def test_of_many_who_want_a_lease_one_gets_it(node: Supervisor, state: Path) -> None:
    for stale in (False, True):
        if stale:
            (state / "leases/up").write_text("garbage\n")
        done = await asyncio.gather(*(node.lease("up", f"who {stale} {i}") for i in range(6)), return_exceptions=True)
        assert len([each for each in done if not isinstance(each, BaseException)]) == 1
        assert all(isinstance(each, ServiceError) for each in done if isinstance(each, BaseException))
    assert [path.name for path in (state / "leases").iterdir()] == ["up"]


async def test_a_lock_of_a_shell_that_died_holds_nobody_up(node: Supervisor, shell: Spec, state: Path,
                                                           settled: Callable[[], None]) -> None:
    (state / "locks").mkdir(parents=True, mode=0o700)
    state.chmod(0o700)
    (state / "locks/service-worker-1").write_text("4194303 boot:1\n")
    assert (await node.start(shell("exec sleep 60"))).alive
    assert list((state / "locks").iterdir()) == []
    await node.stop("worker-1")
    assert not processes_in(state)
