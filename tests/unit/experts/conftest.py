"""What tests of experts share: a small mixture, the shim built once, and whether this machine can bound memory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from made_moe import SMALL, make

from fleet.experts.shim import NoShim, Shim, prepare
from fleet.nodes.local import LocalTransport
from fleet.runtimes.binaries import bundled


@pytest.fixture(scope="session")
def program() -> str:
    folder = bundled()
    if folder is None:
        pytest.skip("the engine extra is not installed")
    return f"{folder}/llama-server"


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("moe") / "small.gguf", SMALL)


@pytest.fixture
async def shim(tmp_path: Path, program: str) -> Shim:
    found = await prepare(LocalTransport("here"), str(tmp_path / "state"), program=program)
    if isinstance(found, NoShim):
        missing(found.what)
    return found


def missing(reason: str) -> None:
    """Skip, or fail where this machine is to have everything."""
    if os.environ.get("QUARTERDECK_LAB") == "required":
        pytest.fail(reason)
    pytest.skip(reason)
