"""How a worker (`ggml-rpc-server`) is started."""

from __future__ import annotations

from ipaddress import AddressValueError, IPv4Address

from fleet.config.schema import WorkerConfig
from fleet.errors import PlanRefused
from fleet.model import Binary
from fleet.runtimes.binaries import Flags
from fleet.runtimes.command import Command, CommandLine, checked_devices, checked_port

METAL = "MTL0"

_OURS = {
    "--host": "Where a worker listens is `rpc_address:` of its node.",
    "--port": "A worker's port is its `port:`.",
    "--device": "A worker's devices are its `devices:`.",
    "--threads": "A worker's threads are its `threads:`.",
    "--cache": "A worker's tensor cache is its `cache:`.",
}


def worker_command(binary: Binary, flags: Flags, config: WorkerConfig, *, bind: str, cores: int, workers_on_node: int,
                   os: str) -> Command:
    """The command line of one worker.

    It has to be started with SIGPIPE ignored: a client that goes away before it read its answer ends
    a worker otherwise (9 of 9 times, three builds).

    Args:
        binary: the ggml-rpc-server on the node.
        flags: from that binary's own --help.
        config: what fleet.yaml says of this worker.
        bind: IPv4 address that it listens on.
        cores: processors of the node; 0 = not known, then the server chooses.
        workers_on_node: how many workers share those.
        os: as `uname -s` says ("Linux", "Darwin").

    Raises:
        PlanRefused: an address, device, port or option that this binary cannot take.
    """
    line = CommandLine(binary, flags)
    line.need(("-H", "--host"), checked_bind(bind), asked="bind one address")
    line.need(("-p", "--port"), checked_port(config.port), asked="listen on a given port")
    devices = checked_devices(config.devices or ((METAL,) if os == "Darwin" else ()))
    if config.devices:
        line.need(("-d", "--device"), ",".join(devices), asked="be restricted to devices")
    elif devices:
        line.wish(("-d", "--device"), ",".join(devices))   # a CPU device beside Metal would upset the split
    threads = config.threads or (max(1, cores // max(1, workers_on_node)) if cores > 0 else None)
    if threads is not None:                                # its own default is half the cores
        line.wish(("-t", "--threads"), str(threads))
    if config.cache:
        line.need(("-c", "--cache"), asked="keep tensors on its disk")
    line.extra(config.extra_args, ours=_OURS)
    return line.done(config.env)


def checked_bind(address: str) -> str:
    """The address as the server takes it: an IPv4 literal (it reads it with inet_addr, names and IPv6 fail).

    Raises:
        PlanRefused: not one, or one that would open the worker, which has no authentication, to everybody.
    """
    try:
        literal = IPv4Address(address)
    except AddressValueError:
        raise PlanRefused(
            f"A worker cannot bind {address[:80]!r}: ggml-rpc-server takes an IPv4 address only, no name and no IPv6.",
            "Name the node's IPv4 address as `rpc_address:`, or use `rpc: tunnel`.", code="bad-bind") from None
    if literal.is_unspecified or literal.is_multicast or literal == IPv4Address("255.255.255.255"):
        raise PlanRefused(
            f"A worker is not bound to {address}: it has no authentication of any kind.",
            "Give the one address that the head uses as `rpc_address:`, or use `rpc: tunnel`.", code="bad-bind")
    return str(literal)
