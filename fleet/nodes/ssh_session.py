"""One script on an SSH connection: its input, its output as it comes, its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import asyncssh

from fleet.nodes import shell

_SIGNALS = {"HUP": 1, "INT": 2, "QUIT": 3, "ILL": 4, "ABRT": 6, "FPE": 8, "KILL": 9, "USR1": 10, "SEGV": 11,
            "USR2": 12, "PIPE": 13, "ALRM": 14, "TERM": 15}   # by the names that SSH carries
Take = Callable[[bytes], None]


class Session(asyncssh.SSHClientSession[bytes]):
    """A running /bin/sh on the node."""

    def __init__(self, begin: shell.Beginning, on_stdout: Take, on_stderr: Take) -> None:
        self.begin = begin                       # of stdout, which `on_stdout` feeds: has the shell's pid
        self.status: int | None = None           # 128 + signal; None = not ended, or nobody told
        self.exited = asyncio.Event()            # the shell has ended, or the channel is closed
        self.closed = asyncio.Event()
        self.lost: Exception | None = None       # why the connection ended under it
        self._on_stdout = on_stdout
        self._on_stderr = on_stderr
        self.channel: asyncssh.SSHClientChannel[bytes]

    @classmethod
    async def open(cls, connection: asyncssh.SSHClientConnection, begin: shell.Beginning, on_stdout: Take,
                   on_stderr: Take) -> Session:
        """Start the shell. Given up half-way, the channel is closed as soon as the node has opened it."""
        opening = asyncio.ensure_future(connection.create_session(
            lambda: cls(begin, on_stdout, on_stderr), shell.REMOTE_COMMAND, encoding=None, request_pty=False, env={},
            send_env=()))
        try:
            _, session = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_late)
            raise
        assert isinstance(session, Session)
        return session

    def give(self, given: bytes) -> None:
        """All of the shell's input. What the node does not take yet is kept here."""
        with suppress(OSError):                  # it has ended already
            self.channel.write(given)
            self.channel.write_eof()

    def kill(self) -> None:
        """Ask sshd to kill the shell with all its group (OpenSSH 7.9 and newer do)."""
        with suppress(OSError):
            self.channel.send_signal("KILL")

    def end(self) -> None:
        """Let go of the channel."""
        self.channel.abort()

    # What asyncssh calls

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        """The channel is open."""
        self.channel = chan

    def data_received(self, data: bytes, datatype: int | None) -> None:
        """Output of the shell, or before that of rc files."""
        (self._on_stderr if datatype == asyncssh.EXTENDED_DATA_STDERR else self._on_stdout)(data)

    def eof_received(self) -> bool:
        """No more output; the status may still come, so the channel stays."""
        return True

    def exit_status_received(self, status: int) -> None:
        """The shell has ended."""
        self.status = status
        self.exited.set()

    def exit_signal_received(self, signal: str, core_dumped: bool, msg: str, lang: str) -> None:
        """The shell was ended by a signal."""
        self.status = 128 + _SIGNALS.get(signal, 0)
        self.exited.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """The channel is closed, in peace or with the connection."""
        self.lost = exc
        self.closed.set()
        self.exited.set()


def _close_late(opening: asyncio.Task) -> None:
    if not opening.cancelled() and opening.exception() is None:
        channel, _ = opening.result()
        channel.abort()
