"""What fleet.yaml may say, and what is said about one that says something else."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.config import marks
from fleet.config.load import ConfigErrors, find, load, parse
from fleet.config.schema import FleetConfig, Role, RpcMode, WorkerConfig
from fleet.errors import ConfigError


def problems(text: str) -> tuple[str, ...]:
    with pytest.raises(ConfigErrors) as caught:
        parse(text)
    return caught.value.problems


WHOLE = """\
fleet: home
nodes:
  atlas:
    address: local
    workers: []
    head: {port: 8081, bind: 10.0.0.1, threads: 8, env: {GGML_X: on}, extra_args: [--no-mmap]}
  bolt:
    addresses: [10.0.0.2, "bolt.lan:2222", fe80::2%eth0]
    user: no
    port: 22
    identity_files: [~/.ssh/a, ~/.ssh/b]
    jump: ops@gate:2222,10.0.0.9
    roles: worker
    vram: {CUDA0: 24GiB, CUDA1: 512MB, CUDA2: 25769803776}
    workers:
      - {port: 50052, devices: [CUDA0], threads: 4, cache: yes, env: {CUDA_VISIBLE_DEVICES: 0}}
      - {port: 50053, managed: off}
    llama: /opt/llama.cpp
    rpc: tunnel
models:
  big: {file: /m/big.gguf, head: atlas, workers: [bolt], context: 1e4, slots: 2, kv: q8_0, flash_attention: on,
        gpu_layers: 99, split: {bolt: 2, atlas: 1.5}}
  small: {file: a.gguf, kv: {k: q8_0, v: f16}, workers: [], flash_attention: no}
model: big
refresh: .5
log_limit: 1MiB
"""


def test_a_file_becomes_the_schemas_records() -> None:
    config = parse(WHOLE, "/etc/fleet.yaml")
    assert config.fleet == "home" and config.path == "/etc/fleet.yaml" and config.refresh == 0.5
    atlas, bolt = config.nodes["atlas"], config.nodes["bolt"]
    assert atlas.local and atlas.workers == () and atlas.addresses == ()
    assert (atlas.head.port, atlas.head.bind, dict(atlas.head.env)) == (8081, "10.0.0.1", {"GGML_X": "on"})
    assert bolt.addresses == ("10.0.0.2", "bolt.lan:2222", "fe80::2%eth0")
    assert bolt.user == "no" and bolt.roles == (Role.WORKER,) and bolt.rpc is RpcMode.TUNNEL
    assert bolt.vram == {"CUDA0": 24 << 30, "CUDA1": 512_000_000, "CUDA2": 24 << 30}
    assert bolt.workers[0] == WorkerConfig(50052, ("CUDA0",), 4, True, True, {"CUDA_VISIBLE_DEVICES": "0"})
    assert not bolt.workers[1].managed
    big, small = config.models["big"], config.models["small"]
    assert (big.context, big.kv_type_k, big.kv_type_v, big.flash_attention) == (10_000, "q8_0", "q8_0", "on")
    assert big.split == {"bolt": 2.0, "atlas": 1.5}
    assert (small.kv_type_k, small.kv_type_v, small.workers, small.flash_attention) == ("q8_0", "f16", (), "off")


def test_what_is_not_written_is_the_schemas_default() -> None:
    config = parse("fleet: x\nnodes: {a: , b: {address: }}\nmodels:\ndiscovery: ~\nmodel_dirs: null\n")
    default = FleetConfig()
    assert (config.discovery, config.ssh, config.proxy, config.model_dirs, config.refresh, config.log_limit) == (
        default.discovery, default.ssh, default.proxy, default.model_dirs, default.refresh, default.log_limit)
    assert config.nodes["a"].workers == (WorkerConfig(),)


def test_all_problems_are_told_at_once_each_with_line_key_and_expected_form() -> None:
    told = problems("nodes:\n  atlas:\n    prot: 22\n    port: many\nmodles: {}\nrefresh: -1\n")
    assert [line.split(":", 3)[:3] for line in told] == [
        ["fleet.yaml", "3", " nodes.atlas.prot"], ["fleet.yaml", "4", " nodes.atlas.port"],
        ["fleet.yaml", "5", " modles"], ["fleet.yaml", "6", " refresh"]]
    assert told[0].startswith("fleet.yaml:3: nodes.atlas.prot: unknown key; did you mean 'port'? Expected one of ")
    assert all(" Expected " in line for line in told)


@pytest.mark.parametrize(("text", "said"), [
    ("nodes: {a: {port: 0}}", "0 is out of range"),
    ("nodes: {a: {port: 65536}}", "a port number from 1 to 65535"),
    ("nodes: {a: {port: 0o26}}", "could be octal"),
    ("nodes: {a: {port: 022}}", "could be octal"),
    ("nodes: {a: {port: 22.5}}", "a port number"),
    ("nodes: {a: {port: true}}", "a port number"),
    ("nodes: {a: {port: [22]}}", "this is a list"),
    ("nodes: {a: {vram: {CUDA0: 24GB of it}}}", "a size such as 24GiB"),
    ("nodes: {a: {vram: {CUDA0: 24}}}", "did you mean '24GiB'?"),
    ("nodes: {a: {vram: {CUDA0: 1.5}}}", "a size such as"),
    ("nodes: {a: {vram: {CUDA0: -4GiB}}}", "a size such as"),
    ("nodes: {a: {vram: 24GiB}}", "device names with sizes"),
    ("nodes: {a: {roles: [haed]}}", "did you mean 'head'?"),
    ("nodes: {a: {roles: []}}", "may be nothing"),
    ("nodes: {a: {roles: [head], workers: [{port: 1}]}}", "do not say worker"),
    ("nodes: {a: {workers: many}}", "[] for none"),
    ("nodes: {a: {workers: [{port: 1}, {port: 1}]}}", "port 1 is taken by worker 1"),
    ("nodes: {a: {workers: [{port: 1}], head: {port: 1}}}", "a port that no worker of this node has"),
    ("nodes: {a: {workers: [{env: {1A: x}}]}}", "no name of an environment variable"),
    ("nodes: {a: {address: ops@10.0.0.1}}", "the user goes into `user`"),
    ("nodes: {a: {address: 10.0.0.1:99999}}", "is no address"),
    ("nodes: {a: {address: 10.0.0.256}}", "is no address"),
    ("nodes: {a: {address: 'a b'}}", "is no address"),
    ("nodes: {a: {address: -oProxyCommand=x}}", "is no address"),
    ("nodes: {a: {address: fe80::1}}", "%interface"),
    ("nodes: {a: {address: x, addresses: [y]}}", "both 'address' and 'addresses'"),
    ("nodes: {a: {address: [local, 10.0.0.1]}}", "either `address: local` or addresses"),
    ("nodes: {a: {user: -l}}", "no user name"),
    ("nodes: {a: {jump: 'a b'}}", "no hop"),
    ("nodes: {a: {rpc: vpn}}", "one of direct, tunnel"),
    ("nodes: {a: {rpc_address: '10.0.0.1:5'}}", "without a port"),
    ("nodes: {a: {address: local}, b: {address: local}}", "'a' is this machine already"),
    ("nodes: {a: {address: local}, b: {address: 127.0.0.1}}", "'a' is this machine already"),
    ("nodes: {a: {address: 10.0.0.1}, b: {addresses: [b, 10.0.0.1:22]}}", "the address of 'a' too"),
    ('nodes: {"a\\nb": {}}', "control character"),
    ("nodes: {'': {}}", "this name is empty"),
    ("nodes: [a]", "this is a list"),
    ("nodes: {a: {address: local, head: {port: 8088}}}\nproxy: {enabled: on}", "wanted by the proxy"),
    ("nodes: {a: {address: local}}\nproxy: {listen: '127.0.0.1:8080'}", "wanted by the proxy"),
    ("nodes: {a: {address: local, workers: [{port: 8088}]}}\nproxy: {enabled: on}", "wanted by the proxy"),
    ("proxy: {listen: 8088}", "host:port"),
    ("models: {m: {}}", "'file' is missing"),
    ("models: {m: }", "'file' is missing"),
    ("models: {m: {file: ''}}", "this is empty"),
    ("models: {m: {file: a, head: atals}}\nnodes: {atlas: {}}", "did you mean 'atlas'?"),
    ("models: {m: {file: a, workers: [x]}}", "a node that stands under `nodes`"),
    ("models: {m: {file: a, workers: [n, n]}}\nnodes: {n: {}}", "here twice"),
    ("models: {m: {file: a, workers: [n]}}\nnodes: {n: {workers: []}}", "'n' has no worker"),
    ("models: {m: {file: a, split: {x: 1}}}\nnodes: {n: {}}", "there is no node 'x'"),
    ("models: {m: {file: a, head: n, workers: [], split: {o: 1}}}\nnodes: {n: {}, o: {}}", "neither this model's head"),
    ("models: {m: {file: a, split: {n: 0}}}\nnodes: {n: {}}", "out of range"),
    ("models: {m: {file: a, head: n}}\nnodes: {n: {roles: worker}, o: {}}", "do not say head"),
    ("models: {m: {file: a}}\nnodes: {n: {roles: worker}}", "no node may be its head"),
    ("models: {m: {file: a, kv: q9}}", "one of f32"),
    ("models: {m: {file: a, flash_attention: maybe}}", "one of on, off, auto"),
    ("models: {small: {file: a}}\nmodel: smal", "did you mean 'small'?"),
    ("refresh: .nan", "seconds between"),
    ("refresh: 1e999", "seconds between"),
    ("log_limit: 10", "out of range"),
    ("ssh: {agent: perhaps}", "true or false"),
    ("- a", "this is a list"),
    ("just words", "a mapping of keys"),
    ("", "the file is empty"),
    ("# only a comment\n", "the file is empty"),
    ("a: 1\n\tb: 2\n", "begins with a tab"),
    ("a: [1\n", "this is no YAML"),
    ("fleet: a\nfleet: b\n", "'fleet' is here twice, first on line 1"),
    ("a: &x [*x]", "lies inside of what it stands for"),
    ("a: *x", "has no anchor"),
    ("a: !!python/object/apply:os.system [id]", "the tag"),
    ("a: 1\n---\nb: 2", "a second document"),
    ("[" * 100, "nested more than"),
    ("? [a]\n: 1", "where a key belongs"),
    ("a: \x07", "control characters"),
    ("<<: 5\n", "merges mappings"),
])
def test_a_wrong_value_is_told_with_the_expected_form(text: str, said: str) -> None:
    assert any(said in line for line in problems(text)), problems(text)


@pytest.mark.parametrize("data", [b"\xff\xfe", b"fleet: caf\xe9\n", b"\x00" * 10, b"a" * (marks.SIZE_LIMIT + 1), b""])
def test_a_file_that_is_no_text_is_told_so(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_bytes(data)
    with pytest.raises(ConfigErrors) as caught:
        load(path)
    assert len(caught.value.problems) == 1 and caught.value.problems[0].startswith("fleet.yaml:1: ")
    assert isinstance(caught.value, ConfigError) and str(path) in caught.value.what and caught.value.remedy


def test_a_file_that_is_not_there_or_is_a_folder_is_told_so(tmp_path: Path) -> None:
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(ConfigErrors, match="cannot be read") as caught:
            load(path)
        assert caught.value.problems[0].startswith(f"{path} cannot be read: ")
        assert "quarterdeck init" in caught.value.remedy


def test_a_byte_order_mark_is_not_part_of_the_text(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_bytes(b"\xef\xbb\xbffleet: home\r\n")
    assert load(path).fleet == "home"


def test_anchors_and_merge_keys_work_and_keep_what_is_written_by_hand() -> None:
    config = parse("x-gpu: &gpu {threads: 4, cache: on}\n"
                   "nodes: {a: {workers: [{<<: *gpu, port: 1, cache: off}, {port: 2, <<: [*gpu]}]}}\n")
    first, second = config.nodes["a"].workers
    assert (first.threads, first.cache, second.threads, second.cache) == (4, False, 4, True)


def test_aliases_cannot_blow_a_file_up() -> None:
    laughs = "a: &a0 [x]\n" + "".join(f"b{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 200))
    assert len(problems(laughs)) == 101
    many = "x-a: &a {" + ", ".join(f"k{i}: 1" for i in range(2000)) + "}\n" + "".join(
        f"x-b{i}: {{<<: *a}}\n" for i in range(100))
    assert any("merge keys copy more than" in line for line in problems(many))


def test_behind_the_proxy_the_head_steps_aside() -> None:
    assert parse("nodes: {a: {address: local}}").nodes["a"].head.port == 8080
    assert parse("nodes: {a: {address: local}}\nproxy: {enabled: true}").nodes["a"].head.port == 8090


def test_a_forwarded_port_on_loopback_is_not_this_machine() -> None:
    config = parse("nodes: {a: {address: local}, b: {address: '127.0.0.1:2201'}, c: {address: 127.0.0.1, port: 2202}}")
    assert len(config.nodes) == 3


def test_the_file_is_looked_for_in_order(tmp_path: Path) -> None:
    home, cwd = tmp_path / "home", tmp_path / "work"
    own = home / ".config" / "quarterdeck" / "fleet.yaml"
    own.parent.mkdir(parents=True)
    cwd.mkdir()
    env = {"HOME": str(home)}
    assert find(None, env, cwd) is None
    own.touch()
    assert find(None, env, cwd) == own
    (cwd / "fleet.yaml").touch()
    assert find(None, env, cwd) == cwd / "fleet.yaml"
    assert find(None, {**env, "QUARTERDECK_CONFIG": "~/other.yaml"}, cwd) == home / "other.yaml"
    assert find("given.yaml", {**env, "QUARTERDECK_CONFIG": "/other.yaml"}, cwd) == cwd / "given.yaml"
    assert find(None, {}, tmp_path) is None


def check(text: str) -> None:
    """A text gives a FleetConfig or ConfigErrors, and each problem is one line with a place."""
    told: tuple[str, ...] = ("fleet.yaml:",)
    try:
        assert isinstance(parse(text), FleetConfig)
    except ConfigErrors as error:
        told = error.problems
    assert told
    for line in told:
        assert line.isprintable(), ascii(line)
        assert line.startswith("fleet.yaml:")


@given(st.text(max_size=200))
def test_any_text_gives_a_configuration_or_sentences(text: str) -> None:
    check(text)


@given(st.text(alphabet=" \n\t:-[]{}&*!<>|?#,'\"%@`~ab01", max_size=80))
def test_any_punctuation_gives_a_configuration_or_sentences(text: str) -> None:
    check(text)


KEYS = st.sampled_from(sorted({
    *(f.name for record in (FleetConfig, WorkerConfig) for f in dataclasses.fields(record)), "a", "b", "address",
    "addresses", "head", "workers", "file", "kv", "split", "listen", "identity_file", "jump", "rpc_address"}))
LEAVES = st.one_of(st.none(), st.booleans(), st.integers(-5, 70000), st.floats(), st.text(max_size=8), st.dates(),
                   st.sampled_from(["local", "a", "24GiB", "on", "0o22", "1e3", "10.0.0.1", "fe80::1", "q8_0", "head"]))
TREES = st.recursive(LEAVES, lambda inner: st.one_of(
    st.lists(inner, max_size=4), st.dictionaries(st.one_of(KEYS, st.text(max_size=4)), inner, max_size=6)),
    max_leaves=30)


@settings(max_examples=200)
@given(st.dictionaries(st.sampled_from(["nodes", "models", "model", "rpc", "discovery", "ssh", "proxy", "refresh"]),
                       TREES))
def test_any_tree_of_values_gives_a_configuration_or_sentences(tree: dict[str, object]) -> None:
    check(yaml.safe_dump(tree, allow_unicode=True))


@settings(max_examples=50)
@given(st.binary(max_size=60))
def test_any_bytes_give_a_configuration_or_sentences(data: bytes) -> None:
    with contextlib.suppress(marks.NotReadable):
        check(marks.decode(data))


def test_the_parser_without_libyaml_reads_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    config = parse(WHOLE)
    monkeypatch.setattr(marks, "_LOADER", yaml.SafeLoader)
    assert parse(WHOLE) == config
    for text in ("", "a: [", "a: \x07", "\ta", "a: &x [*x]", "a: *b"):
        problems(text)
