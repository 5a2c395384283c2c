"""How vLLM is started on several machines: by itself (multiprocessing) or over Ray. Pure.

Options as vLLM 0.33.0 and Ray 2.60.0 have them; `tests/bench/vllm_flags.py` compares them with an installed one. They
are not read from the program's own `--help` at run time, as llama.cpp's are: importing vLLM takes a node many seconds
of processor time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fleet.errors import PlanRefused
from fleet.runtimes.command import Command, checked_port

# Everything that is put on a command line here.
SERVE_OPTIONS = ("--served-model-name", "--host", "--port", "--tensor-parallel-size", "--pipeline-parallel-size",
                 "--distributed-executor-backend", "--nnodes", "--node-rank", "--master-addr", "--master-port",
                 "--headless", "--max-model-len", "--max-num-seqs")
RAY_OPTIONS = ("--head", "--address", "--port", "--node-ip-address", "--num-gpus", "--block", "--include-dashboard",
               "--disable-usage-stats")
VARIABLES = ("VLLM_HOST_IP", "VLLM_PP_LAYER_PARTITION", "VLLM_API_KEY")

# The key is read where vLLM runs, and stands neither on its command line nor in a pid file.
WITH_KEY = 'IFS= read -r VLLM_API_KEY <"$1" || [ -n "$VLLM_API_KEY" ] || exit 66; export VLLM_API_KEY; shift; exec "$@"'

_OURS = {
    "--api-key": "Keys never stand on a command line: name a file as `api_key_file:` of the node's head.",
    "--host": "Where it listens is `bind:` of the node's head.", "--port": "Its port is `port:` of the node's head.",
    "--served-model-name": "The name is the model's own in fleet.yaml.",
    "--nnodes": "Nodes are named by `head:` and `workers:` of the model.",
    "-n": "Nodes are named by `head:` and `workers:` of the model.",
    "--node-rank": "Ranks follow from the order of `workers:`.", "-r": "Ranks follow from the order of `workers:`.",
    "--master-addr": "It follows from the head's address.", "--master-port": "Say `master_port:` under `vllm:`.",
    "--headless": "It follows from the rank.",
    "--tensor-parallel-size": "Say `tensor_parallel:` under `vllm:`.", "-tp": "Say `tensor_parallel:` under `vllm:`.",
    "--pipeline-parallel-size": "Stages are the nodes: `workers:` of the model.",
    "-pp": "Stages are the nodes: `workers:` of the model.",
    "--distributed-executor-backend": "Say `form: mp` or `form: ray` under `vllm:`.",
    "--max-model-len": "Say `context:` of the model.", "--max-num-seqs": "Say `slots:` of the model.",
}


@dataclass(frozen=True, slots=True)
class StagePlace:
    """One node of the pipeline, as the commands need it."""

    rank: int
    address: str                   # that the other nodes reach it at
    interface: str = ""            # that has this address; "" = not known, nothing is pinned


@dataclass(frozen=True, slots=True)
class ServeRequest:
    """What is served and how it is spread."""

    model: str                     # a folder on every node, or a name on the Hugging Face hub
    name: str                      # that clients ask for
    host: str
    port: int
    tensor: int
    stages: int
    ray: bool = False
    master: str = ""               # address of rank 0
    master_port: int = 29501
    ray_port: int = 6379
    partition: str = ""            # layers a stage, "20,12"
    context: int | None = None     # tokens
    slots: int | None = None       # requests at once
    api_key_file: str = ""         # path on the head
    extra_args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


def serve_command(program: str, request: ServeRequest, place: StagePlace) -> Command:
    """`vllm serve` on one node: rank 0 listens for clients, the others are headless.

    Raises:
        PlanRefused: extra_args have what has a place of its own, a port is none, a name looks like an option.
    """
    if request.model.startswith("-") or request.name.startswith("-"):
        raise PlanRefused(f"{request.model[:80]!r} as {request.name[:80]!r} cannot be a model's name: it would be "
                          "taken for an option.", "Give it a path or another name.", code="bad-model")
    words = [program, "serve", request.model, "--served-model-name", request.name]
    if place.rank == 0:
        words += ["--host", request.host, "--port", checked_port(request.port)]
    words += ["--tensor-parallel-size", str(request.tensor), "--pipeline-parallel-size", str(request.stages)]
    if request.stages > 1:
        words += ["--distributed-executor-backend", "ray" if request.ray else "mp"]
        if not request.ray:
            words += ["--nnodes", str(request.stages), "--node-rank", str(place.rank), "--master-addr", request.master,
                      "--master-port", checked_port(request.master_port)]
            words += ["--headless"] if place.rank else []
    if request.context:
        words += ["--max-model-len", str(request.context)]
    if request.slots is not None:
        words += ["--max-num-seqs", str(request.slots)]
    words += _extra(request.extra_args)
    if request.api_key_file and place.rank == 0:
        words = ["/bin/sh", "-c", WITH_KEY, "sh", request.api_key_file, *words]
    return Command(tuple(words), {**_env(request, place), **request.env})


def ray_command(program: str, request: ServeRequest, place: StagePlace) -> Command:
    """`ray start` on one node: the head's, or one that joins it. It stays in the foreground, to be a service."""
    words = [program, "start", "--node-ip-address", place.address, "--num-gpus", str(request.tensor)]
    if place.rank == 0:
        words += ["--head", "--port", checked_port(request.ray_port), "--include-dashboard", "false"]
    else:
        words += ["--address", f"{request.master}:{checked_port(request.ray_port)}"]
    words += ["--disable-usage-stats", "--block"]
    return Command(tuple(words), {**_env(request, place), **request.env})


def _env(request: ServeRequest, place: StagePlace) -> dict[str, str]:
    """One network interface for all that is said between nodes: the first that NCCL or Gloo finds can be a bridge."""
    env: dict[str, str] = {}
    if request.stages > 1:
        env["VLLM_HOST_IP"] = place.address
        if place.interface:
            env["NCCL_SOCKET_IFNAME"] = f"={place.interface}"     # "=": just this one, not all that begin so
            env["GLOO_SOCKET_IFNAME"] = place.interface
        if request.ray:
            env["RAY_ADDRESS"] = f"{request.master}:{request.ray_port}"
        if request.partition:
            env["VLLM_PP_LAYER_PARTITION"] = request.partition
    return env


def _extra(arguments: Sequence[str]) -> list[str]:
    for argument in arguments:
        name = argument.partition("=")[0].replace("_", "-")       # vLLM takes either
        if instead := _OURS.get(name):
            raise PlanRefused(f"extra_args may not have {name}.", instead, code="extra-args")
    return list(arguments)


def speculation_of(arguments: Sequence[str]) -> tuple[str, ...]:
    """What was asked of speculation, by the options that vLLM has for it; () = nothing."""
    names = [argument.partition("=")[0].replace("_", "-") for argument in arguments]
    asked = [name.lstrip("-") for name in names if name.startswith(("--speculative", "--spec-")) or name == "-sc"]
    return tuple(dict.fromkeys(asked))
