"""How the engine talks to a node: one protocol, a local and an SSH form.

Whatever runs on a node is a POSIX sh script given on the standard input of `/bin/sh` (`shell.py` says
how): no login shell ever reads it, so fish, csh, rc files that print and non-login PATHs do not
matter. Values
reach a script as positional parameters through `with_arguments`, the one place where a value meets
a shell, and it only ever quotes.
"""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

OUTPUT_LIMIT = 4 * 1024 * 1024   # bytes of stdout that we are willing to hold for one command


@dataclass(frozen=True, slots=True)
class Completed:
    """What a script did. `status` is the shell's (128 + signal), or None when the link broke first."""

    status: int | None
    stdout: bytes
    stderr: bytes
    seconds: float          # wall time, as seen from here
    truncated: bool = False  # there was more stdout than the limit

    @property
    def text(self) -> str:
        """stdout as text; bytes that are no UTF-8 are replaced."""
        return self.stdout.decode("utf-8", "replace")

    @property
    def error_text(self) -> str:
        """stderr as text."""
        return self.stderr.decode("utf-8", "replace")


class ByteStream(Protocol):
    """A two-way connection, as `asyncio.open_connection` gives one."""

    async def read(self, n: int) -> bytes: ...
    async def readexactly(self, n: int) -> bytes: ...
    async def write(self, data: bytes) -> None: ...
    def write_eof(self) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None:
        """End it at once; with RST where the link allows that."""


class Forward(Protocol):
    """A listening port somewhere whose connections come out somewhere else."""

    port: int
    async def close(self) -> None: ...


class Transport(Protocol):
    """One node. Every call has a timeout and raises a `NodeError` when the node does not answer."""

    name: str
    is_local: bool

    async def run(self, script: str, arguments: Sequence[str] = (), *, stdin: bytes = b"",
                  timeout: float = 10.0, limit: int = OUTPUT_LIMIT) -> Completed:
        """Run a POSIX sh script with `arguments` as $1, $2 ... to its end.

        With `stdin`, the script's own standard input is those bytes (they are carried after the
        script text; the transport takes care that the shell does not read them as script).
        """
        ...

    def lines(self, script: str, arguments: Sequence[str] = (), *, limit: int = 8192) -> AsyncIterator[str]:
        """Run a script that goes on (tail -f) and yield its lines, each cut at `limit` bytes.

        Closing the iterator ends the script on the node.
        """
        ...

    async def open_connection(self, host: str, port: int, *, timeout: float = 5.0) -> ByteStream:
        """A TCP connection made *from the node* to host:port.

        Raises `PortClosed` when it is refused (code "port-closed") or not taken within `timeout`
        ("port-silent"); a `NodeError` when the node itself does not answer.
        """
        ...

    async def read_file(self, path: str, offset: int, length: int, *, timeout: float = 10.0) -> bytes:
        """Bytes of a file on the node; fewer at its end. `FleetError` when it cannot be read."""
        ...

    async def close(self) -> None:
        """Let go of the connection; safe to repeat."""
        ...


def with_arguments(script: str, arguments: Sequence[str]) -> str:
    """The script with `set -- ...` before it, each argument single-quoted for POSIX sh.

    Raises:
        ValueError: an argument holds a NUL, which no shell can carry.
    """
    if any("\0" in argument for argument in arguments):
        raise ValueError("a NUL byte cannot be passed to a program")
    return f"set -- {' '.join(map(shlex.quote, arguments))}\n{script}" if arguments else f"set --\n{script}"
