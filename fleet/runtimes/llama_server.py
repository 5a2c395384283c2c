"""How a head (`llama-server`) is started, and what it calls its workers' devices."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fleet.errors import PlanRefused
from fleet.model import Binary
from fleet.runtimes.binaries import Flags
from fleet.runtimes.command import Command, CommandLine, checked_devices, checked_port

MOST_SHARES = 15          # -ts with a 16th value is rejected; 16 remote devices and the CPU trip an assert
ALL_LAYERS = 999          # -ngl: more than any model has, and a number in every build

_LOG_PLACEMENT = "4"      # buffer sizes by device are printed from -lv 4 on, nothing below
_ENDPOINT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*:\d{1,5}")
_OURS = {
    "--api-key": "Keys never stand on a command line: put them in a file of mode 0600 and name it as `api_key_file:`.",
    "--hf-token": "Tokens never stand on a command line: put it into `env:` of the node's head as HF_TOKEN.",
    "--host": "Where the head listens is `bind:` of the node's head.",
    "--port": "The head's port is `port:` of the node's head.",
    "--model": "The model is the `file:` of a model in fleet.yaml.",
    "--rpc": "Workers are named by node: `workers:` of the model.",
    "--device": "Devices follow from the workers; `split:` of the model says how much each gets.",
    "--tensor-split": "Shares are `split:` of the model.",
    "--api-key-file": "The key file is `api_key_file:` of the node's head.",
}


@dataclass(frozen=True, slots=True)
class HeadRequest:
    """What a head is to serve, and how. None and "" leave the choice to llama-server."""

    model: str                                   # path on the head; the first shard of several
    alias: str = ""
    host: str = "127.0.0.1"
    port: int = 8080
    endpoints: tuple[str, ...] = ()              # host:port of the workers, in order
    devices: tuple[str, ...] = ()                # in the order of the split: "RPC0", "RPC1", "CUDA0"
    tensor_split: tuple[float, ...] = ()         # one value a device; whole layer counts are exact
    gpu_layers: int | None = None                # output layer included; None = all
    context: int | None = None                   # tokens
    slots: int | None = None
    kv_type_k: str = ""
    kv_type_v: str = ""
    flash_attention: str = ""                    # "on", "off", "auto"
    threads: int | None = None
    metrics: bool = True
    wire: tuple[str, ...] = ()                   # chosen for the network (fleet.planning.wire); extra_args win
    api_key_file: str = ""                       # path on the head
    slot_save_path: str = ""                     # folder on the head where slots can be saved
    extra_args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


def remote_devices(counts: Sequence[int]) -> tuple[tuple[str, ...], ...]:
    """The head's names of its workers' devices, worker by worker.

    `RPC0`, `RPC1` ... are numbered through over all workers and their devices in `--rpc` order.

    Args:
        counts: devices of each worker, as its wire answer tells them.
    """
    names, first = [], 0
    for count in counts:
        names.append(tuple(f"RPC{number}" for number in range(first, first + count)))
        first += count
    return tuple(names)


def head_command(binary: Binary, flags: Flags, request: HeadRequest) -> Command:
    """The command line of a head.

    With workers, name `devices`: b10068 goes on without a worker that it could not reach, and then
    numbers the others anew; a device list that no longer fits makes it stop instead ("invalid
    device"), which is seen.

    Raises:
        PlanRefused: something that this binary cannot take.
    """
    line = CommandLine(binary, flags)
    _workers_and_devices(line, request)
    line.need(("-m", "--model"), request.model, asked="load a model")
    if request.alias:
        line.wish(("-a", "--alias"), request.alias.replace(",", " "))     # a comma would make two of it
    line.need(("--host",), request.host, asked="bind one address")
    line.need(("--port",), checked_port(request.port), asked="listen on a given port")
    # Without -ngl some builds leave the workers empty and close the connections at once.
    line.need(("-ngl", "--gpu-layers", "--n-gpu-layers"), str(_layers(request.gpu_layers)), asked="use other devices")
    _split(line, request)
    _context(line, request)
    if request.threads is not None:
        line.need(("-t", "--threads"), str(request.threads), asked="be given threads")
    if request.api_key_file:
        line.need(("--api-key-file",), request.api_key_file, asked="read its API keys from a file")
    if request.slot_save_path:
        line.wish(("--slot-save-path",), request.slot_save_path)
    if request.metrics:
        line.wish(("--metrics",))
    line.wish(("--slots",))                                               # off by default in older builds
    if request.endpoints:
        # The prompt cache saves a slot's KV in the head's memory at every new task, and its KV lives on the
        # workers: over RPC that is 120 small reads a request. Without the cache idle slots are kept as they are.
        line.wish(("-cram", "--cache-ram"), "0")
    line.wish(("-lv", "--log-verbosity", "--verbosity"), _LOG_PLACEMENT)
    line.extra(request.wire, ours=_OURS)
    line.extra(request.extra_args, ours=_OURS)
    # A crash would call gdb for a backtrace first, which holds the port for 2 to 4 s.
    return line.done(request.env, {"GGML_NO_BACKTRACE": "1"})


def _workers_and_devices(line: CommandLine, request: HeadRequest) -> None:
    """`--rpc` before `--device`: it connects while arguments are read, and names exist only after that."""
    for endpoint in request.endpoints:
        if not _ENDPOINT.fullmatch(endpoint):
            raise PlanRefused(f"{endpoint[:80]!r} is no worker address: llama-server takes IPv4:port or name:port.",
                              "Give the worker an IPv4 address, or use `rpc: tunnel`.", code="bad-endpoint")
    if len(set(request.endpoints)) != len(request.endpoints):
        raise PlanRefused(f"A worker is named twice: {', '.join(request.endpoints)}.",
                          "Name each worker once: llama-server would count it once and number the rest anew.",
                          code="bad-endpoint")
    most = max(len(request.endpoints), len(request.devices), len(request.tensor_split))
    if most > MOST_SHARES:
        raise PlanRefused(f"{most} devices are more than llama.cpp can split over: {MOST_SHARES}.",
                          "Name fewer workers.", code="too-many-devices")
    if request.endpoints:
        line.need(("--rpc",), ",".join(request.endpoints), asked="use workers (it was built without RPC)")
    if request.devices:
        line.need(("--device", "-dev"), ",".join(checked_devices(request.devices)), asked="be told its devices")


def _layers(gpu_layers: int | None) -> int:
    if gpu_layers is not None and gpu_layers < 0:
        raise PlanRefused(f"gpu_layers: {gpu_layers} layers cannot be placed.", "Give 0 or more.", code="bad-layers")
    return ALL_LAYERS if gpu_layers is None else gpu_layers


def _split(line: CommandLine, request: HeadRequest) -> None:
    if not request.tensor_split:
        return
    if request.devices and len(request.devices) != len(request.tensor_split):
        raise PlanRefused(f"{len(request.tensor_split)} shares do not fit {len(request.devices)} devices.",
                          "Give each device one share, 0 where it gets nothing.", code="bad-split")
    if any(not math.isfinite(share) or share < 0 for share in request.tensor_split) or not any(request.tensor_split):
        raise PlanRefused("Shares of a split are numbers of 0 or more, and one of them more than 0.",
                          "See `split:` of the model.", code="bad-split")
    line.need(("-ts", "--tensor-split"), ",".join(map(plain_number, request.tensor_split)), asked="split a model")


def plain_number(share: float) -> str:
    """A share without exponent and trailing zeros: "7", "0.25"."""
    return f"{share:.9f}".rstrip("0").rstrip(".")


def _context(line: CommandLine, request: HeadRequest) -> None:
    if request.context is not None:
        line.need(("-c", "--ctx-size"), str(request.context), asked="be given a context size")
    if request.slots is not None:
        line.need(("-np", "--parallel"), str(request.slots), asked="be given a number of slots")
    for names, kv_type in ((("-ctk", "--cache-type-k"), request.kv_type_k), (("-ctv", "--cache-type-v"),
                                                                               request.kv_type_v)):
        if kv_type:
            _check_choice(line, names, kv_type)
            line.need(names, kv_type, asked="be given a KV type")
    _flash_attention(line, request.flash_attention)
    if request.context is not None or request.tensor_split:
        # Fitting would refuse to change what is pinned anyway, and it trusts the free memory that a worker's
        # CPU device reports, which is always its total.
        name = line.flags.first("-fit", "--fit")
        if name is not None and line.flags.takes_value(name):
            line.wish((name,), "off")


def _flash_attention(line: CommandLine, wanted: str) -> None:
    """`-fa` takes a value in today's builds and is a switch in those of before."""
    if not wanted:
        return
    names = ("-fa", "--flash-attn")
    name = line.flags.first(*names)
    if name is None or line.flags.takes_value(name):
        _check_choice(line, names, wanted)
        line.need(names, wanted, asked="be told about flash attention")
    elif wanted == "on":
        line.wish(names)


def _check_choice(line: CommandLine, names: tuple[str, ...], value: str) -> None:
    name = line.flags.first(*names)
    flag = line.flags.find(name) if name else None
    if flag is not None and flag.choices and value not in flag.choices:
        raise PlanRefused(f"{line.program} does not take {value[:40]!r} for {name}.",
                          f"It takes {', '.join(flag.choices[:20])}.", code="bad-value")
