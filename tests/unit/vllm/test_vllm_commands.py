"""vLLM's command lines, held against the options of the real programs; its counters; its section of fleet.yaml."""

from __future__ import annotations

import json

import pytest

from fleet.config.load import ConfigErrors, parse
from fleet.config.schema import RuntimeName, VllmForm
from fleet.errors import PlanRefused
from fleet.model import Binary
from fleet.runtimes.binaries import build_label, same_build
from fleet.runtimes.vllm import (
    RAY_OPTIONS,
    SERVE_OPTIONS,
    VARIABLES,
    ServeRequest,
    StagePlace,
    ray_command,
    serve_command,
    speculation_of,
)
from fleet.runtimes.vllm_health import VllmMetrics, parse_vllm_metrics

from .two_nodes import DATA

REAL = json.loads(DATA.read_text())


def request(**changes: object) -> ServeRequest:
    return ServeRequest(**{"model": "/m", "name": "big", "host": "127.0.0.1", "port": 8000, "tensor": 2, "stages": 2,
                           "master": "10.0.0.2", **changes})


def options(words: tuple[str, ...], program: str) -> dict[str, str]:
    """Options and values as the real parser would cut them; one that it does not have fails."""
    known, found, index = REAL[program]["options"], {}, 0
    while index < len(words):
        if words[index].startswith("-"):
            kind = known[words[index]]
            found[words[index]] = words[index + 1] if kind == "value" else ""
            index += 2 if kind == "value" else 1
        else:
            index += 1
    return found


def test_every_option_and_variable_that_is_used_is_one_of_the_real_programs() -> None:
    assert set(SERVE_OPTIONS) == set(REAL["vllm"]["used"]) <= set(REAL["vllm"]["options"])
    assert set(RAY_OPTIONS) == set(REAL["ray"]["used"]) <= set(REAL["ray"]["options"])
    assert set(VARIABLES) == set(REAL["vllm"]["variables"])
    assert REAL["vllm"]["version"] and REAL["ray"]["version"]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_says_who_it_is_and_where_the_first_one_is(rank: int) -> None:
    command = serve_command("/v/vllm", request(context=8192, slots=4), StagePlace(rank, f"10.0.0.{rank + 2}", "eth0"))
    assert command.argv[:3] == ("/v/vllm", "serve", "/m")
    said = options(command.argv[3:], "vllm")
    assert set(said) <= set(SERVE_OPTIONS)
    assert (said["--nnodes"], said["--node-rank"]) == ("2", str(rank))
    assert (said["--master-addr"], said["--master-port"]) == ("10.0.0.2", "29501")
    assert (said["--tensor-parallel-size"], said["--pipeline-parallel-size"]) == ("2", "2")
    assert (said["--max-model-len"], said["--max-num-seqs"]) == ("8192", "4")
    assert ("--headless" in said) == (rank == 1) and ("--port" in said) == (rank == 0)
    assert command.env == {"VLLM_HOST_IP": f"10.0.0.{rank + 2}", "NCCL_SOCKET_IFNAME": "=eth0",
                           "GLOO_SOCKET_IFNAME": "eth0"}


@pytest.mark.parametrize("rank", [0, 1])
def test_a_node_of_ray_stays_in_the_foreground_and_joins_the_first(rank: int) -> None:
    command = ray_command("/v/ray", request(ray=True), StagePlace(rank, f"10.0.0.{rank + 2}", "eth0"))
    said = options(command.argv[2:], "ray")
    assert command.argv[:2] == ("/v/ray", "start") and set(said) <= set(RAY_OPTIONS)
    assert "--block" in said and said["--num-gpus"] == "2" and said["--node-ip-address"] == f"10.0.0.{rank + 2}"
    assert ("--head" in said) == (rank == 0)
    assert said.get("--address") == (None if rank == 0 else "10.0.0.2:6379")
    assert command.env["GLOO_SOCKET_IFNAME"] == "eth0"


def test_alone_nothing_of_the_network_is_said_and_uneven_layers_go_by_the_environment() -> None:
    alone = serve_command("/v/vllm", request(stages=1), StagePlace(0, "127.0.0.1"))
    assert not {"--nnodes", "--master-addr", "--distributed-executor-backend"} & set(options(alone.argv[3:], "vllm"))
    assert alone.env == {}
    uneven = serve_command("/v/vllm", request(partition="20,12", env={"NCCL_DEBUG": "INFO"}), StagePlace(0, "10.0.0.2"))
    assert uneven.env == {"VLLM_HOST_IP": "10.0.0.2", "VLLM_PP_LAYER_PARTITION": "20,12", "NCCL_DEBUG": "INFO"}


@pytest.mark.parametrize("argument", ["--api-key", "--api_key=x", "-tp", "--port", "--nnodes", "--master-addr=1.2.3.4"])
def test_what_has_a_place_of_its_own_is_refused_among_extra_args(argument: str) -> None:
    with pytest.raises(PlanRefused) as caught:
        serve_command("/v/vllm", request(extra_args=(argument, "4")), StagePlace(0, "10.0.0.2"))
    assert caught.value.code == "extra-args" and caught.value.remedy


@pytest.mark.parametrize("changes", [{"model": "--config"}, {"name": "-x"}, {"port": 0}])
def test_a_name_that_would_be_an_option_and_a_port_that_is_none_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(PlanRefused):
        serve_command("/v/vllm", request(**changes), StagePlace(0, "10.0.0.2"))


def test_speculation_is_found_under_every_name_that_vllm_has_for_it() -> None:
    assert speculation_of(("--speculative-config", "{}")) == ("speculative-config",)
    assert speculation_of(("-sc={}", "--spec-method=mtp", "--spec_tokens", "3")) == ("sc", "spec-method", "spec-tokens")
    assert speculation_of(("--specialize-active-lora", "--max-num-batched-tokens", "8")) == ()


def test_counters_of_several_engines_are_put_together_and_nonsense_is_left_out() -> None:
    text = ('# HELP vllm:num_requests_running n\nvllm:num_requests_running{engine="0"} 2.0\n'
            'vllm:num_requests_running{engine="1"} 1.0\nvllm:num_requests_waiting{engine="0"} 4\n'
            'vllm:kv_cache_usage_perc{engine="0"} 0.25\nvllm:kv_cache_usage_perc{engine="1"} 0.5\n'
            'vllm:generation_tokens_total{engine="0"} 1e3\nvllm:prompt_tokens_total{engine="0"} nan\n'
            'vllm:generation_tokens_total{engine="1"} -4\nvllm:num_requests_running nonsense\n')
    assert parse_vllm_metrics(text) == VllmMetrics(3, 4, 0.5, None, 1000.0)
    assert parse_vllm_metrics("") == parse_vllm_metrics("<html>") == VllmMetrics()


def test_a_model_says_that_vllm_serves_it_and_how() -> None:
    config = parse("nodes: {atlas: {address: local}, bolt: {address: 10.0.0.3}}\n"
                   "models:\n  big: {file: org/model, runtime: vllm, head: atlas, workers: [bolt],\n"
                   "        vllm: {form: ray, tensor_parallel: 2, layers: [20, 12], ray_port: 6380,\n"
                   "               program: /opt/vllm/bin/vllm, env: {NCCL_DEBUG: INFO}}}\n")
    model = config.models["big"]
    assert model.runtime is RuntimeName.VLLM and model.vllm.form is VllmForm.RAY
    assert (model.vllm.tensor_parallel, model.vllm.layers, model.vllm.ray_port) == (2, (20, 12), 6380)
    assert model.vllm.program == "/opt/vllm/bin/vllm" and dict(model.vllm.env) == {"NCCL_DEBUG": "INFO"}
    assert parse("models: {small: {file: a.gguf}}").models["small"].runtime is RuntimeName.LLAMA


@pytest.mark.parametrize(("model", "says"), [
    ("{file: m, runtime: vllm, kv: q8_0}", "vLLM knows no `kv`"),
    ("{file: m, runtime: vllm, split: {a: 1}}", "vLLM knows no `split`"),
    ("{file: m, vllm: {form: ray}}", "this model is not served by vLLM"),
    ("{file: m, runtime: vllm, vllm: {form: slurm}}", "slurm"),
    ("{file: m, runtime: vllm, vllm: {program: vllm}}", "is no whole path"),
    ("{file: m, runtime: vllm, vllm: {tensor: 2}}", "tensor"),
    ("{file: m, runtime: ollama}", "ollama"),
])
def test_settings_that_do_not_fit_are_told_with_their_line(model: str, says: str) -> None:
    with pytest.raises(ConfigErrors) as caught:
        parse(f"nodes: {{a: {{address: local}}}}\nmodels:\n  big: {model}\n")
    assert any(says in problem and ":3" in problem for problem in caught.value.problems), caught.value.problems


def test_versions_are_builds() -> None:
    one, other = Binary("/v/vllm", "vllm", version="0.33.0"), Binary("/v/vllm", "vllm", version="0.32.1")
    assert same_build(one, one) is True and same_build(one, other) is False
    assert same_build(one, Binary("/v/vllm", "vllm")) is None
    assert build_label(one) == "0.33.0"
