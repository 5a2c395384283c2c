"""What a real llama-server says that it allocates, by device, on this machine and on workers of its own."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fleet.models.gguf import GgufHeader, read_header
from fleet.models.memory import Ask, compute_bytes, host_bytes, kv_by_layer, output_bytes, weight_bytes
from fleet.nodes.local import LocalTransport
from fleet.runtimes.head_lines import body
from fleet.runtimes.head_log import HeadLog, LoadPhase
from fleet.runtimes.rpc_wire import WorkerStatus, ask_worker

LOOPBACK = "127.0.0.1"
HOST = ""                      # the head's own memory, among places
MIB = 1024 * 1024
_OUTPUT = re.compile(r"^llama_context: +\S+ +output buffer size = +([\d.]+) MiB$")
_PROJECTOR = re.compile(r"^reserve_compute_meta: +\S+ compute buffer size = +([\d.]+) MiB$")
_REPACKED = re.compile(r"^load_tensors: +\S+_REPACK model buffer size = +([\d.]+) MiB$")


@dataclass
class Measured:
    """Bytes by place: the endpoint of a worker, or `HOST`."""

    model: dict[str, int] = field(default_factory=dict)
    kv: dict[str, int] = field(default_factory=dict)
    compute: dict[str, int] = field(default_factory=dict)
    output: int = 0            # what the head holds of logits
    repacked: int = 0          # weights of the head that it copied into another order
    projector: int = 0         # what pictures are computed with


@dataclass(frozen=True)
class Figure:
    """One figure that was estimated and measured, in bytes."""

    place: str                 # "head", "worker 1" ...
    what: str                  # "weights", "cache", "compute", "logits"
    estimated: int
    measured: int

    @property
    def close(self) -> bool:
        """Within 5 % or 32 MiB."""
        return abs(self.estimated - self.measured) <= max(0.05 * self.measured, 32 * MIB)


def figures(header: GgufHeader, ask: Ask, workers: Sequence[str], split: Sequence[int],
            measured: Measured) -> list[Figure]:
    """Every figure of a load, estimated and measured. Without workers the head's processor has all layers."""
    ends = [sum(split[:number + 1]) for number in range(len(split))]
    held = {name: range(end - count, end) for name, end, count in zip(workers, ends, split, strict=True)}
    held[HOST] = range(0) if workers else range(header.n_layers + 1)
    cache, found = kv_by_layer(header, ask), []
    for place, layers in held.items():
        name = f"worker {list(workers).index(place) + 1}" if place else "head"
        weights = sum(weight_bytes(header, layer) for layer in layers)
        compute = compute_bytes(header, ask, layers)
        real = measured.model.get(place, 0)
        if not place:
            weights = header.input_bytes if workers else header.tensor_bytes
            compute = host_bytes(header, ask, layers) - header.input_bytes - output_bytes(header, ask)
            real -= measured.repacked        # a copy that just some processors make of just some types
            found.append(Figure(name, "logits", output_bytes(header, ask), measured.output))
        found += [Figure(name, "weights", weights, real),
                  Figure(name, "cache", sum(cache[layer] for layer in layers), measured.kv.get(place, 0)),
                  Figure(name, "compute", compute, measured.compute.get(place, 0))]
    return found


def flags_of(ask: Ask) -> list[str]:
    """An `Ask` in llama-server's options."""
    return ["-c", str(ask.context), "-np", str(ask.slots), "-ctk", ask.type_k, "-ctv", ask.type_v,
            "-fa", "on" if ask.flash_attention else "off", "-ub", str(ask.ubatch),
            "-kvu" if ask.unified else "-no-kvu", *(["--swa-full"] if ask.swa_full else [])]


async def measure(folder: str, model: Path, ask: Ask, *, workers: Sequence[str] = (),
                  split: Sequence[int] = (), more: Sequence[str] = ()) -> Measured:
    """Start a head, read its log until it serves, end it.

    Args:
        folder: of llama.cpp's programs.
        model: the file.
        ask: what to run it with.
        workers: host:port of each.
        split: layers of each, the output layer counted.
        more: further options of llama-server.

    Raises:
        AssertionError: it ended before it served; with the end of its log.
    """
    remote = ["--rpc", ",".join(workers), "-ngl", "99", "-ts", ",".join(map(str, split))] if workers else []
    argv = [f"{folder}/llama-server", *remote, "-m", str(model), "--host", LOOPBACK, "--port", str(free_port()),
            "-lv", "4", "-fit", "off", "--no-warmup", "--no-webui", "-t", "1", *flags_of(ask), *more]
    process = await asyncio.create_subprocess_exec(
        *argv, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        env={"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": folder, "GGML_NO_BACKTRACE": "1"}, limit=1 << 20)
    log, measured, tail = HeadLog(), Measured(), []
    try:
        async with asyncio.timeout(120):
            while log.phase is not LoadPhase.READY:
                line = (await process.stdout.readline()).decode("utf-8", "replace")
                assert line, "llama-server ended: " + "".join(tail[-15:])
                tail.append(line)
                log.feed(line)
                if match := _OUTPUT.match(body(line)):
                    measured.output = max(measured.output, int(float(match[1]) * MIB))
                if match := _PROJECTOR.match(body(line)):
                    measured.projector = int(float(match[1]) * MIB)
                if match := _REPACKED.match(body(line)):
                    measured.repacked += int(float(match[1]) * MIB)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
    for place, sizes in log.buffers.items():
        at = place.endpoint or HOST
        for kind in ("model", "kv", "compute"):
            held = getattr(measured, kind)
            held[at] = held.get(at, 0) + getattr(sizes, kind)
    return measured


def free_port() -> int:
    """A port of the loopback that nobody listens on."""
    with socket.socket() as sock:
        sock.bind((LOOPBACK, 0))
        return sock.getsockname()[1]


@asynccontextmanager
async def worker(folder: str) -> AsyncIterator[str]:
    """A worker on this machine's processor; its host:port. SIGPIPE is ignored, so that it outlives its heads."""
    node, port = LocalTransport("here"), free_port()
    process = await asyncio.create_subprocess_exec(
        f"{folder}/ggml-rpc-server", "-H", LOOPBACK, "-p", str(port), "-d", "CPU", "-t", "1",
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        env={"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": folder},
        preexec_fn=lambda: signal.signal(signal.SIGPIPE, signal.SIG_IGN))
    try:
        async with asyncio.timeout(60):
            status = WorkerStatus.REFUSED
            while status is not WorkerStatus.OK:
                status = (await ask_worker(lambda: node.open_connection(LOOPBACK, port))).status
                await asyncio.sleep(0.05)
        yield f"{LOOPBACK}:{port}"
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def header_of(path: Path) -> GgufHeader:
    """The header of a file of this machine."""
    with path.open("rb") as file:
        async def read(offset: int, length: int) -> bytes:
            return os.pread(file.fileno(), length, offset)

        return await read_header(read, os.fstat(file.fileno()).st_size)
