"""`~/` in fleet.yaml is the home of whoever signs in on the head: llama-server itself knows nothing of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.config.schema import FleetConfig, HeadConfig
from fleet.events import BringUp
from fleet.model import DeploymentState, OperationState, ServiceKind

from .here import (
    MODEL,
    NODE,
    bring_up,
    do,
    nothing_left,
    running,
    sentence,
    service,
    tear_down,
    until,
    with_model,
    with_node,
)

pytestmark = [pytest.mark.engine, pytest.mark.timeout(120)]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "a home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    return folder


def at_home(config: FleetConfig) -> FleetConfig:
    port = config.nodes[NODE].head.port
    config = with_node(config, head=HeadConfig(port=port, threads=1, api_key_file="~/keys"))
    return with_model(config, MODEL, file="~/models/a model.gguf")


async def test_a_model_and_a_key_file_at_home_are_found_by_the_head(config: FleetConfig, state: Path, model: Path,
                                                                    home: Path) -> None:
    (home / "models").mkdir()
    (home / "models" / "a model.gguf").symlink_to(model)
    (home / "keys").write_text("s3cret\n", encoding="utf-8")
    config = at_home(config)
    async with running(config) as engine:
        await bring_up(engine)
        serving = await until(engine, lambda snapshot: snapshot.deployment.state is DeploymentState.SERVING)
        assert serving.deployment.model_path == f"{home}/models/a model.gguf"
        argv = service(engine.latest, ServiceKind.COORDINATOR).record.argv
        assert f"{home}/keys" in argv
        assert (await bring_up(engine)).steps == ()      # the same is wanted: it serves already
        await tear_down(engine)
    nothing_left(state, config)


async def test_what_is_not_at_home_is_refused_by_its_whole_path(config: FleetConfig, home: Path) -> None:
    async with running(at_home(config)) as engine:
        operation = await do(engine, BringUp(""))
        assert operation.state is OperationState.REFUSED
        assert f"{home}/models/a model.gguf is not on {NODE}" in sentence(operation)
