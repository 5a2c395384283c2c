"""A node over SSH: one connection, multiplexed, that says within five seconds when it is lost.

This module and the `ssh_*` ones beside it are the only ones that import asyncssh (0.26 s of processor).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, suppress

import asyncssh

from fleet.errors import CommandTimeout, ConnectionDropped, FleetError, NodeError
from fleet.nodes import shell
from fleet.nodes.local import unreadable, unusable_shell
from fleet.nodes.questions import Ask, Interview
from fleet.nodes.ssh_connect import Chain, connect
from fleet.nodes.ssh_errors import of_channel
from fleet.nodes.ssh_files import SftpFile
from fleet.nodes.ssh_forward import ChannelStream, Connect, RemoteForward, open_connection
from fleet.nodes.ssh_session import Session, Take
from fleet.nodes.ssh_target import Connected, SshTarget
from fleet.nodes.transport import OUTPUT_LIMIT, Completed

# sshd allows ten sessions on a connection (MaxSessions); two stay free for ending what ran too long
SESSIONS = 8
FOLLOWED = 5             # of those at most: logs that are followed, which never end by themselves
TURN = 5.0               # seconds that a followed log waits for its turn
_LINGER = 1.0            # seconds that a channel may outlive its shell: a service that kept its pipes
_OBEY = 0.3              # seconds that sshd has to end a shell before another one does it
# sshd counts a session until some moments after it said that it is closed
_TRY_AGAIN = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_BEHIND = 512 * 1024     # bytes of lines that nobody took yet before the node is told to wait
_BLOCK = 64 * 1024
_PIECE = 16 * _BLOCK     # bytes of a file read in one go
_READ = """[ -f "$1" ] || { echo "it is not a regular file, or not there" >&2; exit 3; }
[ -r "$1" ] || { echo "permission denied" >&2; exit 3; }
exec dd if="$1" bs=65536 skip="$2" count="$3" 2>/dev/null"""
_KILL = """kill -KILL "-$1" 2>/dev/null || kill -KILL "$1" 2>/dev/null"""

__all__ = ["Connected", "SshTarget", "SshTransport"]


class SshTransport:
    """A `Transport` to another machine. It may be connected again after a loss; answers are remembered."""

    is_local = False

    def __init__(self, target: SshTarget, *, ask: Ask, accept_new: bool) -> None:
        self.name = target.name
        self._target = target
        self._interview = Interview(target.name, ask)
        self._accept_new = accept_new
        self._chain: Chain | None = None
        self._slots = asyncio.Semaphore(SESSIONS)
        self._follow_slots = asyncio.Semaphore(FOLLOWED)
        self._endings: set[asyncio.Task[None]] = set()
        self._forwards: list[RemoteForward] = []

    async def connect(self) -> Connected:
        """Sign in, through hops where there are any, and run the smallest command.

        Raises:
            NodeError: of the kind that says what is wrong.
        """
        await self.close()
        chain = await connect(self._target, self._interview, accept_new=self._accept_new)
        self._chain = chain
        try:
            done = await self.run(":", timeout=max(self._target.connect_timeout, 5.0))
        except BaseException:
            await self.close()
            raise
        return Connected(chain.node.address, chain.node.fingerprint, done.seconds)

    async def run(self, script: str, arguments: Sequence[str] = (), *, stdin: bytes = b"",
                  timeout: float = 10.0, limit: int = OUTPUT_LIMIT) -> Completed:
        """Run a POSIX sh script to its end; see `Transport.run`."""
        given = shell.request(script, arguments, stdin)
        out, err = shell.Output(limit), shell.Output(shell.STDERR_LIMIT)
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(timeout):
                    await stack.enter_async_context(self._slots)
                    started = time.monotonic()
                    session = await self._open(out.begin, out.feed, err.feed)
                    stack.callback(self._finish, session)
                    session.give(given)
                    await session.exited.wait()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_LINGER):
                            await session.closed.wait()
            except TimeoutError as error:
                raise self._too_long(timeout) from error
        self._check_end(session, err.begin.said)
        return Completed(session.status, bytes(out.data), bytes(err.data), time.monotonic() - started, out.truncated)

    async def lines(self, script: str, arguments: Sequence[str] = (), *, limit: int = 8192) -> AsyncIterator[str]:
        """Run a script that goes on and yield its lines; see `Transport.lines`."""
        given = shell.request(script, arguments)
        begin, cutter, queue, more = shell.Beginning(), shell.Lines(limit), deque[str](), asyncio.Event()
        behind = 0

        def take(data: bytes) -> None:
            nonlocal behind
            queue.extend(cutter.feed(begin.feed(data)))
            behind += len(data)
            if behind > _BEHIND:
                session.channel.pause_reading()
            more.set()

        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(TURN):
                    await stack.enter_async_context(self._follow_slots)
                    await stack.enter_async_context(self._slots)
                    session = await self._open(begin, take, lambda data: None)
                    stack.callback(self._finish, session, kill=True)
            except TimeoutError as error:
                raise NodeError(f"{self.name} has no session free to follow another log.",
                                "Close one that is being followed.", code="sessions") from error
            session.give(given)
            closing = asyncio.ensure_future(session.closed.wait())
            closing.add_done_callback(lambda _: more.set())
            stack.callback(closing.cancel)
            while True:
                while queue:
                    yield queue.popleft()
                if session.closed.is_set():
                    break
                more.clear()
                behind = 0
                session.channel.resume_reading()
                await more.wait()
            for line in (*queue, *cutter.end()):
                yield line
        self._check_end(session, "")

    async def open_connection(self, host: str, port: int, *, timeout: float = 5.0) -> ChannelStream:
        """A TCP connection made from the node; see `Transport.open_connection`."""
        return await open_connection(self.name, self._connection(), host, port, timeout)

    async def listen(self, host: str, port: int, connect: Connect, *, timeout: float = 5.0) -> RemoteForward:
        """Listen on the node (port 0: it chooses); each connection is joined with what `connect()` gives.

        Raises:
            PortTaken: the node gives us no such port.
            NodeError: it does not answer.
        """
        forward = RemoteForward(self.name, connect)
        await forward.listen(self._connection(), host, port, timeout)
        self._forwards.append(forward)
        return forward

    async def read_file(self, path: str, offset: int, length: int, *, timeout: float = 10.0) -> bytes:
        """Bytes of a file on the node; fewer at its end. `FleetError` when it cannot be read."""
        parts: list[bytes] = []
        try:
            async with asyncio.timeout(timeout):
                while length > 0:
                    skip, within = divmod(offset, _BLOCK)
                    count = -(-(within + min(length, _PIECE)) // _BLOCK)
                    done = await self.run(_READ, [path, str(skip), str(count)], timeout=timeout)
                    if done.status != 0:
                        raise unreadable(self.name, path, " ".join(done.error_text.split()) or "dd failed")
                    part = done.stdout[within:within + min(length, _PIECE)]
                    parts.append(part)
                    if len(part) < min(length, _PIECE):
                        break
                    offset += len(part)
                    length -= len(part)
        except TimeoutError as error:
            raise self._too_long(timeout) from error
        return b"".join(parts)

    async def open_file(self, path: str) -> SftpFile:
        """A file of the node, open for writing by SFTP; it has to be there.

        Raises:
            FleetError: SFTP does not work there (code "no-sftp"), or the file cannot be written.
        """
        return await SftpFile.open(self.name, self._connection(), path)

    async def close(self) -> None:
        """Let go of the connection; safe to repeat. What was started detached on the node runs on."""
        chain, self._chain = self._chain, None
        if chain is None:
            return
        self._interview.drop()
        for forward in self._forwards:
            await forward.close()
        self._forwards.clear()
        if self._endings:
            await asyncio.wait(list(self._endings), timeout=_LINGER)
        await chain.close()

    def _connection(self) -> asyncssh.SSHClientConnection:
        if self._chain is None or self._chain.connection.is_closed():
            raise ConnectionDropped(f"{self.name} is not connected.", "It is connected again as soon as it answers.")
        return self._chain.connection

    async def _open(self, begin: shell.Beginning, on_stdout: Take, on_stderr: Take) -> Session:
        pauses = iter(_TRY_AGAIN)
        while True:
            connection = self._connection()
            try:
                return await Session.open(connection, begin, on_stdout, on_stderr)
            except TimeoutError:
                raise
            except (asyncssh.Error, OSError) as error:
                full = isinstance(error, asyncssh.ChannelOpenError) and not connection.is_closed()
                pause = next(pauses, None) if full else None
                if pause is None:
                    raise of_channel(self.name, error, full=full) from error
            await asyncio.sleep(pause)

    def _check_end(self, session: Session, stderr: str) -> None:
        """Raise unless the shell ran and told its status."""
        if session.status is None and (session.lost is not None or self._chain is None
                                       or self._chain.connection.is_closed() or session.begin.pid is not None):
            # a server that is killed closes the channel without a status, and without an error
            raise of_channel(self.name, session.lost)
        if session.begin.pid is None:
            raise unusable_shell(self.name, session.begin.said or stderr)

    def _finish(self, session: Session, *, kill: bool = False) -> None:
        """Let go of a session; one that still runs is ended on the node too."""
        if session.closed.is_set():
            return
        if not session.exited.is_set() or kill:
            task = asyncio.ensure_future(self._end(session))
            self._endings.add(task)
            task.add_done_callback(self._endings.discard)
        else:
            session.end()

    async def _end(self, session: Session) -> None:
        session.kill()
        with suppress(TimeoutError):
            async with asyncio.timeout(_OBEY):
                await session.closed.wait()
        pid = session.begin.pid
        if not session.closed.is_set():
            session.end()
            if pid is not None:                 # no OpenSSH, an old one, or root's: it passes no signals on
                with suppress(FleetError, TimeoutError):
                    async with asyncio.timeout(TURN):
                        killer = await self._open(shell.Beginning(), lambda data: None, lambda data: None)
                        killer.give(shell.request(_KILL, [str(pid)]))
                        await killer.closed.wait()

    def _too_long(self, timeout: float) -> CommandTimeout:
        return CommandTimeout(
            f"A command on {self.name} was still running after {timeout:g} s and was ended.",
            "Check what keeps the machine busy (load, a disk that does not answer), or a slow network.")
