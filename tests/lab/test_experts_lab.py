"""What experts need of a node, over a real sshd: its disk measured, what is in memory sampled, a trace asked for."""

from __future__ import annotations

import sys
from contextlib import AsyncExitStack, aclosing
from pathlib import Path

import pytest

from fleet.errors import FleetError, OperationFailed
from fleet.experts.disk import random_read_rate
from fleet.experts.layout import layout_of
from fleet.experts.recording import asked, record
from fleet.experts.shim import ASKED
from fleet.experts.watching import residencies
from fleet.models.reader import Headers
from fleet.nodes.questions import nobody
from fleet.nodes.ssh import SshTransport
from fleet.swarm.push import look

sys.path.append(str(Path(__file__).resolve().parents[1] / "unit" / "experts"))
from made_moe import SMALL, make


@pytest.mark.parametrize("trait", ["plain", "busybox", "csh"])
async def test_a_node_tells_what_experts_need(lab, trait: str):
    path = lab.put_model("mixture.gguf", lambda file: make(file, SMALL))
    name = lab.one(trait)
    async with AsyncExitStack() as stack:
        transport = SshTransport(lab.target(name), ask=nobody, accept_new=False)
        stack.push_async_callback(transport.close)
        await transport.connect()
        layout = layout_of(await Headers().model_of(transport, path))
        assert layout.experts.used == 4
        piece = layout.experts.layers[0].tensors[0].first.length
        if (await look(transport, "", (), ())).python:
            assert await random_read_rate(transport, path, piece) > 0
            async with aclosing(residencies(transport, "", (path,), layout, pid=1, every=0.1)) as samples:
                seen = [sample async for sample, _ in _first(samples, 3)]
            assert all((sample.experts is None) == bool(sample.unknown) for sample in seen)
        else:
            with pytest.raises(OperationFailed, match="no python3"):
                await random_read_rate(transport, path, piece)
            with pytest.raises(OperationFailed, match="has no python3"):
                await anext(residencies(transport, "", (path,), layout, pid=1))
        made = await transport.run('d=$(mktemp -d) && mkdir -p "$d/services/head" && printf "%s\\n" "$d"')
        folder = made.text.strip()
        there = f"{folder}/services/head"
        async with asked(transport, there):
            assert (await transport.run('[ -f "$1/$2" ] && echo yes', (there, ASKED))).text.strip() == "yes"
        assert (await transport.run('[ -e "$1/$2" ] || echo gone', (there, ASKED))).text.strip() == "gone"
        with pytest.raises(FleetError):
            await record(transport, folder, "head", 10)             # it counts nothing
        with pytest.raises(OperationFailed, match="cannot be asked for"):
            async with asked(transport, f"{folder}/none"):
                pass


async def _first(samples, count: int):
    number = 0
    async for sample in samples:
        number += 1
        yield sample, number
        if number == count:
            return
