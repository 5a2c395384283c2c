"""A header over a real sshd: a model of 40 GB is known from a few megabytes."""

from __future__ import annotations

import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from fleet.models.reader import Headers
from fleet.nodes.questions import nobody
from fleet.nodes.ssh import SshTransport

sys.path.append(str(Path(__file__).resolve().parents[1] / "unit"))
from made_gguf import large

MB = 1_000_000


class Counted(SshTransport):
    """Counts the bytes of files that it is given."""

    moved = 0

    async def read_file(self, path: str, offset: int, length: int, *, timeout: float = 10.0) -> bytes:
        data = await super().read_file(path, offset, length, timeout=timeout)
        self.moved += len(data)
        return data


@pytest.mark.parametrize("trait", ["plain", "busybox", "csh"])
async def test_a_model_of_40_gb_is_known_from_its_header(lab, trait: str):
    made = large()
    path = lab.put_model("sparse.gguf", made.write)
    async with AsyncExitStack() as stack:
        transport = Counted(lab.target(lab.one(trait)), ask=nobody, accept_new=False)
        stack.push_async_callback(transport.close)
        await transport.connect()
        header = await Headers().model_of(transport, path)
    assert header.file_size > 40_000 * MB and len(header.tensors) == 963 and header.n_vocab == 262_144
    assert transport.moved < len(made.head()) + MB < 32 * MB
