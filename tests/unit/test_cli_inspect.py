"""`quarterdeck inspect`: a file of this machine, a path on a node, a name that the fleet knows."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from cli_engine import ScriptedEngine, node
from made_gguf import Maker, llama, number, numbers, string

from app.cli import main as command
from app.exit_codes import ExitCode
from app.output import width
from app.present.model_detail import ranges
from fleet.config.schema import FleetConfig, ModelConfig
from fleet.model import ModelFile, Snapshot
from fleet.models.reader import Headers
from fleet.nodes.local import LocalTransport

DATA = Path(__file__).parents[1] / "data/gguf"


@pytest.fixture(autouse=True)
def away_from_home(tmp_path, monkeypatch):
    """No fleet.yaml, no demo, no state of whoever runs the tests."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "QUARTERDECK_CONFIG"):
        monkeypatch.delenv(name, raising=False)


class WithFiles(ScriptedEngine):
    """An engine whose nodes all have the files of this machine."""

    def __init__(self, snapshot: Snapshot, config: FleetConfig) -> None:
        super().__init__(snapshot)
        self.config = config
        self.headers = Headers()

    async def model_header(self, node: str, path: str):
        return await self.headers.model_of(LocalTransport(node), path)


@pytest.fixture
def fleet(monkeypatch):
    """Gives the verb a fleet of nodes, each with files."""
    def use(config: FleetConfig | None = None, **files: tuple[Path, ...]) -> None:
        def listed(path: Path) -> ModelFile:
            return ModelFile(str(path), path.stat().st_size, int(path.stat().st_mtime))

        nodes = {}
        for name, paths in files.items():
            made = node(name)
            nodes[name] = replace(made, reading=replace(
                made.reading, models=tuple(listed(path) for path in paths if path.suffix == ".gguf"),
                unfinished=tuple(listed(path) for path in paths if path.suffix != ".gguf")))
        monkeypatch.setattr("app.engines.engine_maker",
                            lambda *a, **k: lambda: WithFiles(Snapshot(nodes=nodes), config or FleetConfig()))
    return use


def mixture() -> Maker:
    made = Maker(string("general.architecture", "qwen3moe"), string("general.name", "Tiny \x1b[2J mix"),
                 number("qwen3moe.block_count", 12), number("qwen3moe.embedding_length", 64),
                 number("qwen3moe.attention.head_count", 4), numbers("qwen3moe.attention.head_count_kv", [2] * 12),
                 number("qwen3moe.expert_count", 8), number("qwen3moe.expert_used_count", 2))
    made.tensor("token_embd.weight", (64, 32))
    for layer in range(12):
        made.tensor(f"blk.{layer}.ffn_up_exps.weight", (64, 256, 8), "Q8_0" if layer % 2 else "Q4_K")
    return made.tensor("output.weight", (64, 32))


# --- here -------------------------------------------------------------------------------------


def test_a_file_of_this_machine_is_shown_in_80_columns(tmp_path, capsys):
    path = mixture().write(tmp_path / "mix.gguf")
    assert command(["inspect", str(path)]) == ExitCode.OK
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0] == "mix" and "\x1b" not in out and all(width(line) <= 80 for line in lines)
    assert "  experts       8 a layer, 2 of them for a token; " in out
    assert any(line.split()[:2] == ["0-10", "even"] for line in lines)
    assert any(line.split()[:2] == ["1-11", "odd"] for line in lines)


def test_json_has_every_layer_and_the_facts(tmp_path, capsys):
    path = mixture().write(tmp_path / "mix.gguf")
    assert command(["inspect", "mix.gguf", "--json"]) == ExitCode.OK
    said = json.loads(capsys.readouterr().out)
    assert (said["model"], said["paths"], said["size"]) == ("mix", [str(path)], path.stat().st_size)
    assert said["facts"]["experts"] == 8 and said["facts"]["architecture"] == "qwen3moe"
    assert [layer["layer"] for layer in said["layers"]] == list(range(12))
    assert said["layers"][1]["bytes"] == 64 * 256 * 8 // 32 * 34
    assert said["experts"]["token_bytes"] == sum(
        2 * layer["expert_bytes"] for layer in said["experts"]["layers"]) and said["places"] is None


@pytest.mark.parametrize("name", sorted(path.name for path in DATA.glob("*.gguf")))
def test_every_odd_file_gives_a_page_or_a_sentence(name, capsys):
    code = command(["inspect", str(DATA / name)])
    out, err = capsys.readouterr()
    assert (code, bool(out), bool(err)) in ((ExitCode.OK, True, False), (ExitCode.FAILED, False, True))
    assert "Traceback" not in err and len(err) < 600


def test_an_unfinished_download_is_named(tmp_path, capsys):
    path = llama().write(tmp_path / "a.gguf")
    os.truncate(path, path.stat().st_size - 4096)
    assert command(["inspect", str(path)]) == ExitCode.OK
    assert "  incomplete    4 KiB of it are missing" in capsys.readouterr().out


def test_a_file_that_is_not_here_is_said_at_once(capsys):
    assert command(["inspect", "./no.gguf"]) == ExitCode.FAILED
    assert "There is no file ./no.gguf" in capsys.readouterr().err


def test_a_local_file_needs_no_engine_and_nothing_heavy(tmp_path):
    path = llama(tokens=["a", "b"]).write(tmp_path / "a.gguf")
    script = ("import sys, json; from app.cli import main; main(['inspect', sys.argv[1]]); "
              "print(json.dumps(sorted(sys.modules)), file=sys.stderr)")
    ran = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, timeout=60,
                         check=True)
    modules = set(json.loads(ran.stderr))
    assert not {"textual", "rich", "asyncssh", "asyncio", "numpy", "httpx", "yaml", "zeroconf"} & modules
    assert "fleet.engine" not in modules and ran.stdout.startswith("a\n")


# --- in the fleet -----------------------------------------------------------------------------


def test_a_name_is_found_in_the_fleet_with_all_its_copies(tmp_path, capsys, fleet):
    nas, desk = (llama().write(tmp_path / folder / "demo-q8.gguf") for folder in ("nas", "desk"))
    part = tmp_path / "lap/demo-q8.gguf.part"
    part.parent.mkdir()
    part.write_bytes(bytes(2000))
    fleet(nas=(nas,), desk=(desk,), lap=(part,))
    assert command(["inspect", "demo-q8"]) == ExitCode.OK
    out = capsys.readouterr().out
    assert out.startswith("demo-q8\n") and all(str(path) in out for path in (nas, desk, part)) and "unfinished" in out
    assert command(["inspect", "DEMO-Q8.gguf", "--node", "nas", "--json"]) == ExitCode.OK
    said = json.loads(capsys.readouterr().out)
    assert (said["node"], said["paths"]) == ("nas", [str(nas)])
    assert {place["node"]: place["state"] for place in said["places"]} == {
        "nas": "complete", "desk": "complete", "lap": "unfinished"}
    assert next(place for place in said["places"] if place["node"] == "nas")["fingerprint"] == said["fingerprint"]


def test_a_path_on_a_node_needs_no_model_folder(tmp_path, capsys, fleet):
    path = llama(name="Aside").write(tmp_path / "elsewhere/aside.gguf")
    fleet(nas=())
    assert command(["inspect", f"nas:{path}"]) == ExitCode.OK
    assert "Aside" in capsys.readouterr().out
    assert command(["inspect", str(path), "--node", "nas"]) == ExitCode.OK


def test_a_name_of_fleet_yaml_leads_to_its_file(tmp_path, capsys, fleet):
    path = llama().write(tmp_path / "demo-q8.gguf")
    fleet(FleetConfig(models={"big": ModelConfig("big", str(path))}), nas=(path,))
    assert command(["inspect", "big"]) == ExitCode.OK
    assert capsys.readouterr().out.startswith("demo-q8\n")


@pytest.mark.parametrize(("words", "code", "sentence"), [
    (["nothing"], ExitCode.NOT_THERE, "No model is called nothing on any node that answers. "),
    (["demo", "--node", "moon"], ExitCode.NOT_THERE, "No node is called moon."),
    (["moon:/a.gguf"], ExitCode.NOT_THERE, "No node is called moon."),
    (["nas:/a.gguf", "--node", "desk"], ExitCode.USAGE, "names the node nas, and --node desk"),
    (["nas:~/a.gguf"], ExitCode.USAGE, "Write the whole path"),
    (["nas:/no.gguf"], ExitCode.FAILED, "/no.gguf is not on nas"),
    (["twice"], ExitCode.NOT_THERE, "twice is the name of 2 models."),
    (["half"], ExitCode.NOT_THERE, "is unfinished."),
])
def test_what_is_not_there_is_said(tmp_path, capsys, fleet, words, code, sentence):
    half = tmp_path / "half.gguf.part"
    half.write_bytes(bytes(2000))
    fleet(nas=(llama().write(tmp_path / "a/twice.gguf"), half), desk=(llama(3).write(tmp_path / "b/twice.gguf"),))
    assert command(["inspect", *words]) == code
    err = " ".join(capsys.readouterr().err.split())
    assert sentence.strip() in err


def test_a_model_without_all_its_parts_names_the_one_that_is_missing(tmp_path, capsys, fleet):
    made = Maker(*llama().entries, number("split.count", 2), number("split.no", 0)).tensor("blk.0.x.weight", (64, 64))
    fleet(nas=(made.write(tmp_path / "demo-00001-of-00002.gguf"),))
    assert command(["inspect", "demo"]) == ExitCode.FAILED
    assert "demo-00002-of-00002.gguf is not on nas" in capsys.readouterr().err


@pytest.mark.parametrize(("numbers_given", "words"), [
    ([], ""), ([3], "3"), ([0, 1, 2], "0-2"), ([0, 2], "0, 2"), ([0, 2, 4, 6], "0-6 even"), ([1, 3, 5, 7], "1-7 odd"),
    ([5, 11, 17, 23], "5-23 every 6th"), ([0, 1, 4, 7, 10], "0-1, 4, 7, 10"), ([2, 5, 8, 11, 12], "2-11 every 3rd, 12"),
])
def test_layers_that_are_alike_are_said_shortly(numbers_given, words):
    assert ranges(numbers_given) == words
