"""`quarterdeck experts`: models, budgets and traces of this machine, and a head that runs."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import gguf
import numpy as np
import pytest
from made_trace import made, stored
from served_moe import Server, serving

from app.cli import main as command
from app.exit_codes import ExitCode
from app.verbs.experts_trace import as_lines
from fleet.config.schema import ExpertsConfig, FleetConfig, HeadConfig, ModelConfig, NodeConfig
from fleet.experts.bound import Bound, Way
from fleet.experts.counters import read_counters
from fleet.experts.shim import ASKED, STATS, TRACE, Shim, environment
from fleet.experts.trace import Routed, Trace
from fleet.experts.traces import trace_of_file
from fleet.model import Node, NodeReading, NodeState, ServiceKind, ServiceRecord, Snapshot
from fleet.models.local import header_of_file
from fleet.nodes.local import LocalTransport

LAYERS, EXPERTS, USED = 4, 16, 4            # of the small mixture


class Fleet:
    """An engine with one node, this machine."""

    version = 0

    def __init__(self, config: FleetConfig, *records: ServiceRecord, state: Path | None = None) -> None:
        self.config = config
        self.latest = Snapshot(nodes={"here": Node("here", state=NodeState.UP, local=True, reading=NodeReading(
            services=records, state_folder=str(state or "")))})

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def settled(self, timeout: float) -> bool:
        return True

    def transport(self, node: str) -> LocalTransport:
        return LocalTransport(node)

    async def model_header(self, node: str, path: str):
        return header_of_file(path)

    def head_client(self) -> None:
        return None


@pytest.fixture(autouse=True)
def away_from_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "QUARTERDECK_CONFIG"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "made.trace"
    path.write_bytes(stored(made(LAYERS, EXPERTS, USED, tokens=200)))
    return str(path)


def asked(capsys: pytest.CaptureFixture[str], *words: str) -> dict:
    assert command(["experts", *words, "--json"]) == ExitCode.OK
    return json.loads(capsys.readouterr().out)


# --- inspect and plan --------------------------------------------------------------------------------


def test_a_layout_is_shown_with_the_smallest_sensible_budget(small: Path, capsys):
    assert command(["experts", "inspect", str(small)]) == ExitCode.OK
    out = capsys.readouterr().out
    assert "small on this machine: 4 layers of 16 experts, 4 in use" in out and "Smallest sensible budget" in out
    said = asked(capsys, "inspect", str(small), "--context", "512")
    assert (said["experts"], said["used"], said["context"], len(said["layers"])) == (16, 4, 512, 4)
    needs = said["needs"]
    assert needs["sensible"] == needs["least"] + needs["token"]
    first = said["layers"][0]["tensors"][0]
    assert [first["file"], first["offset"], first["bytes"]] in said["layout"]["layers"][0][1]


def test_budgets_are_judged_and_what_is_refused_says_why(small: Path, capsys):
    needs = asked(capsys, "inspect", str(small))["needs"]
    assert command(["experts", "plan", str(small), "--budget", str(needs["least"] - 1)]) == ExitCode.REFUSED
    assert "not one would ever be hit" in capsys.readouterr().out
    said = asked(capsys, "plan", str(small), "--budget", str(needs["whole"]), "--budget", "1GiB")
    assert [one["part"] for one in said["budgets"]] == [1, 1] and not any(one["refused"] for one in said["budgets"])
    assert said["refusals"] == [] and any("--no-repack" in cure for cure in said["cures"])


def test_a_model_of_the_fleet_is_planned_as_it_is_configured(small: Path, capsys, monkeypatch: pytest.MonkeyPatch):
    node = NodeConfig("here", local=True, head=HeadConfig(env={"LLAMA_ARG_MLOCK": "1"}))
    models = {"mix": ModelConfig("mix", str(small), head="here", context=512, extra_args=("--no-mmap",),
                                 experts=ExpertsConfig(60 << 20))}
    fleet = Fleet(FleetConfig(nodes={"here": node}, models=models))
    monkeypatch.setattr("app.verbs.experts.engine_maker", lambda *a, **k: lambda: fleet)
    assert command(["experts", "plan", "mix", "--json"]) == ExitCode.REFUSED
    said = json.loads(capsys.readouterr().out)
    assert [one["budget"] for one in said["budgets"] if one["wanted"]] == [60 << 20]
    told = " ".join(problem["what"] for problem in said["refusals"])
    assert "--no-mmap in extra_args" in told and "LLAMA_ARG_MLOCK in env" in told


def test_a_name_cannot_move_the_cursor(small: Path, tmp_path: Path, trace: str, capsys):
    path = tmp_path / "a\x1b[2Jb.gguf"
    path.symlink_to(small)
    for words in (("inspect", str(path)), ("plan", str(path)), ("simulate", trace, "--model", str(path))):
        command(["experts", *words])
        out, err = capsys.readouterr()
        assert "\x1b" not in out + err and out


def test_a_dense_model_and_no_model_are_told(tmp_path: Path, capsys):
    from gguf import GGUFWriter

    writer = GGUFWriter(tmp_path / "dense.gguf", "llama")
    writer.add_tensor("token_embd.weight", np.zeros((4, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert command(["experts", "inspect", "dense.gguf"]) == ExitCode.NOT_THERE
    assert "is no mixture of experts" in capsys.readouterr().err
    assert command(["experts", "plan", "./none.gguf"]) == ExitCode.FAILED
    assert "There is no file" in capsys.readouterr().err


# --- simulate ----------------------------------------------------------------------------------------


def test_a_trace_alone_is_simulated_in_numbers_of_experts(trace: str, capsys):
    said = asked(capsys, "simulate", trace, "--budget", "32")
    assert said["kind"] == "predicted" and said["curve"]["cliff"] == LAYERS * USED
    assert said["curve"]["present"]["budget"] == 32 and said["oracle_gap"] > 0
    assert 0.2 < said["passes"]["overlap"] < 0.8 and said["passes"]["unions"]["2"] < 2 * USED
    assert command(["experts", "simulate", trace, "--budget", "32"]) == ExitCode.OK
    out = capsys.readouterr().out
    assert "present" in out and "best possible" in out


def test_with_a_model_budgets_are_bytes_and_advice_is_given(trace: str, small: Path, capsys):
    needs = asked(capsys, "inspect", str(small))["needs"]
    budget = needs["fixed"] = needs["least"] + needs["token"] // 2
    words = ("simulate", trace, "--model", str(small), "--budget", str(budget), "--disk-rate", "200MB",
             "--whole-speed", "50", "--acceptance", "0.574")
    said = asked(capsys, *words)
    assert said["curve"]["present"]["budget"] == budget and 0 < said["curve"]["present"]["speed"] < 50
    assert any("more would lift hits from" in sentence for sentence in said["advice"])
    assert said["passes"]["verdict"]["loses"] and said["passes"]["verdict"]["misses"] > 1
    assert said["curve"]["points"][-1]["speed"] == pytest.approx(50, rel=0.1)
    assert command(["experts", *words]) == ExitCode.OK
    assert "Speculation loses here" in capsys.readouterr().out
    measured = asked(capsys, "simulate", trace, "--model", str(small), "--budget", str(budget), "--disk-rate",
                     "measure", "--speed", "20")
    assert measured["disk_rate"] > 0 and measured["curve"]["present"]["speed"] <= 20.01


def test_an_imatrix_file_is_a_prior(tmp_path: Path, small: Path, capsys):
    writer = gguf.GGUFWriter(tmp_path / "i.gguf", "")
    for layer in range(LAYERS):
        writer.add_tensor(f"blk.{layer}.ffn_up_exps.weight.counts", np.arange(1, EXPERTS + 1, dtype=np.float32)[None])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    said = asked(capsys, "simulate", "--imatrix", "i.gguf", "--model", str(small))
    rates = [one["pinned"] for one in said["imatrix"]]
    assert rates == sorted(rates) and rates[-1] == pytest.approx(1) and said["curve"] is None


@pytest.mark.parametrize(("words", "code", "sentence"), [
    (("simulate",), ExitCode.USAGE, "nothing to simulate"),
    (("simulate", "none.trace"), ExitCode.FAILED, "There is no file"),
    (("simulate", "bad.trace"), ExitCode.FAILED, "no routing trace"),
    (("simulate", "torn.trace"), ExitCode.FAILED, "Nothing is decoded"),
    (("simulate", "--imatrix", "bad.trace"), ExitCode.USAGE, "says nothing of sizes"),
    (("simulate", "other.trace", "--model", "SMALL"), ExitCode.FAILED, "another model"),
    (("simulate", "made.trace", "--budget", "many"), ExitCode.USAGE, "no number of experts"),
    (("simulate", "made.trace", "--model", "SMALL", "--budget", "many"), ExitCode.USAGE, "is no size"),
    (("simulate", "made.trace", "--model", "SMALL", "--disk-rate", "fast"), ExitCode.USAGE, "is no size"),
    (("simulate", "made.trace", "--speed", "nan"), ExitCode.USAGE, "no number of tokens a second"),
    (("simulate", "made.trace", "--skip", "9999"), ExitCode.FAILED, "too few decoded tokens"),
    (("simulate", "--imatrix", "bad.trace", "--model", "SMALL"), ExitCode.FAILED, "GGUF"),
    (("plan", "SMALL", "--budget", "-1"), ExitCode.USAGE, "is no size"),
    (("watch",), ExitCode.NOT_THERE, "No head reads experts from disk"),
    (("trace", "-o", "made.trace"), ExitCode.FAILED, "is there already"),
    (("trace", "nowhere", "-o", "new.trace"), ExitCode.NOT_THERE, "No head on nowhere"),
])
def test_what_cannot_be_done_is_a_sentence(words, code, sentence: str, tmp_path: Path, small: Path, trace: str, capsys,
                                           monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("app.verbs.experts.engine_maker", lambda *a, **k: lambda: Fleet(FleetConfig()))
    (tmp_path / "bad.trace").write_bytes(b"\x1b[2Jnothing of the kind\n" * 9)
    (tmp_path / "torn.trace").write_bytes(Path(trace).read_bytes()[:33])
    (tmp_path / "other.trace").write_bytes(stored(made(LAYERS + 2, EXPERTS, USED, tokens=30)))
    assert command(["experts", *(str(small) if word == "SMALL" else word for word in words)]) == code
    out, err = capsys.readouterr()
    assert sentence in err and not out and "\x1b" not in err and "Traceback" not in err


def test_help_of_experts_imports_no_engine():
    done = subprocess.run([sys.executable, "-c", "import sys; from app.cli import main\n"
                           "try: main(['experts', 'simulate', '--help'])\nexcept SystemExit: pass\n"
                           "print([name for name in sys.modules if name.startswith(('fleet.experts', 'textual'))])"],
                          capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n") and "--acceptance" in done.stdout


def test_a_trace_as_lines_is_read_again(tmp_path: Path):
    prompt = Routed(0, ((0, 1), (2, 3)))
    told = Trace(1, 8, 1, (prompt, Routed(0, ((4, 5),)), Routed(0, ((5, 6),))))
    (tmp_path / "lines").write_text("".join(as_lines(told)))
    assert (tmp_path / "lines").read_text() == "0 0 4 5\n1 0 5 6\n"
    assert trace_of_file(str(tmp_path / "lines")).passes == told.passes[1:]


@pytest.mark.engine
def test_a_model_that_nobody_serves_is_traced_by_the_stock_library(program: str, small: Path, tmp_path: Path, capsys):
    said = asked(capsys, "trace", "--offline", str(small), "-o", "off.trace", "--tokens", "25", "--prompt", "gaf suf")
    assert (said["tokens"], said["layers"], said["experts"], said["node"]) == (25, LAYERS, EXPERTS, None)
    trace = trace_of_file(str(tmp_path / "off.trace"))
    assert {routed.layer for routed in trace.passes} == set(range(LAYERS))
    assert all(len(set(row)) == USED for routed in trace.passes for row in routed.rows)
    assert len(trace.passes[0].rows) > 1 and len(trace.passes[-1].rows) == 1
    (tmp_path / "cut.gguf").write_bytes(small.read_bytes()[:-100_000])
    assert command(["experts", "trace", "--offline", "cut.gguf", "-o", "cut.trace"]) == ExitCode.FAILED
    assert "cannot be traced here: it cannot be loaded" in capsys.readouterr().err
    assert not (tmp_path / "cut.trace").exists()


# --- a head that runs --------------------------------------------------------------------------------


@contextmanager
def talking(server: Server) -> Iterator[None]:
    """Somebody who asks it for something, again and again."""
    ended = threading.Event()

    def talk() -> None:
        while not ended.is_set():
            server.say(40, temperature=1.0)

    thread = threading.Thread(target=talk)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@pytest.mark.engine
def test_a_running_head_is_watched_and_recorded(small: Path, shim: Shim, tmp_path: Path, capsys,
                                                monkeypatch: pytest.MonkeyPatch):
    state, folder = tmp_path / "nodestate", tmp_path / "nodestate/services/coordinator-1"
    folder.mkdir(parents=True)
    state.chmod(0o700)
    with serving(small, folder, env=environment(shim, trace=TRACE, asked=ASKED)) as server:
        bound = Bound(Way.FIRST, 100 << 20, files=(str(small),))
        facts = {"bound": bound.to_json(), "shim": shim.path}
        record = ServiceRecord("coordinator-1", ServiceKind.COORDINATOR, server.pid, "1", (), server.port, "127.0.0.1",
                               True, 1.0, str(folder), facts=facts)
        node = NodeConfig("here", local=True, state_dir=str(state))
        fleet = Fleet(FleetConfig(nodes={"here": node}), record, state=state)
        monkeypatch.setattr("app.verbs.experts.engine_maker", lambda *a, **k: lambda: fleet)
        with talking(server):
            assert command(["experts", "trace", "-o", "new.trace", "--tokens", "30", "--json"]) == ExitCode.OK
            said = json.loads(capsys.readouterr().out)
            assert said["tokens"] >= 30 and (said["layers"], said["experts"]) == (LAYERS, EXPERTS)
            assert (tmp_path / "new.trace").stat().st_mode & 0o777 == 0o600
            assert command(["experts", "watch", "here", "-n", "6", "--every", "0.4", "--residency", "--json"]) == 0
            out, err = capsys.readouterr()
            assert command(["experts", "watch", "-n", "1", "--every", "0.3", "--layers"]) == ExitCode.OK
            told = capsys.readouterr().out
            assert "tok/s  hit " in told and "worst " in told
        lines = [json.loads(line) for line in out.splitlines()]
        assert len(lines) == 6 and err == ""
        busy = [line for line in lines if line["tokens"]]
        assert busy and {line["hit_rate"]["kind"] for line in busy} == {"exact"}
        assert all(0 <= line["hit_rate"]["value"] <= 1 for line in busy)
        assert all(line["estimated_hit_rate"]["kind"] in ("estimated", "unknown") for line in lines)
        seen = [line["residency"] for line in lines if line["residency"]]
        assert seen and 0 < seen[-1]["experts"] <= 1 and seen[-1]["process"]["read_bytes"] >= 0
    assert read_counters((folder / STATS).read_bytes()).exact
    assert command(["experts", "simulate", "new.trace", "--model", str(small)]) == ExitCode.OK
    assert "TOK/S" in capsys.readouterr().out
    os.unlink(folder / STATS)
    assert command(["experts", "watch", "-n", "1", "--every", "0.2", "--json"]) == ExitCode.OK
    line = json.loads(capsys.readouterr().out)
    assert line["hit_rate"]["kind"] == "unknown" and "cannot be read" in line["hit_rate"]["why"]
