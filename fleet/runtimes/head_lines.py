"""What single lines of a llama-server's log mean. Pure; from before the prefixed format to b11434.

Lines have come in two forms: `load_tensors: offloaded ...` and, later, the same behind a prefix of
time and level (`0.00.807.378 I load_tensors: offloaded ...`), some with a component (`srv  `) too.
Errors of ggml itself have no prefix in either.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

MIB = 1024 * 1024

_COLOUR = re.compile(r"\x1b\[[0-9;]{0,16}m")
_PREFIX = re.compile(r"^(?:\d{1,6}\.\d\d\.\d{3}\.\d{3} )?(?:[DIWE] )?(?:(?:srv|cmn|slot|spec) {1,12})?")


def body(line: str) -> str:
    """A line without colours, time, level and component."""
    plain = _COLOUR.sub("", line) if "\x1b" in line else line
    prefix = _PREFIX.match(plain)
    return plain[prefix.end() if prefix else 0:].rstrip()


# ---------------------------------------------------------------------------------------------
# What goes wrong


class FaultKind(StrEnum):
    """What a line complains of."""

    MISMATCH = "protocol mismatch"        # subject: the worker's protocol
    CONNECT = "worker not reached"        # subject: host:port
    CRASH = "worker crashed"
    MEMORY = "out of memory"              # subject: the device, as the log names it
    BIND = "port taken"                   # subject: host:port, or "" where it is not said
    HOST = "bad host"                     # subject: what was given
    DEVICE = "unknown device"             # subject: the device
    DEVICES = "too many devices"
    NO_FILE = "no model file"             # subject: the path
    NOT_GGUF = "no GGUF"
    MODEL = "model not loaded"            # subject: why, in llama.cpp's words
    FLAG = "unknown option"               # subject: the option
    VALUE = "bad value"                   # subject: the option and what is wrong
    LIBRARY = "library missing"           # subject: the library
    ASSERT = "assertion"                  # subject: the condition
    GPU = "GPU error"                     # subject: the driver's words


@dataclass(frozen=True, slots=True)
class Fault:
    """One complaint of a log."""

    kind: FaultKind
    subject: str = ""
    line: str = ""


_FAULTS: tuple[tuple[FaultKind, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(pattern)) for kind, pattern in (
        (FaultKind.MISMATCH, r"^RPC server version mismatch: ([\d.]{1,20})"),
        (FaultKind.CONNECT, r"(?:^|: )(?:Failed to connect to|RPC handshake failed for) (\S+)"),
        (FaultKind.CONNECT, r"Failed to parse endpoint:? (\S+)"),
        (FaultKind.CRASH, r"Remote RPC server crashed or returned malformed response()"),
        (FaultKind.DEVICES, r"GGML_ASSERT\(n_backends <= GGML_SCHED_MAX_BACKENDS\) failed()"),
        (FaultKind.DEVICES, r"(got \d+ input configs, but system only has \d+ devices)"),
        (FaultKind.ASSERT, r"(?:^|: )GGML_ASSERT\((.{1,200})\) failed"),
        (FaultKind.MEMORY, r"failed to allocate (\S+) buffer of size \d+"),
        (FaultKind.MEMORY, r"unable to allocate (\S+) buffer"),
        (FaultKind.MEMORY, r"allocating [\d.]+ MiB on (device \d+): .*out of memory"),
        (FaultKind.MEMORY, r"(?:CUDA|ROCm|HIP) error: out of memory()"),
        (FaultKind.MEMORY, r"ErrorOutOfDeviceMemory()|std::bad_alloc()"),
        (FaultKind.GPU, r"((?:CUDA|ROCm|HIP) error: .{1,120})"),
        (FaultKind.BIND, r"couldn't bind HTTP server socket, hostname: (\S+), port: (\d+)"),
        (FaultKind.BIND, r"^Failed to create server socket()"),
        (FaultKind.HOST, r"^Invalid host address: (\S*)"),
        (FaultKind.DEVICE, r"invalid device: (\S+)"),
        (FaultKind.DEVICE, r"^error: unknown device: (\S+)"),
        (FaultKind.NO_FILE, r"failed to open GGUF file '(.{1,512})' \("),
        (FaultKind.NOT_GGUF, r"invalid magic characters(?:: '(.{1,16}?)')?"),
        (FaultKind.MODEL, r"error loading model: (.{1,300})"),
        (FaultKind.FLAG, r"^error: (?:invalid|unknown) argument: (\S+)"),
        (FaultKind.VALUE, r"^error while handling argument (.{1,200})"),
        (FaultKind.LIBRARY, r"error while loading shared libraries: ([^\s:]+)"),
        (FaultKind.LIBRARY, r"Library not loaded: (\S+)"),
    ))


# Words of which every complaint above has one: most lines have none, and a log may have 16 MB of them.
_COMPLAINTS = ("failed", "error", "mismatch", "crashed", "input configs", "unable", "out of memory", "outofdevice",
               "bad_alloc", "couldn't", "invalid", "not loaded")


def fault_of(text: str) -> Fault | None:
    """What a line (its `body`) complains of, None for all others."""
    words = text.lower()
    if not any(word in words for word in _COMPLAINTS):
        return None
    for kind, pattern in _FAULTS:
        if match := pattern.search(text):
            return Fault(kind, ":".join(group for group in match.groups() if group)[:512], text[:300])
    return None


# ---------------------------------------------------------------------------------------------
# Where things are put


@dataclass(frozen=True, slots=True)
class BufferName:
    """A place that buffers are in: a device of the head, or one of a worker by its index there."""

    device: str               # "CPU", "CUDA0"; of a worker its number within that worker, "0"
    endpoint: str = ""        # host:port of the worker, "" on the head


@dataclass(frozen=True, slots=True)
class Buffer:
    """One "... buffer size" line."""

    place: BufferName
    use: str                  # "model", "kv", "compute"
    bytes: int


_BUFFER = re.compile(r"^[\w~]{1,60}: +(\S{1,100}) +(model|KV|RS|compute) buffer size *= *([\d.]{1,16}) MiB$")
_OLD_BUFFER = re.compile(r"^llm_load_tensors: +(\S{1,100})()? +buffer size *= *([\d.]{1,16}) MiB$")
_REMOTE = re.compile(r"RPC(\d{1,3})\[([^\[\]\s]{1,80}:\d{1,5})\]")
_USES = {"model": "model", "": "model", "KV": "kv", "RS": "kv", "compute": "compute"}


def buffer_of(text: str) -> Buffer | None:
    """The buffer that a line tells of.

    A worker's device is named by its index within that worker and the worker's address: the second
    worker's only device is `RPC1` to the user and logs as `RPC0[127.0.0.1:50231]`.
    """
    match = _BUFFER.match(text) or _OLD_BUFFER.match(text)
    if match is None:
        return None
    try:
        size = int(float(match[3]) * MIB)
    except ValueError:
        return None
    if remote := _REMOTE.match(match[1]):
        place = BufferName(remote[1], remote[2])
    else:
        place = BufferName(_local_device(match[1]))
    return Buffer(place, _USES[match[2] or ""], size)


def _local_device(name: str) -> str:
    """`CPU_Mapped`, `CPU_REPACK` and the pinned `CUDA_Host` are main memory; `MTL0_Mapped` is `MTL0`."""
    if name.endswith("Host"):
        return "CPU"
    return re.sub(r"_(?:Mapped|Private|REPACK|AARCH64|AMX|KLEIDIAI|[A-Z]{2,12})$", "", name)


@dataclass(frozen=True, slots=True)
class UsedDevice:
    """A "using device" line: the head's own name of it, and for a worker's its address."""

    name: str                 # "RPC1", "CUDA0"
    endpoint: str = ""
    label: str = ""
    free: int = 0             # bytes


_USING = re.compile(r"^[\w~]{1,60}: using device (\S{1,40}) \((.{1,200}?)\) .{0,80}- (\d{1,9}) MiB free")
_ENDPOINT = re.compile(r"[^\s\[\]]{1,80}:\d{1,5}")


def used_device_of(text: str) -> UsedDevice | None:
    """The device that a line says is used."""
    match = _USING.match(text)
    if match is None:
        return None
    remote = match[1].startswith("RPC") and _ENDPOINT.fullmatch(match[2])
    return UsedDevice(match[1], match[2] if remote else "", match[2], int(match[3]) * MIB)


# ---------------------------------------------------------------------------------------------


class Lines:
    """Cuts text that comes in pieces into lines. Of a line beyond `limit` characters the rest is dropped."""

    def __init__(self, limit: int = 4096) -> None:
        self.part = ""        # the unfinished line
        self._limit = limit

    def feed(self, text: str) -> Iterator[str]:
        """The lines that `text` ends."""
        *ends, rest = text.split("\n")
        for end in ends:
            line = self.part + end[:max(0, self._limit - len(self.part))]
            self.part = ""
            yield line.rstrip("\r")
        self.part += rest[:max(0, self._limit - len(self.part))]
