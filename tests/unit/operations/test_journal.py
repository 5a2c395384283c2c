"""A cockpit that is killed in the middle of a swap, and the next one that goes on, goes back, or leaves it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import sys
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from fleet.config.schema import RecoverPolicy
from fleet.events import BringUp, StopService, TearDown
from fleet.model import Deployment, DeploymentState, Operation, OperationState, QuestionKind, StepRecord, StepState
from fleet.operations.journal import Journal
from fleet.operations.lease import owner

from .here import PATIENCE, free_port, running, tear_down, until
from .swap_process import config_of

SCRIPT = Path(__file__).with_name("swap_process.py")
STEPS = (StepRecord("Reserve here", state=StepState.DONE), StepRecord("Load b", state=StepState.RUNNING))
RUNNING = Operation(3, "swap", "Swap a: bring up b", OperationState.RUNNING, STEPS)
SERVES = Deployment(DeploymentState.SERVING, model="a")


def died(folder: Path) -> None:
    """Make what is written down belong to a process that is no more."""
    for path in folder.glob("*.json"):
        path.write_text(path.read_text().replace(owner(), f"{socket.gethostname()}:{2**22 + 5}:1"))


def test_what_was_under_way_can_be_gone_on_with_or_back(tmp_path: Path):
    journal = Journal(tmp_path, "home")
    journal.keep(RUNNING, BringUp("b", without=("bolt",)), SERVES, 100.0)
    assert [path.stat().st_mode & 0o777 for path in tmp_path.iterdir()] == [0o600]
    assert journal.left_behind() == ()                    # we live
    died(tmp_path)
    assert Journal(tmp_path, "another").left_behind() == ()
    (left,) = Journal(tmp_path, "home").left_behind()
    assert (left.title, left.step, left.command, left.before) == (
        "Swap a: bring up b", "Load b", BringUp("b", without=("bolt",)), "a")
    assert left.back == BringUp("a", spare=True)
    journal.forget(left)
    assert Journal(tmp_path, "home").left_behind() == ()


def test_from_nothing_back_is_down_and_a_stop_has_no_way_back(tmp_path: Path):
    journal = Journal(tmp_path, "home")
    journal.keep(RUNNING, BringUp("b"), Deployment(), 100.0)
    journal.keep(replace(RUNNING, id=4), StopService("here", "worker-1"), Deployment(), 101.0)
    died(tmp_path)
    stop, up = Journal(tmp_path, "home").left_behind()
    assert (stop.back, up.back) == (None, TearDown())


def test_what_is_over_leaves_nothing_and_only_news_is_written(tmp_path: Path):
    journal = Journal(tmp_path, "home")
    journal.keep(RUNNING, BringUp("b"), SERVES, 100.0)
    (path,) = tmp_path.iterdir()
    path.write_text("mine")
    journal.keep(replace(RUNNING, title="x"), BringUp("b"), SERVES, 101.0)      # no step has moved
    assert path.read_text() == "mine"
    journal.over(3)
    journal.over(3)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"owner": 5}', "[" * 10_000, json.dumps(
    {"owner": "h:1:1", "title": "t", "step": "", "at": 1, "before": "", "command": {"kind": "EndProcess", "pid": 1}}),
    json.dumps({"owner": "h:1:1", "title": "t", "step": "", "at": 1, "before": "",
                "command": {"kind": "BringUp", "nonsense": 1}})])
def test_a_file_that_makes_no_sense_is_passed_over(tmp_path: Path, text: str):
    (tmp_path / "home-1-1.json").write_text(text.replace("h:1:1", f"{socket.gethostname()}:{2**22 + 5}:1"))
    assert Journal(tmp_path, "home").left_behind() == ()


def test_a_folder_that_cannot_be_written_hinders_nothing(tmp_path: Path):
    (tmp_path / "file").write_text("")
    journal = Journal(tmp_path / "file" / "journal", "home")
    journal.keep(RUNNING, BringUp("b"), SERVES, 1.0)
    journal.over(3)
    assert journal.left_behind() == ()


# All of them by hand (QUARTERDECK_STEPS=all), those that differ most else.
EVERY_STEP = ("Reserve", "Read", "Hold new", "Let running", "Stop head", "Ask the worker", "Start head", "Load",
              "Verify", "Ask for one", "See that", "Let requests", "Release")
STEPS = EVERY_STEP if os.environ.get("QUARTERDECK_STEPS") == "all" else ("Hold new", "Stop head", "Start head",
                                                                         "Let requests")


async def killed_at(said: dict, folder: Path, title: str) -> None:
    """A cockpit that stood still in a step of its swap, and was killed there."""
    settings = folder / "said.json"
    await asyncio.to_thread(settings.write_text, json.dumps(said))
    process = await asyncio.create_subprocess_exec(sys.executable, str(SCRIPT), str(settings), title,
                                                   stdout=asyncio.subprocess.PIPE)
    try:
        async with asyncio.timeout(PATIENCE):
            assert await process.stdout.readline() == b"HERE\n"
    finally:
        process.kill()
        await process.wait()


@pytest.fixture
def said(state: Path, model: Path, tmp_path: Path) -> dict:
    other = tmp_path / "other.gguf"
    shutil.copyfile(model, other)
    return {"state": str(state), "model": str(model), "other": str(other), "head": free_port(),
            "workers": [free_port(), free_port()], "listen": f"127.0.0.1:{free_port()}",
            "journal": str(tmp_path / "journal")}


@pytest.mark.engine
@pytest.mark.timeout(240)
@pytest.mark.parametrize("title", STEPS)
async def test_a_cockpit_that_is_killed_in_a_swap_is_gone_on_with_by_the_next(said: dict, tmp_path: Path, title: str):
    await killed_at(said, tmp_path, title)
    config = config_of(said)
    journal = Journal(Path(said["journal"]), config.fleet)
    async with running(config, tend=True, recover=True, journal=journal) as engine, httpx.AsyncClient(
            base_url=f"http://{said['listen']}", timeout=60) as http:
        await until(engine, lambda s: s.deployment.state is DeploymentState.SERVING and s.deployment.model == "other"
                    and s.operations and s.operations[-1].state is OperationState.DONE)
        answer = await http.post("/v1/completions", json={"model": "other", "prompt": "x", "max_tokens": 1})
        assert answer.status_code == 200, answer.text
        assert len([s for s in engine.latest.nodes["here"].services if s.record.kind == "coordinator"
                    and s.record.alive]) == 1
        assert journal.left_behind() == ()
        await tear_down(engine)


@pytest.mark.engine
@pytest.mark.timeout(240)
async def test_a_person_is_asked_and_can_go_back(said: dict, tmp_path: Path):
    await killed_at(said, tmp_path, "Load")
    config = replace(config_of(said), recover=RecoverPolicy.ASK)
    journal = Journal(Path(said["journal"]), config.fleet)
    async with running(config, tend=True, recover=True, journal=journal, interactive=True) as engine:
        asked = await until(engine, lambda s: s.questions)
        question = next(q for q in asked.questions if q.kind is QuestionKind.UNFINISHED)
        assert "Swap gemma" in question.text and question.detail == "gemma"
        engine.answer(question.id, "go back")
        await until(engine, lambda s: s.deployment.state is DeploymentState.SERVING and s.deployment.model == "gemma")
        await tear_down(engine)
