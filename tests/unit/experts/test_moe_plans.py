"""What is decided of a mixture inside a budget before anything runs: layouts, budgets, limits, what breaks them."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from made_moe import SMALL, make

from fleet.config.load import parse
from fleet.config.schema import ExpertsConfig
from fleet.errors import ConfigError, PlanRefused
from fleet.experts.bound import (
    Bound,
    FileFacts,
    Ground,
    Stayed,
    Way,
    bound_for,
    bound_of,
    bounded_command,
    bounded_environment,
    choose_way,
    drop,
    look,
    make_ready,
    release,
)
from fleet.experts.budget import CYCLES, Needs, judge_budget, needs_of
from fleet.experts.conditions import check_arguments, check_owner, check_readahead
from fleet.experts.layout import layout_of
from fleet.models.gguf import GgufHeader, read_header
from fleet.models.memory import Ask
from fleet.nodes.local import LocalTransport
from fleet.planning.choose import refuse_streamed
from fleet.runtimes.binaries import Flags

MIB, GIB = 1 << 20, 1 << 30
HELP = """
--repack, -nr, --no-repack              whether to enable weight repacking (default: enabled)
--mlock                                 force system to keep model in RAM
--mmap, --no-mmap                       whether to memory-map model
-ctxcp, --ctx-checkpoints N             max number of context checkpoints
-cram, --cache-ram N                    set the maximum cache size in MiB
--warmup, --no-warmup                   whether to perform warmup
"""


def header_of(path: Path) -> GgufHeader:
    with path.open("rb") as file:
        async def read(offset: int, length: int) -> bytes:
            return os.pread(file.fileno(), length, offset)
        return asyncio.run(read_header(read, path.stat().st_size))


# ---------------------------------------------------------------------------------------------
# Layout and budget


def test_a_layout_tells_a_node_where_every_expert_lies(small: Path):
    header = header_of(small)
    layout = layout_of(header)
    told = json.loads(layout.to_json())
    assert (told["version"], told["files"], told["experts"], told["used"]) == (1, 1, 16, 4)
    tensors = {tensor.name: tensor for tensor in header.tensors}
    for layer, parts in told["layers"]:
        names = [f"blk.{layer}.ffn_{part}_exps.weight" for part in ("gate", "down", "up")]
        assert sorted(map(tuple, parts)) == sorted(
            (0, tensors[name].offset, tensors[name].bytes // 16) for name in names)
    assert "apart" not in told and len(layout.to_json()) < 2000
    covered = sum(length for _, _, length in told["shared"])
    assert layout.shared_bytes <= covered < layout.shared_bytes + 64 * 1024 * len(header.tensors)
    assert layout.embedding_bytes == tensors["token_embd.weight"].bytes
    experts = [(offset, offset + each * 16) for _, parts in told["layers"] for _, offset, each in parts]
    assert not [1 for _, at, n in told["shared"] for first, last in experts if at < last and first < at + n]


def test_a_budget_has_room_for_what_is_left(small: Path):
    header = header_of(small)
    layout = layout_of(header)
    needs = needs_of(header, layout, Ask(512), prompts=5 * MIB)
    assert needs.token == 4 * 4 * layout.experts.expert_bytes and needs.prompts == 5 * MIB
    assert needs.whole > needs.sensible == needs.fixed + CYCLES * needs.token > needs.least > needs.fixed
    assert needs.room(needs.fixed - 1) == 0 and needs.room(needs.whole + 1) == needs.experts
    assert needs_of(header, layout, Ask(4096)).cache == 8 * needs.cache


NEEDS = Needs(shared=2 * GIB, cache=GIB, buffers=GIB // 2, prompts=0, token=GIB, experts=40 * GIB)


@pytest.mark.parametrize(("budget", "said"), [
    (12 * GIB, "8.5 GiB of 40.0 GiB of experts (21 %, 8.5 token cycles)"),
    (5 * GIB, "The smallest sensible budget is 5.5 GiB."),
    (50 * GIB, "fits into 50.0 GiB whole"),
])
def test_what_a_budget_means_is_said(budget: int, said: str):
    assert said in " ".join(judge_budget(NEEDS, budget, "big"))


def test_less_than_one_token_cycle_is_refused():
    with pytest.raises(PlanRefused, match=r"1\.0 GiB for one token alone.*5\.5 GiB or more"):
        judge_budget(NEEDS, NEEDS.least - 1, "big")
    assert judge_budget(NEEDS, NEEDS.least, "big")


# ---------------------------------------------------------------------------------------------
# Ways to bound memory. What this machine has not is tested as command lines.

ROOT = Ground(0, True)
USER = Ground(1000, True, systemd=True, user_manager=True, delegated=True, linger=True)


@pytest.mark.parametrize(("ground", "way"), [
    (replace(ROOT, first="/sys/fs/cgroup/memory"), Way.FIRST),
    (replace(ROOT, systemd=True, second="/sys/fs/cgroup"), Way.SYSTEM_SCOPE),
    (replace(ROOT, second="/sys/fs/cgroup"), Way.SECOND),
    (USER, Way.USER_SCOPE),
    (Ground(1000, True, second="/sys/fs/cgroup"), Way.SECOND),
    (Ground(1000, True, first="/sys/fs/cgroup/memory/mine"), Way.FIRST),
])
def test_a_node_is_bounded_by_what_it_has(ground: Ground, way: Way):
    assert choose_way(ground, "atlas") is way


@pytest.mark.parametrize(("ground", "said"), [
    (Ground(0, False), "is no Linux machine"),
    (ROOT, "Nothing on atlas lets us bound the memory"),
    (Ground(1000, True, systemd=True, user_manager=True), "Nothing on atlas lets us bound the memory"),
    (replace(USER, linger=False), "loginctl enable-linger"),
])
def test_a_node_that_can_bound_nothing_is_refused(ground: Ground, said: str):
    with pytest.raises(PlanRefused) as caught:
        choose_way(ground, "atlas")
    assert said in str(caught.value)


def test_the_user_s_systemd_is_asked_for_a_scope():
    bound = bound_for(USER, Way.USER_SCOPE, 12 * GIB, "coordinator-8080")
    assert bounded_command(bound, ("/opt/llama-server", "-m", "a b.gguf"), "coordinator-8080") == (
        "systemd-run", "--user", "--scope", "--quiet", "--collect", "--unit=quarterdeck-coordinator-8080",
        f"--property=MemoryMax={12 * GIB}", "--property=MemorySwapMax=0", "--", "/opt/llama-server", "-m", "a b.gguf")
    assert bounded_environment(bound, USER) == {"XDG_RUNTIME_DIR": "/run/user/1000"} and bound.group == ""


def test_the_system_s_systemd_is_asked_without_user():
    bound = bound_for(ROOT, Way.SYSTEM_SCOPE, GIB, "coordinator-1")
    command = bounded_command(bound, ("x",), "coordinator-1")
    assert command[:2] == ("systemd-run", "--scope") and "--user" not in command and command[-2:] == ("--", "x")
    assert bounded_environment(bound, ROOT) == {}


@pytest.mark.parametrize("shell", ["sh", "bash", "busybox"])
@pytest.mark.parametrize("way", [Way.FIRST, Way.SECOND])
def test_a_group_is_made_joined_and_left_to_the_program(tmp_path: Path, shell: str, way: Way):
    """The script against folders that stand for the kernel's: every figure is where the kernel reads it."""
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell}")
    ground = Ground(0, True, first=str(tmp_path), second=str(tmp_path))
    (tmp_path / "cgroup.subtree_control").touch()
    bound = bound_for(ground, way, 5 * MIB, "coordinator-1")
    argv = bounded_command(bound, ("echo", "it's", "$HOME"), "coordinator-1")
    assert argv[0] == "/bin/sh"
    start = [shutil.which(shell), *(["sh"] if shell == "busybox" else [])]
    done = subprocess.run([*start, *argv[1:]], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("it's $HOME\n", "")
    group = tmp_path / "quarterdeck-coordinator-1"
    limit = group / ("memory.max" if way is Way.SECOND else "memory.limit_in_bytes")
    assert limit.read_text() == f"{5 * MIB}\n" and int((group / "cgroup.procs").read_text()) > 1
    assert ((tmp_path / "cgroup.subtree_control").read_text() == "+memory\n") is (way is Way.SECOND)
    again = subprocess.run([*start, *argv[1:]], capture_output=True, text=True, check=False)
    assert again.returncode == 125 and "is in use by another process" in again.stderr     # it cannot be removed


def test_what_is_kept_of_a_limit_is_read_back_and_not_believed():
    bound = Bound(Way.FIRST, GIB, "/sys/fs/cgroup/memory/quarterdeck-x", (("/sys/a/read_ahead_kb", 64, 128),),
                  ("/m/a.gguf",))
    assert bound_of({"bound": json.loads(json.dumps(bound.to_json()))}) == bound
    assert bound_of({}) is None and bound_of({"bound": {"way": "magic"}}) is None and bound_of({"bound": 3}) is None
    odd = bound_of({"bound": {"way": "cgroup-v2", "limit": "x", "group": 3, "readahead": [[1, 2], ["a", -1, 2], "b"],
                              "files": ["relative", 3]}})
    assert odd == Bound(Way.SECOND, 0)


@pytest.mark.parametrize("group", ["/", "/sys/fs/cgroup", "/tmp/quarterdeck-x", "/sys/fs/cgroup/memory/other",
                                   "/sys/fs/cgroup/../../../tmp/quarterdeck-x"])
async def test_nothing_but_a_group_of_ours_is_ever_removed(tmp_path: Path, group: str):
    setting = tmp_path / "read_ahead_kb"
    setting.write_text("64\n")
    bound = Bound(Way.FIRST, GIB, group, ((str(setting), 64, 128), ("/sys/../tmp/read_ahead_kb", 64, 128)))
    assert await release(LocalTransport("here"), bound) == ()
    assert setting.read_text() == "64\n"


async def test_a_setting_that_is_no_readahead_is_not_written(tmp_path: Path):
    file = tmp_path / "file"
    file.write_text("keep")
    with pytest.raises(Exception, match="readahead"):
        await make_ready(LocalTransport("here"), Bound(Way.FIRST, GIB, "", ((str(file), 64, 128),)))
    assert file.read_text() == "keep"


async def test_a_node_tells_whose_a_file_is_and_how_its_disk_reads_ahead(small: Path, tmp_path: Path):
    ground = await look(LocalTransport("here"), [str(small), str(tmp_path / "none"), str(tmp_path / "it's | odd")])
    assert ground.linux and ground.uid == os.geteuid() and len(ground.files) == 3
    assert ground.files[0].owner == os.geteuid() and ground.files[0].writable
    assert ground.files[1] == ground.files[2] == FileFacts(None, False, None)
    device = os.stat(small).st_dev
    there = f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/queue/read_ahead_kb"
    if os.access(there, os.R_OK):
        assert ground.files[0].setting == os.path.realpath(there)  # noqa: ASYNC240
        assert ground.files[0].readahead is not None


async def test_a_file_is_taken_out_of_the_page_cache(tmp_path: Path):
    path = make(tmp_path / "model.gguf", replace(SMALL, layers=8))     # just written: all of it is there, and dirty
    (left,) = await drop(LocalTransport("here"), [str(path)])
    assert left.size == path.stat().st_size and not left.much and left.pids == ()
    assert Stayed(40 * MIB, GIB, ()).much and not Stayed(10 * MIB, GIB).much
    assert await drop(LocalTransport("here"), [str(tmp_path / "none")]) is None


# ---------------------------------------------------------------------------------------------
# What breaks the limit


def test_what_llama_server_does_by_itself_is_turned_off():
    told = check_arguments(Flags.parse(HELP), "llama-server", ("--temp", "1", "--cache-ram", "300"), {})
    assert told.argv == ("--no-repack", "--no-warmup", "-cram", "0", "-ctxcp", "0") and told.prompts == 300 * MIB
    assert check_arguments(Flags.parse(HELP), "llama-server", (), {"LLAMA_ARG_MLOCK": "0"}).prompts == 0


def test_all_that_breaks_the_limit_is_said_at_once():
    with pytest.raises(PlanRefused) as caught:
        check_arguments(Flags.parse(HELP), "llama-server", ("--no-mmap", "--mlock", "--cache-ram=-1"),
                        {"LLAMA_ARG_MMAP": "off"})
    for word in ("--no-mmap in", "--mlock in", "without a limit", "LLAMA_ARG_MMAP"):
        assert word in caught.value.what


@pytest.mark.parametrize(("arguments", "env", "sentence"), [
    (("--no-mmap",), {}, "--no-mmap in extra_args reads the whole model into memory that cannot be evicted."),
    (("--mlock",), {}, "--mlock in extra_args locks the whole model in memory."),
    (("-dio",), {}, "-dio in extra_args reads the whole model past the page cache"),
    (("--direct-io",), {}, "--direct-io in extra_args reads the whole model past the page cache"),
    (("--repack",), {}, "--repack in extra_args makes a second copy of the weights"),
    (("--warmup",), {}, "--warmup in extra_args reads every expert of every layer"),
    (("--cache-ram", "-1"), {}, "--cache-ram -1 keeps old prompts without a limit."),
    (("-cram",), {}, "-cram keeps old prompts without a limit."),
    ((), {"LLAMA_ARG_MLOCK": "1"}, "LLAMA_ARG_MLOCK in env of the head is --mlock, which locks"),
    ((), {"LLAMA_ARG_NO_MMAP": "1"}, "LLAMA_ARG_NO_MMAP in env of the head is --no-mmap, which reads"),
    ((), {"LLAMA_ARG_MMAP": "false"}, "LLAMA_ARG_MMAP in env of the head is --no-mmap, which reads"),
    ((), {"LLAMA_ARG_DIO": "on"}, "LLAMA_ARG_DIO in env of the head is --direct-io, which reads"),
])
def test_each_way_to_break_the_limit_has_its_sentence(arguments, env, sentence):
    with pytest.raises(PlanRefused) as caught:
        check_arguments(Flags.parse(HELP), "llama-server", arguments, env)
    assert sentence in caught.value.what and caught.value.remedy == "Take that away, or `experts:`."


def test_a_server_that_cannot_do_without_repacking_is_refused():
    with pytest.raises(PlanRefused, match="has no --no-repack"):
        check_arguments(Flags.parse("--mlock   lock\n"), "llama-server b4000", (), {})


def test_a_file_of_somebody_else_is_refused():
    facts = FileFacts(1000, False, 64)
    with pytest.raises(PlanRefused, match=r"belongs to another user \(id 1000\)"):
        check_owner(Ground(1001, True, files=(facts,)), ["/m.gguf"], "atlas")
    for ground in (Ground(1000, True), Ground(0, True), Ground(1001, True)):
        check_owner(replace(ground, files=(replace(facts, writable=ground.uid == 1001),)), ["/m.gguf"], "atlas")
    with pytest.raises(PlanRefused, match="does not say whose"):
        check_owner(Ground(0, True, files=(FileFacts(None, False, None),)), ["/m.gguf"], "atlas")


def test_readahead_is_lowered_or_told_or_refused():
    def judge(facts: FileFacts, *, shim: bool = True):
        return check_readahead(Ground(0, True, files=(facts, facts)), ["/a", "/b"], "atlas", shim=shim)

    low = FileFacts(0, True, 64, "/sys/x/read_ahead_kb", True)
    high = replace(low, readahead=8192)
    assert judge(low) == type(judge(low))()
    assert judge(high).lower == (("/sys/x/read_ahead_kb", 8192),) and judge(high).remarks == ()
    fixed = replace(high, settable=False)
    assert "reads 8192 KB ahead" in judge(fixed).remarks[0] and judge(fixed).lower == ()
    with pytest.raises(PlanRefused, match=r"echo 64 > /sys/x/read_ahead_kb"):
        judge(fixed, shim=False)
    assert "is not known" in judge(replace(low, readahead=None)).remarks[0]


# ---------------------------------------------------------------------------------------------
# fleet.yaml


def test_a_budget_is_read():
    config = parse("models: {m: {file: a.gguf, experts: {budget: 12GiB}}, n: {file: a.gguf}}")
    assert config.models["m"].experts == ExpertsConfig(12 * GIB, True) and config.models["n"].experts is None
    config = parse("models: {m: {file: a.gguf, workers: [], experts: {budget: 512MiB, shim: no}}}")
    assert config.models["m"].experts == ExpertsConfig(512 * MIB, False)


@pytest.mark.parametrize(("text", "said"), [
    ("experts: 12GiB", "budget: 12GiB"), ("experts: {}", "'budget' is missing"), ("experts: {budget: 12}", "12GiB"),
    ("experts: {budgte: 12GiB}", "did you mean 'budget'?"), ("experts: {budget: 12GiB, shim: often}", "true or false"),
    ("experts: {budget: 12GiB}, gpu_layers: 3", "knows no `gpu_layers`"),
    ("experts: {budget: 12GiB}, split: {n: 1}", "knows no `split`"),
    ("experts: {budget: 12GiB}, workers: [n]", "has no workers"),
    ("experts: {budget: 12GiB}, runtime: vllm", "vLLM knows no `experts`"),
])
def test_a_budget_that_cannot_be_is_told_with_its_line(text: str, said: str):
    with pytest.raises(ConfigError) as caught:
        parse(f"nodes: {{n: {{}}}}\nmodels:\n  m: {{file: a.gguf, {text}}}\n")
    assert said in str(caught.value) and "3" in str(caught.value)


def test_such_a_model_is_not_split():
    model = parse("models: {m: {file: /a.gguf, experts: {budget: 12GiB}}}").models["m"]
    with pytest.raises(PlanRefused, match=r"nothing to split.*up --dry-run m"):
        refuse_streamed(model)
