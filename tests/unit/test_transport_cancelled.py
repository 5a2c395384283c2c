"""A command on this machine that is cancelled at any moment leaves no pipe, no process and no file open."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import warnings

import psutil
import pytest

from fleet.nodes.local import LocalTransport

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="counts open files in /proc")


async def test_a_cancellation_at_any_moment_leaves_nothing_open() -> None:
    here = LocalTransport("here")
    await here.run(":")
    before, children = len(os.listdir("/proc/self/fd")), len(psutil.Process().children())
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", ResourceWarning)
        for turns in range(60):
            task = asyncio.ensure_future(here.run("sleep 5"))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await asyncio.sleep(0.1)
        gc.collect()
    assert [str(each.message) for each in said if each.category is ResourceWarning] == []
    assert len(os.listdir("/proc/self/fd")) == before
    assert len(psutil.Process().children()) == children
