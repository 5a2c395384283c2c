"""A file of a node that is written to by SFTP."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import asyncssh

from fleet.errors import FleetError
from fleet.nodes.ssh_errors import of_channel
from fleet.text import visible

OPEN_TIMEOUT = 15.0       # seconds
WRITE_TIMEOUT = 120.0     # for one block
_NO_SFTP = (asyncssh.SFTPNoConnection, asyncssh.SFTPConnectionLost, asyncssh.SFTPBadMessage, asyncssh.ChannelOpenError)


class SftpFile:
    """One file, open for writing; the blocks of one write are on their way together."""

    def __init__(self, node: str, path: str, client: asyncssh.SFTPClient, file: asyncssh.SFTPClientFile) -> None:
        self._node, self._path, self._client, self._file = node, path, client, file
        self._at = 0

    @classmethod
    async def open(cls, node: str, connection: asyncssh.SSHClientConnection, path: str) -> SftpFile:
        """Open a file that is there.

        Raises:
            FleetError: code "no-sftp" when its SFTP does not work, "unwritable" when the file cannot be written.
        """
        try:
            async with asyncio.timeout(OPEN_TIMEOUT):
                client = await connection.start_sftp_client()
        except (*_NO_SFTP, asyncssh.SFTPError, TimeoutError) as error:
            if connection.is_closed():
                raise of_channel(node, None) from error
            raise FleetError(f"SFTP does not work on {node}: {visible(str(error), limit=200) or 'no answer'}.",
                             "See that its sshd has the sftp subsystem, and that no rc file prints anything.",
                             code="no-sftp") from error
        except (asyncssh.Error, OSError) as error:
            raise of_channel(node, error) from error
        try:
            async with asyncio.timeout(OPEN_TIMEOUT):
                file = await client.open(path, asyncssh.FXF_WRITE | asyncssh.FXF_READ, encoding=None)
        except BaseException as error:
            client.exit()
            if isinstance(error, asyncssh.SFTPError | TimeoutError):
                raise _unwritable(node, path, error) from error
            raise
        return cls(node, path, client, file)

    async def seek(self, at: int) -> None:
        """Write on from byte `at`; what lies behind it is overwritten."""
        self._at = at

    async def write(self, data: bytes) -> None:
        """Write the next bytes.

        Raises:
            FleetError: the disk is full, or it cannot be written.
            NodeError: the node is lost.
        """
        try:
            async with asyncio.timeout(WRITE_TIMEOUT):
                await self._file.write(data, self._at)
        except (asyncssh.SFTPNoConnection, asyncssh.SFTPConnectionLost) as error:
            raise of_channel(self._node, None) from error
        except (asyncssh.SFTPError, TimeoutError) as error:
            raise _unwritable(self._node, self._path, error) from error
        except (asyncssh.Error, OSError) as error:
            raise of_channel(self._node, error) from error
        self._at += len(data)

    async def flush(self) -> None:
        """Every write was answered."""

    async def close(self) -> None:
        """Let go of it."""
        with suppress(asyncssh.Error, OSError, TimeoutError):
            async with asyncio.timeout(OPEN_TIMEOUT):
                await self._file.close()
        self._client.exit()


def _unwritable(node: str, path: str, error: BaseException) -> FleetError:
    why = visible(str(error), limit=200) or "no answer"
    return FleetError(f"{visible(path)} on {node} cannot be written: {why}.",
                      "Look at the folder's owner, rights and disk.", code="unwritable")
