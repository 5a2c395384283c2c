"""An answer of our own in the place of a connection: what its reader and its writer see of each other."""

from __future__ import annotations

import asyncio

import pytest

from fleet.proxy.wire import BUFFERED, Head, WireError
from fleet.speculation.spoken import Spoken

PART = b"x" * (BUFFERED // 4)


async def test_nothing_more_is_made_while_the_client_does_not_keep_up() -> None:
    made = 0
    full = asyncio.Event()

    async def work(spoken: Spoken) -> None:
        nonlocal made
        spoken.begin(Head(200))
        while made < 40:
            made += 1
            if made == 5:
                full.set()
            await spoken.write(PART)

    async with asyncio.TaskGroup() as group:
        spoken = Spoken(work, group.create_task)
        await spoken.send("POST", b"", b"")
        assert (await spoken.head()).status == 200
        await full.wait()
        assert spoken.waits_for_client and made == 5
        size = 0
        while part := await spoken.part():
            size += len(part)
    assert made == 40 and size == 40 * len(PART) and spoken.ended


@pytest.mark.parametrize("error", [WireError("stalled", "Nothing came."), None])
async def test_an_answer_that_is_cut_ends_for_both(error: WireError | None) -> None:
    ended = asyncio.Event()

    async def work(spoken: Spoken) -> None:
        spoken.begin(Head(200))
        await spoken.write(b"one")
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with asyncio.TaskGroup() as group:
        spoken = Spoken(work, group.create_task)
        await spoken.send("POST", b"", b"")
        assert await spoken.part() == b"one"
        spoken.abort(error)
        with pytest.raises(WireError) as caught:
            await spoken.part()
        assert caught.value is error or (error is None and caught.value.code == "dropped")
        await ended.wait()
    assert spoken.closed and not spoken.reusable


async def test_one_that_is_cut_before_it_begins_never_works() -> None:
    worked = False

    async def work(spoken: Spoken) -> None:
        nonlocal worked
        worked = True

    async with asyncio.TaskGroup() as group:
        spoken = Spoken(work, group.create_task)
        await spoken.send("POST", b"", b"")
        spoken.abort()
    assert not worked


@pytest.mark.parametrize("failure", [WireError("dropped", "It is gone."), ZeroDivisionError("ours")])
async def test_what_fails_ends_this_answer_and_nothing_else(failure: Exception) -> None:
    async def work(spoken: Spoken) -> None:
        spoken.begin(Head(200))
        async with asyncio.TaskGroup():
            raise failure

    async with asyncio.TaskGroup() as group:
        spoken = Spoken(work, group.create_task)
        await spoken.send("POST", b"", b"")
        with pytest.raises(WireError) as caught:
            await spoken.part()
    assert caught.value.code == "dropped"
