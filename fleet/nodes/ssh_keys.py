"""The keys that are offered to a node: those of files and of the agent, in an order that a server bears.

sshd counts each offered key as a try and ends the connection after six. So the keys that were named
come first, then the agent's other ones. A locked key is offered by its public half; its passphrase is
asked for when the node says that it would take it, as OpenSSH does.
"""

from __future__ import annotations

import asyncio
import binascii
import re
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path

import asyncssh
from asyncssh.public_key import SSHKeyPair

from fleet.nodes.questions import Interview

AGENT_TIMEOUT = 3.0      # seconds: an agent that hangs must not hold a node up
_LARGEST = 256 * 1024
_OPENSSH = re.compile(rb"-----BEGIN OPENSSH PRIVATE KEY-----(.*?)-----END", re.DOTALL)


class LockedKey(SSHKeyPair):
    """A key whose public half is known; the private one is opened when it has to sign."""

    _key_type = "local"

    def __init__(self, file: str, public: asyncssh.SSHKey, interview: Interview) -> None:
        super().__init__(public.algorithm, public.algorithm, public.sig_algorithms, public.sig_algorithms,
                         public.public_data, file, filename=file.encode())
        self.file = file
        self._interview = interview

    async def sign_async(self, data: bytes) -> bytes:
        """Sign, asking for the passphrase first; ValueError when nobody knows it."""
        passphrase = await self._interview.passphrase(self.file, partial(_opens, self.file))
        if passphrase is None:
            raise ValueError("nobody opens this key")
        key = await asyncio.to_thread(asyncssh.read_private_key, self.file, passphrase)
        return key.sign(data, self.sig_algorithm)


class Offer:
    """The keys for one sign-in, one after the other, and what became of them."""

    def __init__(self, files: Sequence[str], agent_path: str | None, agent_only_named: bool,
                 certificates: Sequence[str], interview: Interview) -> None:
        self.offered: list[str] = []       # for the person: what was tried
        self.locked: list[str] = []        # files that want a passphrase
        self.unreadable: list[str] = []
        self._files = files
        self._agent_path = agent_path
        self._agent_only_named = agent_only_named
        self._certificates = certificates
        self._interview = interview
        self._agent: asyncssh.SSHAgentClient | None = None
        self._keys = self._all()

    async def next(self) -> SSHKeyPair | None:
        """The next key, or None when there is none left."""
        return await anext(self._keys, None)

    async def close(self) -> None:
        """Let go of the agent."""
        await self._keys.aclose()
        if self._agent is not None:
            self._agent.close()
            self._agent = None

    async def _all(self) -> AsyncIterator[SSHKeyPair]:
        agent = {key.public_data: key for key in await self._agent_keys()}
        seen: set[bytes] = set()
        hidden = []
        for file in self._files:
            for key in await asyncio.to_thread(self._of_file, file):
                if key is None:
                    hidden.append(file)
                    continue
                by_agent = agent.get(key.public_data) if isinstance(key, LockedKey) else None
                if key.public_data in seen:
                    continue
                seen.add(key.public_data)
                self.offered.append(f"{_short(file)}{' (from the agent)' if by_agent else ''}")
                yield by_agent or key
        others = [key for data, key in agent.items() if data not in seen]
        if others and not self._agent_only_named:
            self.offered.append(f"{len(others)} more of the agent")
            for key in others:
                yield key
        for file in hidden:                 # locked, and even its public half is: ask before offering it
            passphrase = await self._interview.passphrase(file, partial(_opens, file))
            if passphrase is not None:
                self.offered.append(_short(file))
                for key in await asyncio.to_thread(asyncssh.load_keypairs, file, passphrase):
                    yield key

    async def _agent_keys(self) -> Sequence[SSHKeyPair]:
        if self._agent_path is None:
            return ()
        try:
            async with asyncio.timeout(AGENT_TIMEOUT):
                self._agent = await asyncssh.connect_agent(self._agent_path)
                return await self._agent.get_keys()
        except (OSError, ValueError, TimeoutError):
            return ()

    def _of_file(self, file: str) -> list[SSHKeyPair | None]:
        """The key of a file, with its certificate first; [None] for one that tells nothing without a passphrase."""
        try:
            if Path(file).stat().st_size > _LARGEST:
                return []
            return list(asyncssh.load_keypairs(file, certlist=list(self._certificates)))
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            if not str(error).startswith("Passphrase"):
                self.unreadable.append(_short(file))
                return []
        self.locked.append(file)
        public = _public_half(file)
        return [LockedKey(file, public, self._interview) if public else None]


def _public_half(file: str) -> asyncssh.SSHKey | None:
    """The public key beside a locked private one: in FILE.pub, or in clear inside OpenSSH's own format."""
    try:
        return asyncssh.read_public_key(f"{file}.pub")
    except (OSError, ValueError):
        pass
    try:
        found = _OPENSSH.search(Path(file).read_bytes())
        if not found:
            return None
        rest = binascii.a2b_base64(found[1]).removeprefix(b"openssh-key-v1\0")
        for _ in range(3):                        # cipher, key derivation, its options
            rest = rest[4 + int.from_bytes(rest[:4]):]
        blob = rest[8:8 + int.from_bytes(rest[4:8])]   # after the number of keys, which is 1
        algorithm = blob[4:4 + int.from_bytes(blob[:4])]
        return asyncssh.import_public_key(algorithm + b" " + binascii.b2a_base64(blob))
    except (OSError, ValueError):
        return None


def _opens(file: str, passphrase: str) -> bool:
    try:
        asyncssh.read_private_key(file, passphrase)
    except (OSError, ValueError):   # asyncssh's key errors are ValueErrors
        return False
    return True


def _short(file: str) -> str:
    home = str(Path.home())
    return "~" + file.removeprefix(home) if file.startswith(home + "/") else file
