"""`quarterdeck plan`: what it prints at 80 columns, what it ends with, and what it says of a wrong command line."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from app.cli import main
from app.exit_codes import ExitCode

FLEET = """
nodes:
  desk:
    ram: 64GiB
    cpu: AMD Ryzen 7 7700
    devices: {CUDA0: {memory: 16GiB, name: NVIDIA GeForce RTX 4070 Ti Super}}
  mac: {ram: 16GiB, unified: true, cpu: Apple M2, devices: {MTL0: {memory: 11GiB, name: Apple M2}},
        link: {kind: wired, round_trip_ms: 1, mbit: 1000}}
models:
  middle: {layers: 64, width: 5120, vocabulary: 152064, heads: 40, kv_heads: 8, size: 19.8GB, parameters: 32.8,
           context: 131072}
  small: {layers: 32, width: 4096, vocabulary: 128256, kv_heads: 8, size: 4.9GB, parameters: 8.03, context: 131072}
"""


@pytest.fixture
def fleet(tmp_path: Path) -> str:
    path = tmp_path / "wish.yaml"
    path.write_text(FLEET)
    return str(path)


def test_the_plan_is_a_line_a_device_the_terms_of_the_time_and_the_reasons(fleet, capsys):
    assert main(["plan", "middle", "--fleet", fleet]) == ExitCode.OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("middle on desk, mode time: ") and "tok/s predicted, context " in lines[0]
    assert lines[2].split() == ["NODE", "DEVICE", "LAYERS", "WEIGHTS", "KV", "COMPUTE", "FREE", "LINK"]
    assert lines[3].startswith("mac   MTL0 (RPC0)  0-") and lines[3].endswith("wired 1.0 ms")
    assert lines[4].startswith("desk  CUDA0") and "-63+out" in lines[4] and lines[4].endswith("in the head")
    assert any(line.startswith("a token takes ") for line in lines) and "  3.0 ms" in "\n".join(lines)
    assert "why:" in lines and "better:" in lines
    assert max(map(len, lines)) <= 80


def test_json_has_the_same_as_data(fleet, capsys):
    assert main(["plan", "small", "--fleet", fleet, "--mode", "memory", "--context", "8192", "--kv", "q8_0,f16",
                 "--slots", "2", "--json"]) == ExitCode.OK
    plan = json.loads(capsys.readouterr().out)["plan"]
    assert (plan["mode"], plan["context"], plan["slots"]) == ("memory", 8192, 2)
    assert (plan["type_k"], plan["type_v"], plan["context_pinned"]) == ("q8_0", "f16", True)
    assert sum(device["layers"] for device in (*plan["devices"], plan["host"])) == 33
    assert plan["prediction"]["tokens_per_second"] > 0 and plan["sentences"] and plan["problem"] is None


def test_what_does_not_fit_ends_with_the_code_of_a_refusal_and_says_what_would(fleet, capsys):
    assert main(["plan", "middle", "--fleet", fleet, "--nodes", "none", "--without", "desk:CUDA0", "--head", "mac"]
                ) == ExitCode.REFUSED
    out = capsys.readouterr().out
    assert "middle on mac, mode time: no plan fits" in out and "does not fit" in out and "better:" in out


@pytest.mark.parametrize(("words", "code", "sentence"), [
    (["tiny"], ExitCode.NOT_THERE, "describes no model tiny"),
    (["small", "--nodes", "bolt"], ExitCode.NOT_THERE, "No node is called bolt"),
    (["small", "--kv", "a,b,c"], ExitCode.USAGE, "is not one type or two"),
    (["small", "--kv", "q9"], ExitCode.REFUSED, "'q9' is no type of KV"),
    ([], ExitCode.NOT_THERE, "Which model to plan for was not said"),
    (["/nowhere/at-all.gguf"], ExitCode.FAILED, "at-all.gguf")])
def test_what_cannot_be_planned_is_said(fleet, capsys, words, code, sentence):
    assert main(["plan", *words, "--fleet", fleet]) == code
    assert sentence in capsys.readouterr().err


def test_a_description_that_is_not_there_is_a_wrong_configuration(tmp_path, capsys):
    assert main(["plan", "small", "--fleet", str(tmp_path / "none.yaml")]) == ExitCode.CONFIG
    assert "cannot be read" in capsys.readouterr().err


def test_a_model_file_of_this_machine_can_be_planned_for(fleet, capsys, tmp_path):
    path = tmp_path / "made.gguf"
    path.write_bytes(made_gguf(layers=4, width=64))
    assert main(["plan", str(path), "--fleet", fleet]) == ExitCode.OK
    assert capsys.readouterr().out.startswith("made on desk, mode time: ")


def made_gguf(*, layers: int, width: int) -> bytes:
    """The smallest file that has layers: a header, and as many bytes of weights as it speaks of."""
    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    numbers = {"llama.block_count": layers, "llama.embedding_length": width, "llama.context_length": 4096,
               "llama.attention.head_count": 4, "llama.attention.head_count_kv": 4, "llama.vocab_size": 32}
    entries = text("general.architecture") + struct.pack("<I", 8) + text("llama")
    entries += b"".join(text(key) + struct.pack("<II", 4, value) for key, value in numbers.items())
    names = ["token_embd.weight", *(f"blk.{number}.attn_q.weight" for number in range(layers)), "output.weight"]
    size = width * 32 * 4
    index = b"".join(text(name) + struct.pack("<IQQIQ", 2, width, 32, 0, number * size)
                     for number, name in enumerate(names))
    head = b"GGUF" + struct.pack("<IQQ", 3, len(names), len(numbers) + 1) + entries + index
    return head + bytes(-len(head) % 32) + bytes(size * len(names))
