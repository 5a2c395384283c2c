"""A target and drafters that run for as long as a file of tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.speculation import tiny_model
from tests.unit.speculation.engines import Engine, engine


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def target_model(folder: Path) -> Path:
    return tiny_model.write(folder / "target.gguf")


@pytest.fixture(scope="module")
def draft_model(folder: Path) -> Path:
    """It agrees on two tokens of three."""
    return tiny_model.write(folder / "draft.gguf", drift=0.08)


@pytest.fixture(scope="module")
def target(target_model: Path) -> Iterator[Engine]:
    with engine(target_model) as running:
        yield running


@pytest.fixture(scope="module")
def drafter(draft_model: Path) -> Iterator[Engine]:
    with engine(draft_model) as running:
        yield running
