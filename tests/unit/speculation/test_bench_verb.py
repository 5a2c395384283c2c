"""`quarterdeck bench speculation` on real servers."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from app.cli import main as command
from app.exit_codes import ExitCode
from app.verbs.bench import lines_of
from fleet.config.schema import DraftConfig
from fleet.planning.draft_flags import draft_flags
from fleet.runtimes.binaries import Flags, bundled
from fleet.speculation.comparison import Measured, ways_of
from fleet.speculation.settings import DrafterSettings, SpeculationSettings
from tests.unit.speculation.engines import Engine, engine


@pytest.mark.engine
def test_every_way_is_measured_beside_the_target_alone(
        target: Engine, drafter: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "speculation", "--target", target.url, "--drafter", drafter.url, "--tokens", "16", "--json"]
    assert command(words) == ExitCode.OK
    said = json.loads(capsys.readouterr().out)
    ways = {one["way"]: one for one in said["ways"]}
    assert list(ways) == ["plain", "strided", "injection", "n-gram", "auto"]
    assert "--spec-type ngram-mod" in ways["injection"]["problem"]
    assert all(one["tokens"] == 64 and one["tokens_per_second"] > 0 for one in ways.values())
    assert ways["plain"]["over_plain"] == 1 and ways["strided"]["drafted"] > 0


def test_a_target_that_does_not_answer_is_said_in_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["bench", "speculation", "--target", "http://127.0.0.1:9"]) == ExitCode.FAILED
    said = capsys.readouterr()
    assert said.out == "" and "does not" in said.err and "Traceback" not in said.err


def test_a_missing_key_and_a_url_that_is_none_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["bench", "speculation", "--target", "http://127.0.0.1:9", "--key-env", "NO_SUCH_KEY"]
                   ) == ExitCode.USAGE
    assert command(["bench", "speculation", "--target", "ftp://x"]) == ExitCode.CONFIG
    assert "Traceback" not in capsys.readouterr().err


def test_the_table_says_what_each_way_is_worth_and_why_one_did_not_draft() -> None:
    lines = lines_of([Measured("plain", 100, 10.0), Measured("auto", 100, 5.0, 80, 60, "It was \x1b[2Jdifficult.")])
    assert "2.00x" in lines[2] and "75%" in lines[2] and "\x1b" not in lines[2]


def test_without_a_drafter_the_text_itself_is_what_is_drafted_from() -> None:
    assert list(ways_of(SpeculationSettings())) == ["n-gram"]
    assert list(ways_of(SpeculationSettings(drafters=(DrafterSettings("a", "http://x"),), ngram=False))) == [
        "strided", "injection", "auto"]


@pytest.mark.engine
def test_a_head_started_with_the_planned_flags_drafts_by_itself(target_model: Path, draft_model: Path) -> None:
    folder = bundled()
    assert folder is not None
    told = subprocess.run([f"{folder}/llama-server", "--help"], capture_output=True, text=True, check=False,
                          env={**os.environ, "LD_LIBRARY_PATH": folder}).stdout
    flags = draft_flags(Flags.parse(told), DraftConfig(str(draft_model), length=3), {}, head="here")
    with engine(target_model, "-np", "1", "-t", "1", "--metrics", *flags) as head:
        timings = head.complete([5, 6, 7, 8], 24)["timings"]
        assert 0 < timings["draft_n_accepted"] <= timings["draft_n"]
