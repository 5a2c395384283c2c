"""fleet.example.yaml is true: it loads, shows every key, and its defaults are the schema's."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from fleet.config import marks, proxy_section, sections
from fleet.config.experts_section import EXPERTS_KEYS
from fleet.config.load import load
from fleet.config.schema import (
    DiscoveryConfig,
    DrafterConfig,
    ExpertsConfig,
    FleetConfig,
    HeadConfig,
    ModelConfig,
    NodeConfig,
    ProxyConfig,
    ServingConfig,
    SpeculationConfig,
    SshConfig,
    UpstreamConfig,
    VllmConfig,
    WorkerConfig,
)
from fleet.config.serving_section import SERVING_KEYS
from fleet.config.speculation_section import DRAFTER_KEYS, SPECULATION_KEYS
from fleet.config.vllm_section import VLLM_KEYS
from fleet.proxy.exchange import HoldSettings, Limits, RepairSettings

EXAMPLE = Path(__file__).parents[2] / "fleet.example.yaml"
# What a record calls otherwise than the file does, or what is not written there at all.
WRITTEN_AS = {"kv_type_k": "kv", "kv_type_v": "kv", "local": "address", "name": "", "path": "", "absent": "",
              "spare": ""}
KEYS = {FleetConfig: sections.ROOT_KEYS, NodeConfig: sections.NODE_KEYS, WorkerConfig: sections.WORKER_KEYS,
        VllmConfig: VLLM_KEYS, ExpertsConfig: EXPERTS_KEYS,
        HeadConfig: sections.HEAD_KEYS, ModelConfig: sections.MODEL_KEYS, DiscoveryConfig: sections.DISCOVERY_KEYS,
        SshConfig: sections.SSH_KEYS, ServingConfig: SERVING_KEYS,
        ProxyConfig: proxy_section.PROXY_KEYS, UpstreamConfig: proxy_section.UPSTREAM_KEYS,
        SpeculationConfig: SPECULATION_KEYS, DrafterConfig: DRAFTER_KEYS,
        HoldSettings: proxy_section.HOLD_KEYS, Limits: proxy_section.LIMIT_KEYS,
        RepairSettings: proxy_section.REPAIR_KEYS}


def keys_of(value: marks.Value) -> set[str]:
    """All keys of a mapping, or of the mappings in a list."""
    items = value.items if isinstance(value, marks.Sequence) else [value]
    return {key for item in items if isinstance(item, marks.Mapping) for key in item.entries}


def written() -> dict[type, set[str]]:
    root = marks.read(EXAMPLE.read_text())
    assert isinstance(root, marks.Mapping)
    at = root.entries
    nodes = [node for node in at["nodes"].entries.values() if isinstance(node, marks.Mapping)]  # type: ignore[union-attr]
    models = list(at["models"].entries.values())  # type: ignore[union-attr]
    proxy = at["proxy"]
    assert isinstance(proxy, marks.Mapping) and "# keys_env:" in EXAMPLE.read_text()
    speculation = proxy.entries["upstreams"].entries["garage"].entries["speculation"]  # type: ignore[union-attr]
    return {
        FleetConfig: keys_of(root),
        NodeConfig: {key for node in nodes for key in keys_of(node)},
        WorkerConfig: {key for node in nodes if "workers" in node.entries for key in keys_of(node.entries["workers"])},
        HeadConfig: {key for node in nodes if "head" in node.entries for key in keys_of(node.entries["head"])},
        ModelConfig: {key for model in models for key in keys_of(model)},
        ExpertsConfig: {key for model in models if "experts" in model.entries
                        for key in keys_of(model.entries["experts"])},
        VllmConfig: {key for model in models if "vllm" in model.entries for key in keys_of(model.entries["vllm"])},
        DiscoveryConfig: keys_of(at["discovery"]), SshConfig: keys_of(at["ssh"]),
        ServingConfig: keys_of(at["serving"]),
        ProxyConfig: keys_of(proxy) | {"keys_env"},      # stands there as a comment: it excludes keys_file
        UpstreamConfig: {key for upstream in proxy.entries["upstreams"].entries.values() for key in keys_of(upstream)},
        SpeculationConfig: keys_of(speculation),
        DrafterConfig: {key for one in speculation.entries["drafters"].entries.values() for key in keys_of(one)},
        HoldSettings: keys_of(proxy.entries["hold"]), Limits: keys_of(proxy.entries["limits"]),
        RepairSettings: keys_of(proxy.entries["repair"]),
    }


def test_the_example_loads() -> None:
    config = load(EXAMPLE)
    assert set(config.nodes) == {"atlas", "bolt", "cove"} and set(config.models) == {"big", "small", "mixture", "wide"}
    assert config.nodes["bolt"].workers[0].env == {"GGML_RPC_DEBUG": "0"}


@pytest.mark.parametrize("record", list(KEYS), ids=lambda record: record.__name__)
def test_every_field_of_the_schema_is_shown_and_can_be_written(record: type) -> None:
    fields = {WRITTEN_AS.get(f.name, f.name) for f in dataclasses.fields(record)} - {""}
    assert fields <= written()[record], "fields that the example does not show"
    assert fields <= set(KEYS[record]), "fields that the loader does not read"


@pytest.mark.parametrize("record", [k for k in KEYS if k is not SshConfig], ids=lambda record: record.__name__)
def test_every_key_that_the_loader_knows_is_shown(record: type) -> None:
    missing = set(KEYS[record]) - written()[record]
    assert missing == set()


def test_the_defaults_that_the_example_tells_are_the_schemas() -> None:
    config, default = load(EXAMPLE), FleetConfig()
    assert (config.rpc, config.refresh, config.model_dirs, config.log_limit, config.rpc_cache_limit) == (
        default.rpc, default.refresh, default.model_dirs, default.log_limit, default.rpc_cache_limit)
    assert dataclasses.replace(config.proxy, keys_file="", upstreams={}, aliases={}, default_model="") == default.proxy
    tower, plain = config.proxy.upstreams["tower"], UpstreamConfig("tower", "")
    for name in ("weight", "let_it_finish", "connect_timeout", "first_byte_timeout", "stall_timeout"):
        assert getattr(tower, name) == getattr(plain, name)
    assert dataclasses.replace(config.proxy.upstreams["garage"].speculation, drafters={}) == SpeculationConfig()
    assert (config.ssh.known_hosts, config.ssh.connect_timeout, config.ssh.agent) == (
        default.ssh.known_hosts, default.ssh.connect_timeout, default.ssh.agent)
    assert dataclasses.replace(config.discovery, interfaces=()) == default.discovery
    assert config.nodes["atlas"].head.port == HeadConfig().port and config.nodes["atlas"].head.bind == HeadConfig().bind
