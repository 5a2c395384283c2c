"""This very machine, with the protocol of a remote one: the same scripts through the same /bin/sh."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, suppress

from fleet.errors import CommandTimeout, FleetError, ShellUnusable
from fleet.nodes import shell
from fleet.nodes.streams import TcpStream, connect_tcp
from fleet.nodes.transport import OUTPUT_LIMIT, Completed

_CHUNK = 64 * 1024
_LINGER = 1.0   # seconds that a shell's pipes may outlive it: a service that kept them open must not hold us up


class LocalTransport:
    """A `Transport` to this machine."""

    is_local = True

    def __init__(self, name: str) -> None:
        self.name = name

    async def run(self, script: str, arguments: Sequence[str] = (), *, stdin: bytes = b"",
                  timeout: float = 10.0, limit: int = OUTPUT_LIMIT) -> Completed:
        """Run a POSIX sh script to its end; see `Transport.run`."""
        started = time.monotonic()
        given = shell.request(script, arguments, stdin)
        process = await _ShellProcess.start(self.name)
        out, err = shell.Output(limit), shell.Output(shell.STDERR_LIMIT)
        try:
            async with asyncio.timeout(timeout):
                status = await process.through(given, out.feed, err.feed)
        except TimeoutError as error:
            raise CommandTimeout(
                f"A command on {self.name} was still running after {timeout:g} s and was ended.",
                "Check what keeps this machine busy (load, a disk or network mount that does not answer).") from error
        finally:
            await process.end()
        if out.begin.pid is None:
            raise unusable_shell(self.name, out.begin.said or err.begin.said)
        return Completed(status, bytes(out.data), bytes(err.data), time.monotonic() - started, out.truncated)

    async def lines(self, script: str, arguments: Sequence[str] = (), *, limit: int = 8192) -> AsyncIterator[str]:
        """Run a script that goes on and yield its lines; see `Transport.lines`."""
        given = shell.request(script, arguments)
        process = await _ShellProcess.start(self.name)
        begin, lines = shell.Beginning(), shell.Lines(limit)
        try:
            process.stdin.write(given)
            process.stdin.close()
            while data := await process.stdout.read(_CHUNK):
                for line in lines.feed(begin.feed(data)):
                    yield line
            for line in lines.end():
                yield line
        finally:
            await process.end(kill=True)
        if begin.pid is None:
            raise unusable_shell(self.name, begin.said)

    async def open_connection(self, host: str, port: int, *, timeout: float = 5.0) -> TcpStream:
        """A TCP connection from this machine; `PortClosed` when nobody takes it."""
        return await connect_tcp(self.name, host, port, timeout)

    async def read_file(self, path: str, offset: int, length: int, *, timeout: float = 10.0) -> bytes:
        """Bytes of a file of this machine; fewer at its end."""
        try:
            async with asyncio.timeout(timeout):
                return await asyncio.to_thread(_read, path, offset, length)
        except TimeoutError as error:
            raise CommandTimeout(f"Reading {path} on {self.name} took more than {timeout:g} s.",
                                 "Check that its disk or network mount answers.") from error
        except OSError as error:
            raise unreadable(self.name, path, error.strerror or str(error)) from error

    async def close(self) -> None:
        """Nothing is held between calls."""


class _ShellProcess:
    """A /bin/sh in its own session, with pipes that we own, so that their ends are ours to close."""

    @classmethod
    async def start(cls, node: str) -> _ShellProcess:
        self = cls()
        with ExitStack() as theirs, ExitStack() as ours:    # a cancellation between two of these leaves nothing open
            try:
                self.stdout, self._out_transport, out_end = await _read_pipe()
                theirs.callback(os.close, out_end)
                ours.callback(self._out_transport.close)
                self.stderr, self._err_transport, err_end = await _read_pipe()
                theirs.callback(os.close, err_end)
                ours.callback(self._err_transport.close)
                self._process = await asyncio.create_subprocess_exec(
                    *shell.LOCAL_ARGV, stdin=asyncio.subprocess.PIPE, stdout=out_end, stderr=err_end,
                    start_new_session=True)
            except OSError as error:
                raise unusable_shell(node, error.strerror or str(error)) from error
            ours.pop_all()
        assert self._process.stdin is not None
        self.stdin = self._process.stdin
        return self

    async def through(self, given: bytes, on_stdout: Callable[[bytes], None],
                      on_stderr: Callable[[bytes], None]) -> int:
        """Give the shell its input, take its output, and return its status once it ended."""
        readers = [asyncio.ensure_future(_drain(self.stdout, on_stdout)),
                   asyncio.ensure_future(_drain(self.stderr, on_stderr)),
                   asyncio.ensure_future(self._write(given))]
        try:
            status = await self._process.wait()
            await asyncio.wait(readers[:2], timeout=_LINGER)
        finally:
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)
        return status if status >= 0 else 128 - status

    async def end(self, *, kill: bool = False) -> None:
        """Let go of the pipes; a shell that still runs (or, with `kill`, its group) is ended."""
        if kill or self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        if self.stdin.transport.get_write_buffer_size() or not self.stdin.transport.is_closing():
            self.stdin.transport.abort()
        self._out_transport.close()
        self._err_transport.close()
        await self._process.wait()

    async def _write(self, given: bytes) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):   # a script need not read its input
            self.stdin.write(given)
            await self.stdin.drain()
        self.stdin.close()


async def _read_pipe() -> tuple[asyncio.StreamReader, asyncio.BaseTransport, int]:
    ours, theirs = os.pipe()
    reader = asyncio.StreamReader(limit=_CHUNK)
    try:
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(ours, "rb", buffering=0))
    except BaseException:
        os.close(theirs)
        raise
    return reader, transport, theirs


async def _drain(reader: asyncio.StreamReader, take: Callable[[bytes], None]) -> None:
    while data := await reader.read(_CHUNK):
        take(data)


def _read(path: str, offset: int, length: int) -> bytes:
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)   # a FIFO must not hold us
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(0, "it is not a regular file")
        parts, left = [], length
        while left > 0 and (part := os.pread(file, min(left, 1 << 20), offset + length - left)):
            parts.append(part)
            left -= len(part)
        return b"".join(parts)
    finally:
        os.close(file)


def unusable_shell(node: str, said: str) -> ShellUnusable:
    """/bin/sh of the node did not do what it was told; `said` is what came in place of an answer."""
    said = " ".join(said.split())[:200]
    return ShellUnusable(
        f"/bin/sh on {node} gave no answer that can be read{f'; it said: {said}' if said else ''}.",
        "Check that the account has a login shell and that its rc files neither end nor replace the shell.")


def unreadable(node: str, path: str, why: str) -> FleetError:
    """A file on a node that cannot be read."""
    return FleetError(f"{path} on {node} cannot be read: {why[:200]}.",
                      "Check the path and that the user may read it.", code="unreadable")
