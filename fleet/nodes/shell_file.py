"""A file of a node that is written to: by SFTP, or by its shell where SFTP does not work (an rc file that prints)."""

from __future__ import annotations

from typing import Protocol

from fleet.errors import FleetError, NodeError
from fleet.nodes.transport import Transport
from fleet.text import visible

WRITE_TIMEOUT = 120.0     # seconds for one block
_CUT = """[ ! -h "$1" ] && : >>"$1" && dd if=/dev/null of="$1" bs=1 seek="$2" count=0 2>/dev/null"""
_APPEND = 'cat >>"$1"'


class Writer(Protocol):
    """A file that is open for writing; what lies behind the place that is written to is gone."""

    async def seek(self, at: int) -> None:
        """Write on from byte `at`."""

    async def write(self, data: bytes) -> None:
        """Append."""

    async def flush(self) -> None:
        """Everything is with the node."""

    async def close(self) -> None:
        """Let go of it."""


async def open_for_writing(transport: Transport, path: str, at: int) -> Writer:
    """A file that is made when it is not there and cut to `at` bytes.

    Raises:
        FleetError: it cannot be written.
        NodeError: the node does not answer.
    """
    shell = ShellFile(transport, path)
    await shell.seek(at)
    if transport.is_local:
        return shell
    from fleet.nodes.ssh import SshTransport

    assert isinstance(transport, SshTransport)
    try:
        return await transport.open_file(path)
    except FleetError as error:
        if error.code != "no-sftp":
            raise
        return shell


class ShellFile:
    """Through `cat`: slower than SFTP, and needs nothing but a shell."""

    def __init__(self, transport: Transport, path: str) -> None:
        self._transport, self._path = transport, path

    async def seek(self, at: int) -> None:
        """Cut it there."""
        await self._run(_CUT, (self._path, str(at)), b"")

    async def write(self, data: bytes) -> None:
        """Append."""
        await self._run(_APPEND, (self._path,), data)

    async def flush(self) -> None:
        """Every write was."""

    async def close(self) -> None:
        """Nothing is held."""

    async def _run(self, script: str, arguments: tuple[str, ...], data: bytes) -> None:
        done = await self._transport.run(script, arguments, stdin=data, timeout=WRITE_TIMEOUT)
        if done.status is None:
            raise NodeError(f"{self._transport.name} was lost while {visible(self._path)} was written.",
                            "Try again.", code="dropped")
        if done.status != 0:
            why = visible(" ".join(done.error_text.split()), limit=200) or f"status {done.status}"
            raise FleetError(f"{visible(self._path)} on {self._transport.name} cannot be written: {why}.",
                             "Look at the folder's owner, rights and disk.", code="unwritable")
